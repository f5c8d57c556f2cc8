"""Playing: the loop over a game, conversations, deals and rows, who sits where."""
