"""Policies of served players at every information set of a game.

They are computed from the probabilities of the players' replies, without sampling.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.openspiel.exploitability import (
    InformationSet,
    check_zero_sum,
    exploitability,
    information_set,
    information_sets,
)
from hanabi_grpo.envs.openspiel.game import OpenSpielConfig, information
from hanabi_grpo.envs.openspiel.learned_response import Chances
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.messages import ScoredPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The policy of a lineup at every information set."""

    chances: dict[str, list[float]]
    """Probability of each legal action, by information state.

    The environment's rule for bad replies has been applied; each list sums to 1.
    """
    illegal: tuple[float, ...]
    """Per player, the mean probability over its sets of a reply that is not a legal action."""


def served_profile(
    setup: Setup[OpenSpielConfig], seats: Sequence[str], client: RolloutClient
) -> Profile:
    """Ask the server for the probability of each legal action, as a whole reply, at each set.

    The remaining probability belongs to other replies. It is spread evenly over the legal actions
    if a random legal action replaces a bad reply. If a bad reply loses the game, the probabilities
    of legal actions are normalized, so they are only meaningful together with `illegal`.

    Args:
        setup: The game.
        seats: Policy of each seat as requests name it, e.g. ("player_0@7", "player_1@7").
        client: Client of the server that holds the policies.

    Raises:
        SettingsError: The players remember more than the current turn, so their policy is not a
            function of the information state.
        ServerError: The server failed.
    """
    _check_memory(setup)
    chances: dict[str, list[float]] = {}
    illegal = []
    for player, seat in enumerate(seats):
        own_sets = [known for known in information_sets(setup) if known.player == player]
        answers = _chances(setup, seat, own_sets, client)
        for known, answer in zip(own_sets, answers, strict=True):
            chances[known.information] = answer.legal
        illegal.append(fmean(answer.illegal for answer in answers))
    return Profile(chances=chances, illegal=tuple(illegal))


class ServedChances:
    """Action probabilities of served players in any state of a game.

    Each message is sent to the server once.
    """

    def __init__(
        self, setup: Setup[OpenSpielConfig], seats: Sequence[str], client: RolloutClient
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            setup: The game.
            seats: Policy of each seat, see `served_profile`.
            client: Client of the server that holds the policies.

        Raises:
            SettingsError: As `served_profile`; or it is not a two-player zero-sum OpenSpiel game.
        """
        _check_memory(setup)
        self._setup = setup
        self._wording = check_zero_sum(setup)
        self._seats = seats
        self._client = client
        self._messages: dict[tuple[int, str], str] = {}
        """Message by player and the player's knowledge."""
        self._answers: tuple[dict[str, _Answer], ...] = tuple({} for _ in seats)
        """Answers of each player, by message."""

    @property
    def illegal(self) -> tuple[float, ...]:
        """Per player, the mean probability over messages of a reply that is not a legal action."""
        means = []
        for answers in self._answers:
            means.append(fmean(answer.illegal for answer in answers.values()) if answers else 0.0)
        return tuple(means)

    def __call__(self, states: Sequence[Any]) -> list[list[float]]:
        """Return the probability of each legal action of the player to act, for each state.

        Args:
            states: OpenSpiel states in which a player is to act.

        Raises:
            ServerError: The server failed.
        """
        places = []
        new: tuple[dict[str, InformationSet], ...] = tuple({} for _ in self._seats)
        for state in states:
            player = state.current_player()
            knowledge = (player, information(state, player))
            message = self._messages.get(knowledge)
            if message is None:
                known = information_set(self._setup.config, self._wording, state)
                message = self._messages[knowledge] = known.message
                if message not in self._answers[player]:
                    new[player][message] = known
            places.append((player, message))
        for player, sets in enumerate(new):
            if not sets:
                continue
            answers = _chances(self._setup, self._seats[player], list(sets.values()), self._client)
            self._answers[player].update(zip(sets, answers, strict=True))
        return [self._answers[player][message].legal for player, message in places]


def mean_chances(policies: Sequence[Chances]) -> Chances:
    """Return the policy that plays one of these at each turn, with equal probability."""

    def chances(states: Sequence[Any]) -> list[list[float]]:
        by_policy = [policy(states) for policy in policies]
        return [_means(rows) for rows in zip(*by_policy, strict=True)]

    return chances


def reply_chances(logprobs: Sequence[float], *, spreads_evenly: bool) -> tuple[list[float], float]:
    """Return the probability of each legal action, from the probabilities of replies.

    Args:
        logprobs: Logprob of each legal action as a whole reply, in nats.
        spreads_evenly: Whether a random legal action replaces a bad reply.

    Returns:
        The probability of each action, including its share of bad replies if these are spread; and
        the probability of a bad reply.
    """
    chances = [math.exp(logprob) for logprob in logprobs]
    bad = max(0.0, 1 - sum(chances))
    if spreads_evenly:
        share = bad / len(chances)
        chances = [chance + share for chance in chances]
    return chances, bad


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The action probabilities of a player in one information set."""

    legal: list[float]
    """Probability of each legal action, after the environment's rule for bad replies."""
    illegal: float
    """Probability of a reply that is not a legal action, before that rule."""


def _check_memory(setup: Setup[OpenSpielConfig]) -> None:
    """Refuse players whose reply depends on more than the information state."""
    if setup.config.window != 1:
        raise SettingsError(
            f"exploitability of {setup.spec.preset}: HANABI_MEMORY={setup.config.memory}: it is "
            "computed for players whose reply depends only on this turn's message; train and "
            "measure with HANABI_MEMORY=turn."
        )


def _chances(
    setup: Setup[OpenSpielConfig],
    seat: str,
    sets: Sequence[InformationSet],
    client: RolloutClient,
) -> list[_Answer]:
    """Return how the policy of one seat acts in information sets of that seat's player."""
    spreads_evenly = setup.spec.bad_reply == "random_legal"
    prompts = []
    for known in sets:
        prompt = ScoredPrompt(
            system=setup.environment.system_message(setup.config, known.player),
            prompt=known.message,
            replies=known.replies,
        )
        prompts.append(prompt)
    answers = []
    for logprobs in client.score(seat, prompts):
        legal, rest = reply_chances(logprobs, spreads_evenly=spreads_evenly)
        if not any(legal):
            # Each probability underflows to 0, but their ratios do not.
            highest = max(logprobs)
            legal = [math.exp(logprob - highest) for logprob in logprobs]
        total = sum(legal)
        answers.append(_Answer(legal=[chance / total for chance in legal], illegal=rest))
    return answers


def exploited(
    setup: Setup[OpenSpielConfig], seats: Sequence[str], client: RolloutClient
) -> dict[str, float]:
    """Return what a best response wins against the players in the seats, as metrics.

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
    for role, value in zip(setup.spec.role_names, result.best_responses, strict=True):
        metrics[f"best_response/{role}"] = value
    metrics["illegal_mass"] = max(profile.illegal)
    return metrics


def average(profiles: Sequence[Profile]) -> Profile:
    """Return the profile that plays one of these at each turn, with equal probability."""
    chances = {}
    for knowledge in profiles[0].chances:
        chances[knowledge] = _means([profile.chances[knowledge] for profile in profiles])
    illegal = _means([profile.illegal for profile in profiles])
    return Profile(chances=chances, illegal=tuple(illegal))


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of each column."""
    return [fmean(column) for column in zip(*rows, strict=True)]
