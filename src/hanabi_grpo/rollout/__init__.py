"""Playing: the game loop, chat formats, tasks, and the messages between client and server."""
