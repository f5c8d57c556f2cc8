"""Playing: the loop over a game, conversations, deals and rows, what client and server tell each other."""
