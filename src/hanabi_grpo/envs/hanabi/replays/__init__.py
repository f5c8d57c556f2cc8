"""Recorded games played again: every board, as text (`timeline`), and as hanab.live has them (`hanab_live`)."""
