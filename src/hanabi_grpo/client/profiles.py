"""Policies of served players at every information set of a game.

They are computed from the probabilities of the players' replies; nothing is sampled.
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
    """The policy of a lineup at every information set."""

    chances: dict[str, list[float]]
    """Per information state the probability of each legal action.

    The environment's rule for bad replies has been applied; each list sums to 1.
    """
    illegal: tuple[float, ...]
    """Per player the probability of a reply that is not a legal action, mean over its sets."""


def served_profile(
    setup: Setup[OpenSpielConfig], seats: Sequence[str], client: RolloutClient
) -> Profile:
    """Ask the server for the probability of each legal action, as a whole reply, at each set.

    The remaining probability, up to 1, is that of other replies. It is spread evenly over the legal
    actions where a random legal action replaces a bad reply. Where a bad reply loses the game, the
    probabilities of legal actions are scaled to sum to 1, so the figures are only meaningful
    together with `illegal`.

    Args:
        setup: The game.
        seats: Policy of each seat as requests name it, e.g. ("player_0@7", "player_1@7").
        client: Client of the server that holds the policies.

    Raises:
        SettingsError: The players remember more than the turn, so that their policy is not a
            function of the information state.
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
        system = setup.environment.system_message(setup.config, player)
        own_sets = []
        prompts = []
        for information_set in sets:
            if information_set.player != player:
                continue
            own_sets.append(information_set)
            prompt = ScoredPrompt(
                system=system,
                prompt=information_set.message,
                replies=information_set.replies,
            )
            prompts.append(prompt)
        scores = client.score(seat, prompts)
        total_illegal = 0.0
        for information_set, logprobs in zip(own_sets, scores, strict=True):
            legal = [math.exp(logprob) for logprob in logprobs]
            rest = max(0.0, 1 - sum(legal))
            total_illegal += rest
            if spreads_evenly:
                rest_per_action = rest / len(legal)
                legal = [chance + rest_per_action for chance in legal]
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
        seats: Policy of each seat, see `served_profile`.
        client: Client of the server that holds the players.

    Raises:
        SettingsError: As `served_profile`.
        ServerError: As `served_profile`.
    """
    profile = served_profile(setup, seats, client)
    result = exploitability(setup, profile.chances)
    metrics = {"exploitability": result.exploitability}
    for role, value in zip(setup.spec.roles, result.best_responses, strict=True):
        metrics[f"best_response/{role}"] = value
    metrics["illegal_mass"] = max(profile.illegal)
    return metrics


def average(profiles: Sequence[Profile]) -> Profile:
    """Return the profile that plays one of these at each turn, with equal probability."""
    chances = {}
    for information in profiles[0].chances:
        chances[information] = _means([profile.chances[information] for profile in profiles])
    illegal = _means([profile.illegal for profile in profiles])
    return Profile(chances=chances, illegal=tuple(illegal))


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of each column."""
    return [fmean(column) for column in zip(*rows, strict=True)]
