"""How players on a server play at every information set of a game.

That follows from the probabilities of their replies; nothing is sampled.
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
    """Per information state the probability of each legal action.

    After the environment's rule for bad replies; each list sums to 1.
    """
    illegal: tuple[float, ...]
    """Per player the probability of a reply that is no legal action, mean over its sets."""


def served_profile(
    setup: Setup[OpenSpielConfig], seats: Sequence[str], client: RolloutClient
) -> Profile:
    """Ask the server for the probability of each legal action, as a whole reply, at each set.

    What is left of 1 is the probability of other replies. It is spread evenly over the legal
    actions where a random one takes their place; where they lose the game, the legal ones are
    scaled to 1, so that `illegal` has to be read beside.

    Args:
        setup: The game.
        seats: Policy of each seat as requests name it, e.g. ("player_0@7", "player_1@7").
        client: Of the server that holds them.

    Raises:
        SettingsError: The players remember more than the turn, so that a state alone does not say
            how they play.
        ServerError: The server failed.
    """
    if setup.config.window != 1:
        raise SettingsError(
            f"exploitability of {setup.spec.preset}: HANABI_MEMORY={setup.config.memory}: it is "
            "computed for players whose reply depends on this turn's message alone; train and "
            "measure with HANABI_MEMORY=turn."
        )
    sets = information_sets(setup)
    spreads_evenly = setup.spec.bad_reply == "random_legal"
    chances: dict[str, list[float]] = {}
    illegal = []
    for player, seat in enumerate(seats):
        own_sets = [information_set for information_set in sets if information_set.player == player]
        system = setup.environment.system(setup.config, player)
        prompts = []
        for information_set in own_sets:
            prompts.append(
                ScoredPrompt(
                    system=system, prompt=information_set.message, replies=information_set.replies
                )
            )
        scores = client.score(seat, prompts)
        total_illegal = 0.0
        for information_set, logprobs in zip(own_sets, scores, strict=True):
            legal = [math.exp(logprob) for logprob in logprobs]
            rest = max(0.0, 1 - sum(legal))
            total_illegal += rest
            if spreads_evenly:
                legal = [chance + rest / len(legal) for chance in legal]
            total = sum(legal)
            chances[information_set.information] = [chance / total for chance in legal]
        illegal.append(total_illegal / len(own_sets))
    return Profile(chances=chances, illegal=tuple(illegal))


def exploited(
    setup: Setup[OpenSpielConfig], seats: Sequence[str], client: RolloutClient
) -> dict[str, float]:
    """Return what a best responder wins against the players in the seats, as metrics.

    Args:
        setup: The game.
        seats: See `served_profile`, whose errors this raises too.
        client: Of the server that holds the players.
    """
    profile = served_profile(setup, seats, client)
    result = exploitability(setup, profile.chances)
    metrics = {"exploitability": result.exploitability}
    for role, value in zip(setup.spec.roles, result.best_responses, strict=True):
        metrics[f"best_response/{role}"] = value
    metrics["illegal_mass"] = max(profile.illegal)
    return metrics


def average(profiles: Sequence[Profile]) -> Profile:
    """Return the profile that plays one of these at each turn, each as often."""
    chances = {}
    for information in profiles[0].chances:
        per_profile = [profile.chances[information] for profile in profiles]
        chances[information] = [fmean(each) for each in zip(*per_profile, strict=True)]
    per_player = zip(*(profile.illegal for profile in profiles), strict=True)
    return Profile(chances=chances, illegal=tuple(fmean(each) for each in per_player))
