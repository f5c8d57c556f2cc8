"""Hanabi's own page, on which a game can be stepped through, and the conventions of teams."""
