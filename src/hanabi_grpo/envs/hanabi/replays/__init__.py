"""Recorded games replayed: every board, as data and as text."""
