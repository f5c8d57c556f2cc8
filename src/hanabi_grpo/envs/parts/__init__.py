"""Puzzles that need a team: each seat holds one part, and few words may be exchanged.

`puzzle` has their common code; `split_sum` and `hat_line` are the puzzles.
"""
