"""Puzzles that need a team: each seat holds a part, and few words may pass.

`puzzle` is what they have in common, `split_sum` and `hat_line` are the puzzles.
"""
