"""Players without a model, by name: bots that are lists of rules; search over a bot; best responses
to each other.
"""

from collections.abc import Callable, Mapping
from functools import partial

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.policies.best_response import BestResponse
from hanabi_grpo.envs.hanabi.policies.rule_bots import RULE_BOTS, rule_bot
from hanabi_grpo.envs.hanabi.policies.search import Search

Maker = Callable[[], base.Policy]
_BOTS: Mapping[str, Maker] = {name: partial(rule_bot, name) for name in RULE_BOTS}
_FIRST: Mapping[str, Maker] = {
    "random": base.random_policy,
    **{name: _BOTS[name] for name in ("blind", "hint-bot")},
}
"""Every table of a board carries these."""
PLANNERS: Mapping[str, Maker] = {
    **{f"search-{name}": partial(Search, name) for name in ("hint-bot", "piers", "focus-bot")},
    "search": Search,
    "best-response": BestResponse,
}
"""Those that compute for longer than a rule takes to read: seconds a move or once."""
POLICIES: Mapping[str, Maker] = {**_FIRST, **_BOTS, **PLANNERS}
