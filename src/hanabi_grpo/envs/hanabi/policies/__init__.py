"""Who sits at the table.

- `base`: the contract, a `Policy` that gives out one `Seat` per game and player.
- `scripted`: random play, blind play and the three-rule hint bot, and `make_policy` to choose any script by name.
- `simple_bot`: SimpleBot, whose hints all mean "play this".
- `rule_bots`: IGGI, Piers, Outer and Flawed, as lists of the named `rules`, which look at `beliefs`.
- `seats`: a script's seat, which answers with a move or with its text.
- `fast_play`: games of scripts alone, without text.
"""

from hanabi_grpo.envs.hanabi.policies.base import Policy, Seat
from hanabi_grpo.envs.hanabi.policies.fast_play import play_scripted
from hanabi_grpo.envs.hanabi.policies.rule_bots import RuleBot
from hanabi_grpo.envs.hanabi.policies.scripted import (
    REFERENCES,
    SCRIPTED,
    BlindPolicy,
    HintBot,
    RandomPolicy,
    ScriptedPolicy,
    make_policy,
)
from hanabi_grpo.envs.hanabi.policies.simple_bot import SimpleBot

__all__ = [
    "REFERENCES",
    "SCRIPTED",
    "BlindPolicy",
    "HintBot",
    "Policy",
    "RandomPolicy",
    "RuleBot",
    "ScriptedPolicy",
    "Seat",
    "SimpleBot",
    "make_policy",
    "play_scripted",
]
