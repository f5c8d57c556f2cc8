"""Players without a model, by name: bots, search over a bot, mutual best responses."""

from collections.abc import Callable, Mapping
from functools import partial

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.policies import hat
from hanabi_grpo.envs.hanabi.policies.aloud import SUFFIX, aloud
from hanabi_grpo.envs.hanabi.policies.best_messages import BestMessages
from hanabi_grpo.envs.hanabi.policies.best_response import BestResponse, check_decks
from hanabi_grpo.envs.hanabi.policies.hat_aloud import HatAloud
from hanabi_grpo.envs.hanabi.policies.rule_bots import RULE_BOTS, rule_bot
from hanabi_grpo.envs.hanabi.policies.save_aloud import SaveAloud
from hanabi_grpo.envs.hanabi.policies.search import Search
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec

Maker = Callable[[], base.Policy]
_BOTS: Mapping[str, Maker] = {
    **{name: partial(rule_bot, name) for name in RULE_BOTS},
    hat.NAME: hat.HatBot,
    hat.PLAIN_NAME: partial(hat.HatBot, is_plain=True),
}
_ALOUD = ("hint-bot", "iggi", "focus-bot")
"""Rule bots that can think aloud, as teachers of thoughts."""
_BASELINES: Mapping[str, Maker] = {
    "random": base.random_policy,
    "blind": _BOTS["blind"],
    "hint-bot": _BOTS["hint-bot"],
}
"""The first rows of every table of a board's results."""
PLANNERS: Mapping[str, Maker] = {
    "search-hint-bot": partial(Search, "hint-bot"),
    "search-piers": partial(Search, "piers"),
    "search-focus-bot": partial(Search, "focus-bot"),
    "search": Search,
    "best-response": BestResponse,
    BestMessages.name: BestMessages,
}
"""Policies that compute for seconds: search at every move, best responses once."""
_THINKERS: Mapping[str, Maker] = {
    **{name + SUFFIX: partial(aloud, name) for name in _ALOUD},
    SaveAloud.name: SaveAloud,
    hat.NAME + SUFFIX: HatAloud,
    hat.PLAIN_NAME + SUFFIX: partial(HatAloud, is_plain=True),
}
_HAT_BOTS = [name + suffix for name in (hat.NAME, hat.PLAIN_NAME) for suffix in ("", SUFFIX)]
POLICIES: Mapping[str, Maker] = {**_BASELINES, **_BOTS, **PLANNERS, **_THINKERS}
"""Every policy, in the order of listings."""
VARIANTS: Mapping[str, str] = {name: name.removesuffix(SUFFIX) for name in _THINKERS}
"""Bots that think aloud make the moves of those that do not."""
CHECKS: Mapping[str, Callable[[GameSpec], None]] = {
    **{name: partial(hat.check_players, name=name) for name in _HAT_BOTS},
    BestResponse.name: partial(check_decks, policy=BestResponse.name),
    BestMessages.name: partial(check_decks, policy=BestMessages.name),
}
"""Checks that reject boards which a policy cannot play, by the policy's name."""
