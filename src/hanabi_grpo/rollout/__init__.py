"""Playing: the loop over a game, chat formats, tasks, and the messages of client and server."""
