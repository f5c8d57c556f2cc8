"""Players without a model, by name.

- `script`: a rule over what a player sees, as a policy; random play, blind play and the three-rule hint bot.
- `simple_bot`: SimpleBot, whose hints all mean "play this".
- `rule_bots`: IGGI, Piers, Outer and Flawed, as lists of the named `rules`, which look at `beliefs`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.policies.rule_bots import RULE_BOTS, rule_bot
from hanabi_grpo.envs.hanabi.policies.script import blind, hint_bot, random_policy
from hanabi_grpo.envs.hanabi.policies.simple_bot import SimpleBot

__all__ = ["POLICIES", "REFERENCES", "SCRIPTED", "SimpleBot", "hint_bot"]

REFERENCES: tuple[str, ...] = ("random", "blind", "hint-bot")
"""Scripts that every table of a board carries."""

POLICIES: Mapping[str, Callable[[], base.Policy]] = MappingProxyType(
    {
        "random": random_policy,
        "blind": blind,
        "hint-bot": hint_bot,
        "simple-bot": SimpleBot,
        **{name: partial(rule_bot, name) for name in RULE_BOTS},
    }
)
SCRIPTED: tuple[str, ...] = tuple(POLICIES)
