"""One run on this disk: its folder, checkpoints, records of games and evaluations, and how it goes
on.
"""
