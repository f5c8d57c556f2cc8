"""Advantages over a whole step or a file of games: which are compared, whitening, and weights of tokens."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.training.advantages.estimators import Estimator, Values, over_turns
from hanabi_grpo.types import Episode

LossUnit = Literal["token", "turn", "sequence"]


def step_advantages(
    groups: Sequence[Sequence[Episode]], player: int, estimator: Estimator, *, whiten: bool = False
) -> list[Values]:
    """Return per group, per game, per own turn of a player its advantage.

    `groups` are the games in which the player's seat is trained. Games of different boards are never compared: their
    returns have other ranges. `whiten` brings the player's turns of the step, over all boards, to mean 0 and standard
    deviation 1.
    """
    pools: dict[tuple[int | None, str], list[tuple[int, int]]] = {}
    for number, group in enumerate(groups):
        for game, episode in enumerate(group):
            key = (number if estimator.pool == "group" else None, episode.spec_hash)
            pools.setdefault(key, []).append((number, game))
    found: list[Values] = [[[] for _ in group] for group in groups]
    for places in pools.values():
        compared = estimator([groups[number][game] for number, game in places], player)
        for (number, game), values in zip(places, compared, strict=True):
            found[number][game] = values
    if whiten:
        games = iter(over_turns([game for values in found for game in values], True))
        found = [[next(games) for _ in values] for values in found]
    return found


def token_weights(turns: Sequence[Sequence[int]], unit: LossUnit) -> list[list[float]]:
    """Return per sequence and turn the weight of each of that turn's tokens, from `turns`, their numbers of tokens.

    A player's loss is 1/N Σ_t ℓ_t over its N reply tokens of the step, and ℓ_t = −min(ρ_t A_t, clip(ρ_t) A_t) is linear
    in A_t under positive factors. A_t w_t in the place of A_t thus gives 1/N Σ_t w_t ℓ_t, and with these weights the
    wanted mean:

    - token: w = 1, the mean over tokens
    - turn: w = N / (T n), with T turns that have tokens and n tokens in this turn: 1/T Σ_turns (1/n Σ_t ℓ_t)
    - sequence: w = N / (S n), with S sequences that have tokens and n reply tokens in this one:
      1/S Σ_sequences (1/n Σ_t ℓ_t), GRPO's own mean (arXiv 2402.03300, equation 3)

    Σ_t w_t = N for each, so the size of the loss does not depend on the unit. A KL term in the loss is no part of ℓ and
    stays a mean over tokens.
    """
    total = sum(map(sum, turns))
    if unit == "turn":
        count = sum(length > 0 for lengths in turns for length in lengths)
        return [[total / (count * length) if length else 0.0 for length in lengths] for lengths in turns]
    if unit == "sequence":
        count = sum(sum(lengths) > 0 for lengths in turns)
        return [[total / (count * sum(lengths)) if length else 0.0 for length in lengths] for lengths in turns]
    return [[1.0] * len(lengths) for lengths in turns]


def turn_advantages(recordings: Sequence[Recording], estimate: Estimator) -> list[tuple[float, ...] | None]:
    """Return per game the advantage of each turn, None for a game that is alone with its deal.

    Games of one file and one deal are a group, as they were in training. For an estimator that compares over the step,
    games of one file and one board are compared, per player those in which the same policy had its seat.
    """

    def pool(one: Recording) -> tuple[Any, ...]:
        deal = (one.episode.suite, one.episode.seed) if estimate.pool == "group" else ()
        return (one.source, one.episode.spec_hash, *deal)

    compared: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, one in enumerate(recordings):
        for player in range(one.episode.num_players):
            compared[player, one.episode.seats[player : player + 1], pool(one)].append(place)
    values: dict[tuple[int, int], Iterator[float]] = {}
    for (player, *_), places in compared.items():
        games = estimate([recordings[place].episode for place in places], player)
        values |= {(place, player): iter(game) for place, game in zip(places, games, strict=True)}
    sizes = Counter(map(pool, recordings))
    return [
        tuple(next(values[place, turn.player]) for turn in one.episode.turns) if sizes[pool(one)] > 1 else None
        for place, one in enumerate(recordings)
    ]
