"""Watching games: recorded episodes played again, as text, and as hanab.live has them.

Map:
    recording    board and deck of a recorded game
    timeline     the game played again: every board, every move and what it was worth
    frames       games as text
    live_game    hanab.live's JSON, and the rules that it must have to be ours
    hanab_live   recordings to hanab.live's games and back
"""
