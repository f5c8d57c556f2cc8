"""Players without a model, by name: bots that are lists of rules, and SimpleBot, whose hints all mean "play this"."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.policies.rule_bots import RULE_BOTS, hint_bot, rule_bot
from hanabi_grpo.envs.hanabi.policies.simple_bot import SimpleBot

__all__ = ["POLICIES", "hint_bot"]

POLICIES: Mapping[str, Callable[[], base.Policy]] = MappingProxyType(
    # Every table of a board carries the first three.
    {"random": base.random_policy, **{name: partial(rule_bot, name) for name in ("blind", "hint-bot")}}
    | {"simple-bot": SimpleBot, **{name: partial(rule_bot, name) for name in RULE_BOTS}}
)
