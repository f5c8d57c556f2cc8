"""A step's optimizer updates, and the micro-batches of each update.

A step is one set of games, and the unit of versions, schedules, checkpoints and MAX_STEPS. It makes
one or several updates: HANABI_UPDATES_PER_STEP passes over all players' micro-batches, or, with
HANABI_UPDATE=sequential, these passes over each player's micro-batches in turn. With
HANABI_MINIBATCHES each pass makes an update for every part of the games (`minibatches`). In all
updates of a step, π_old is the policy before the first of them.

**Sequential updates.** In HAPPO (Kuba et al. 2022, arXiv 2109.11251), agent i_m, the m-th in a
random order, optimizes its clipped objective with M = (Π_{j<m} π_new^{i_j}(a^{i_j}|o) /
π_old^{i_j}(a^{i_j}|o)) · A(s, a). In Hanabi one player moves at a time. In the states in which i_m
moves, the others have no choice, so the product over that state is 1. Since the players' adapters
share no weights, the update would equal that of independent players, bit by bit.

Here the advantages come from the returns of whole games, so by default the product is over all
replies of the earlier players in the game: it reweights games of the old team as games of the team
in which the earlier players are already updated. With HANABI_SEQUENTIAL_LIMIT=0 this is exact: the
mean gradient is that of the new team's return. The variance of the weight grows with the length of
the game, so by default it is clipped to [1 / 2, 2], which trades bias for less noise.

HANABI_SEQUENTIAL_FACTOR=step uses HAPPO's own M, as does MARFT (arXiv 2504.16129): for each token,
the product over the earlier players' replies in the same step of the game. It is 1 if one player
moves at a time. It is correct if the advantage depends on that step alone, but returns of whole
games also depend on what the others do in later steps.

Only the advantages of a game are weighted (`MicroBatch.game_weights`). The KL term and the entropy
bonus keep the strength of their settings, as in HAPPO's own code, where M does not multiply the
entropy term.
"""

import math
import random
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, TypeVar

import torch

from hanabi_grpo.settings import Settings
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.shared_passes import Pass, own_passes, shared_passes
from hanabi_grpo.types import adapter_of, player_names

_LARGEST_LOG = 20.0
"""Largest |log weight| without a limit: e^20 is 5e8, and infinity would ruin the step."""
EVERYBODY = ""
"""Stands for a player's name if the update is for all players."""


_Place = TypeVar("_Place", bound=Hashable)


class GameStep(NamedTuple):
    """One step of one game, in which several players may have replied."""

    game: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One optimizer update."""

    passes: tuple[Pass, ...]
    """The update's micro-batches, grouped by forward pass; at least one pass. No other player has
    data in them."""
    adapters: frozenset[str]
    """The adapters that are updated."""
    is_first_pass: bool
    """Whether this is the step's first pass over these micro-batches. The policy is still the one
    that sampled, unless another part of the step's games came before."""
    player: str = EVERYBODY
    """The player that is updated, in a sequential step."""
    last_of_player: str = EVERYBODY
    """The player whose last update of the step this is, in a sequential step."""


def player_order(settings: Settings, step: int) -> tuple[str, ...]:
    """Return the order of players in a sequential step, random per step (Kuba et al. 2022)."""
    names = list(player_names(settings.players))
    random.Random(f"{settings.seed} {step}").shuffle(names)
    return tuple(names)


def plan_updates(
    batches: Sequence[MicroBatch],
    settings: Settings,
    *,
    step: int,
    adapter_names: Sequence[str],
    active: Collection[str],
    pass_limit: int | None = None,
) -> list[Update]:
    """Return the updates of a step, in order: players, then passes, then parts.

    Args:
        batches: All micro-batches of this rank.
        settings: The run's settings, for HANABI_UPDATE and HANABI_UPDATES_PER_STEP. The parts of
            HANABI_MINIBATCHES are recorded in the micro-batches.
        step: Number of steps before this one.
        adapter_names: The run's adapters.
        active: The adapters that have data in this step and may be updated.
        pass_limit: Largest total weight of the micro-batches in a shared pass, see
            `shared_passes`; None: each micro-batch has a separate pass.
    """
    is_sequential = settings.update == "sequential"
    players = player_order(settings, step) if is_sequential else (EVERYBODY,)
    parts = sorted({batch.part for batch in batches})
    passes = list(product(range(settings.updates_per_step), parts))
    updates = []
    for player in players:
        for number, part in passes:
            micro_batches = []
            with_data = set()
            for batch in batches:
                if batch.part != part or player not in (EVERYBODY, batch.player):
                    continue
                micro_batches.append(batch)
                if batch.has_data:
                    with_data.add(adapter_of(batch.player, adapter_names))
            is_last = (number, part) == passes[-1]
            if pass_limit is None:
                forward_passes = own_passes(micro_batches)
            else:
                forward_passes = shared_passes(micro_batches, pass_limit)
            updates.append(
                Update(
                    passes=forward_passes,
                    adapters=frozenset(active) & with_data,
                    is_first_pass=number == 0,
                    player=player,
                    last_of_player=player if is_last else EVERYBODY,
                )
            )
    return updates


def game_log_ratios(
    new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor, games: Sequence[int]
) -> dict[int, float]:
    """Return Σ_t log π_new(a_t) − log π_old(a_t) of one player's replies per game, in nats.

    A game has several rows if each turn is a separate conversation (HANABI_MEMORY=turn).

    Args:
        new: [rows, tokens] logprobs after the player's updates.
        old: [rows, tokens] logprobs before them.
        mask: [rows, tokens] True on reply tokens; rows without one are left out.
        games: [rows] number of each row's game.
    """
    sums = torch.where(mask, new - old, 0.0).double().sum(1).tolist()
    has_replies = mask.any(1).tolist()
    ratios: dict[int, float] = {}
    for game, total, counts in zip(games, sums, has_replies, strict=True):
        if counts:
            ratios[game] = ratios.get(game, 0.0) + total
    return ratios


def step_log_ratios(
    new: torch.Tensor,
    old: torch.Tensor,
    mask: torch.Tensor,
    games: Sequence[int],
    steps: torch.Tensor,
) -> dict[GameStep, float]:
    """Return the same as `game_log_ratios`, but for each step of each game.

    Args:
        new: [rows, tokens] logprobs after the player's updates.
        old: [rows, tokens] logprobs before them.
        mask: [rows, tokens] True on reply tokens.
        games: [rows] number of each row's game.
        steps: [rows, tokens] step of the game of each reply token.
    """
    # Transferred at once: reading single numbers from a GPU synchronizes with it each time.
    rows = mask.nonzero()[:, 0].tolist()
    steps_of_tokens = steps[mask].tolist()
    differences = (new - old).double()[mask].tolist()
    ratios: dict[GameStep, float] = {}
    for row, step, difference in zip(rows, steps_of_tokens, differences, strict=True):
        place = GameStep(games[row], step)
        ratios[place] = ratios.get(place, 0.0) + difference
    return ratios


def batch_log_ratios(batch: MicroBatch, new: torch.Tensor) -> dict[Any, float]:
    """Return a player's log ratio of each game in a micro-batch, or of each step of the games.

    Args:
        batch: A micro-batch with the logprobs before the player's updates.
        new: [rows, tokens] logprobs after the updates.
    """
    if batch.old_logprobs is None:
        raise RuntimeError(f"{batch.player}: a micro-batch has no logprobs of the old policy.")
    if batch.steps is None:
        return game_log_ratios(new, batch.old_logprobs, batch.reply_mask, batch.games)
    return step_log_ratios(new, batch.old_logprobs, batch.reply_mask, batch.games, batch.steps)


def sum_log_ratios(parts: Iterable[Mapping[_Place, float]]) -> dict[_Place, float]:
    """Return one player's log ratios, summed over its micro-batches on all ranks."""
    totals: dict[_Place, float] = {}
    for part in parts:
        for place, ratio in part.items():
            totals[place] = totals.get(place, 0.0) + ratio
    return totals


def batch_weights(
    log_ratios: Sequence[Mapping[Hashable, float]], batch: MicroBatch, limit: float
) -> torch.Tensor:
    """Return the weights of a later player's rows, or of their tokens if the rows have steps.

    Args:
        log_ratios: The log ratios of each earlier player, see `batch_log_ratios`.
        batch: The later player's micro-batch.
        limit: See `game_weights`.
    """
    if batch.steps is None:
        return game_weights(log_ratios, batch.games, limit)
    places: list[Hashable] = []
    for game, steps in zip(batch.games, batch.steps.tolist(), strict=True):
        places.extend(GameStep(game, step) for step in steps)
    return game_weights(log_ratios, places, limit).view(batch.steps.shape)


def game_weights(
    log_ratios: Sequence[Mapping[Hashable, float]], places: Sequence[Hashable], limit: float
) -> torch.Tensor:
    """Return [places, 1] weights of a later player's replies.

    Args:
        log_ratios: The log ratios of each earlier player; a place without replies of an earlier
            player has the ratio 1.
        places: For each weight, the game or the step of a game.
        limit: HANABI_SEQUENTIAL_LIMIT, the largest weight; its inverse is the smallest. 0: no
            limit.
    """
    totals = []
    for place in places:
        ratios_of_place = [ratios.get(place, 0.0) for ratios in log_ratios]
        totals.append(sum(ratios_of_place))
    largest = math.log(limit) if limit else _LARGEST_LOG
    logs = torch.tensor(totals, dtype=torch.float64).clamp(-largest, largest)
    return logs.exp().nan_to_num(1.0).float()[:, None]
