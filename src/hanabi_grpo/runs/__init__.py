"""One run on this disk: its folder, its checkpoints, its records, and how it is resumed."""
