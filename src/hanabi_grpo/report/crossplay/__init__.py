"""The cross-play page and its files."""
