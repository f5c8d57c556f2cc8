"""Recorded games played again: every board, as data and as text."""
