"""Playing: the loop over a game, chat formats, tasks, and what client and server tell each other."""
