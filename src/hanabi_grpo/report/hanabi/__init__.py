"""Hanabi's own page, the table of a game to step through, and the conventions of teams."""
