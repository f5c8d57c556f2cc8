"""Who sits at the table.

- `base`: the contract, a `Policy` that gives out one `Seat` per game and player.
- `scripted`: random play, blind play and the three-rule hint bot, and `make_policy` to choose one by name.
"""

from hanabi_grpo.policies.base import Policy, Seat
from hanabi_grpo.policies.scripted import SCRIPTED, BlindPolicy, HintBot, RandomPolicy, make_policy

__all__ = ["SCRIPTED", "BlindPolicy", "HintBot", "Policy", "RandomPolicy", "Seat", "make_policy"]
