"""How a team's play changes while it learns; `alarms` says when that goes wrong.

Map:
    played      recorded games, move by move, with what was legal
    moves       which moves a player makes where they are legal, and how close that is to blind play
    hints       what a hint tells the next player, in bits
    replies     length and form of replies
    boards      scores by board, against blind play of the same deals
    figures     all of these for one step
"""

from hanabi_grpo.envs.hanabi.dynamics.figures import dynamics_figures

__all__ = ["dynamics_figures"]
