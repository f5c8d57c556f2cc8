"""How players on a server play at every information set of a game, from the chances of their
replies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.openspiel.exploitability import exploitability, information_sets
from hanabi_grpo.envs.openspiel.game import OpenSpielConfig
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.messages import ScoredPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How a lineup plays at every information set."""

    chances: dict[str, list[float]]
    """Per information state the chance of each legal action after the environment's rule for bad
    replies.
    """
    illegal: tuple[float, ...]
    """Per player the chance of a reply that is no legal action, mean over its information sets."""


def served_profile(
    setup: Setup[OpenSpielConfig], seats: Sequence[str], client: RolloutClient
) -> Profile:
    """Ask the server how those in the seats answer each information set: chances of the legal words
    as whole replies.

    What is left of 1 are other replies. They are spread evenly over the legal actions where a
    random one takes their place; where they lose the game, the legal chances are scaled to 1, so
    that `illegal` has to be read beside.

    Raises: SettingsError: The players remember more than the turn, so that a state alone does not
        say how they play. ServerError: The server failed.
    """
    if setup.config.window != 1:
        raise SettingsError(
            f"exploitability of {setup.spec.preset}: HANABI_MEMORY={setup.config.memory}: it is "
            "computed for players "
            "whose reply depends on this turn's message alone; train and measure with "
            "HANABI_MEMORY=turn."
        )
    sets = information_sets(setup)
    chances: dict[str, list[float]] = {}
    illegal = []
    for player, seat in enumerate(seats):
        own = [one for one in sets if one.player == player]
        system = setup.environment.system(setup.config, player)
        prompts = [
            ScoredPrompt(system=system, prompt=one.message, replies=one.replies) for one in own
        ]
        rest = 0.0
        for one, logprobs in zip(own, client.score(seat, prompts), strict=True):
            legal = [math.exp(value) for value in logprobs]
            left = max(0.0, 1 - sum(legal))
            rest += left
            if setup.spec.bad_reply == "random_legal":
                legal = [value + left / len(legal) for value in legal]
            chances[one.information] = [value / sum(legal) for value in legal]
        illegal.append(rest / len(own))
    return Profile(chances=chances, illegal=tuple(illegal))


def exploited(
    setup: Setup[OpenSpielConfig], seats: Sequence[str], client: RolloutClient
) -> dict[str, float]:
    """Return what a best responder wins against those in the seats, as metrics; raises as
    `served_profile`.
    """
    profile = served_profile(setup, seats, client)
    found = exploitability(setup, profile.chances)
    best = {
        f"best_response/{role}": value
        for role, value in zip(setup.spec.roles, found.best_responses, strict=True)
    }
    return {"exploitability": found.exploitability, **best, "illegal_mass": max(profile.illegal)}


def average(profiles: Sequence[Profile]) -> Profile:
    """Return the profile that plays one of these at each turn, each as often."""
    chances = {
        name: [fmean(each) for each in zip(*(one.chances[name] for one in profiles), strict=True)]
        for name in profiles[0].chances
    }
    illegal = tuple(fmean(each) for each in zip(*(one.illegal for one in profiles), strict=True))
    return Profile(chances=chances, illegal=illegal)
