"""A step's optimizer updates: which micro-batches make which.

A step is one set of games, and the unit of versions, schedules, checkpoints and MAX_STEPS. It makes
one update or several: HANABI_UPDATES_PER_STEP passes over all players' micro-batches, or, with
HANABI_UPDATE=sequential, these passes over one player's after the other's. With HANABI_MINIBATCHES
each pass makes an update for every part of the games (`minibatches`). Every update of a step
compares with the policy that sampled the step, as it was before the first of them.

**Sequential updates.** HAPPO (Kuba et al. 2022, arXiv 2109.11251) lets agent i_m, the m-th of a
random order, follow its clipped objective with M = (Π_{j<m} π_new^{i_j}(a^{i_j}|o) /
π_old^{i_j}(a^{i_j}|o)) · A(s, a). In Hanabi one player moves at a time. Where i_m moves the others
have no choice, so the product over that state is 1, and since the players' adapters share no
weights, the update would be that of independent players, bit by bit.

Here the advantages come from the returns of whole games, so the product goes over all replies of
the earlier players in the game: games of the old team stand for games of the team in which they
have moved already. It varies with the length of the game, so it is cut to [1 / MAX_WEIGHT,
MAX_WEIGHT].

Only what a game is worth is weighted (`MicroBatch.game_weights`). The KL term and the entropy bonus
keep the strength that their settings say, as the entropy term of HAPPO's own code, which M does not
multiply.
"""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from hanabi_grpo.settings import Settings
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.types import adapter_of, player_names

MAX_WEIGHT = 2.0
"""Largest weight of a game in a sequential update; its inverse is the smallest."""
EVERYBODY = ""
"""In the place of a player's name: the update is of all players."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One optimizer update."""

    micro_batches: tuple[MicroBatch, ...]
    """Of the players below and of nobody else whose data counts; at least one."""
    adapters: frozenset[str]
    """The adapters that move."""
    is_first_pass: bool
    """Whether these micro-batches are met for the first time in the step. The policy is still the
    one that sampled, unless another part of the step's games came before."""
    player: str = EVERYBODY
    """Whose update this is, in a sequential step."""
    last_of_player: str = EVERYBODY
    """The player whose last update of the step this is, in a sequential step."""


def player_order(settings: Settings, step: int) -> tuple[str, ...]:
    """Return the order of a sequential step, drawn anew for each (as in Kuba et al. 2022)."""
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
) -> list[Update]:
    """Return the updates of a step, in order: players, then passes, then parts.

    Args:
        batches: All micro-batches of this rank.
        settings: The run's, for HANABI_UPDATE and HANABI_UPDATES_PER_STEP.
            What HANABI_MINIBATCHES divided is in the micro-batches.
        step: Number of steps before this one.
        adapter_names: The run's adapters.
        active: Those of them that have data in this step and may move.
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
            updates.append(
                Update(
                    micro_batches=tuple(micro_batches),
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
    """Return per game Σ_t log π_new(a_t) − log π_old(a_t) of one player's replies, in nats.

    A game has several rows where each turn is a conversation of its own (HANABI_MEMORY=turn).

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


def sum_log_ratios(parts: Iterable[Mapping[int, float]]) -> dict[int, float]:
    """Return one player's log ratio per game from those of its micro-batches, on all ranks."""
    totals: dict[int, float] = {}
    for part in parts:
        for game, ratio in part.items():
            totals[game] = totals.get(game, 0.0) + ratio
    return totals


def game_weights(log_ratios: Sequence[Mapping[int, float]], games: Sequence[int]) -> torch.Tensor:
    """Return [rows, 1] weights of a later player's rows.

    Args:
        log_ratios: Of each earlier player, see `game_log_ratios`; a game without replies of an
            earlier player has the ratio 1.
        games: [rows] number of each row's game.
    """
    totals = []
    for game in games:
        ratios_of_game = [ratios.get(game, 0.0) for ratios in log_ratios]
        totals.append(sum(ratios_of_game))
    weights = torch.tensor(totals, dtype=torch.float64).exp()
    limited = weights.clamp(1 / MAX_WEIGHT, MAX_WEIGHT)
    return limited.nan_to_num(1.0).float()[:, None]
