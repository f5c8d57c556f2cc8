"""Hanabi's own pages: the table of a game to step through, and the conventions of teams."""
