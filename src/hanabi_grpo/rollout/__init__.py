"""Playing: the loop over a game, conversations, tasks and rows, what client and server tell each
other.
"""
