"""The KL of players to the reference policy, its cost, and the adaptation of its weight.

    cost of a reply = β_p Σ_t (log π_sampler(a_t) − log π_ref(a_t))      HANABI_KL_IN=reward
    β_p ← β_p (1 + K e),   e = clip(KL_p / target − 1, −1/5, 1/5)        HANABI_KL_TARGET

With HANABI_KL_IN=reward the cost is part of a reply's reward, so it goes through the estimator. Its
mean over a player's own samples is β KL(π ‖ π_ref), and its gradient is the gradient of that, which
is not true of the term in the loss (see `loss.kl_estimate`). The estimator `turn` charges the cost
to the reply itself; other estimators charge it to all turns that they credit with the game, or with
later rewards.

β_p starts at BETA. Each player has its own, because the KL of one player must not affect another.
KL_p is the mean of `loss.kl_estimate` over the player's trained tokens of the step, in nats per
token; the weight of a step is determined by the earlier steps.

Source: Ziegler et al. 2019 (arXiv 1909.08593), section 2.2: KL in the reward, and the controller
with K = 0.1. MARSHAL and ROLL multiply e by games / `kl_horizon` instead of K.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from accelerate.utils import gather_object

from hanabi_grpo.training.batching import CutPlan, cut_rows
from hanabi_grpo.training.groups import flatten_groups
from hanabi_grpo.training.loss import kl_estimate
from hanabi_grpo.training.micro_batch import MicroBatch, TokenRow, collate
from hanabi_grpo.training.reference import Reference
from hanabi_grpo.training.thoughts import TrainedTokens
from hanabi_grpo.types import Episode, is_trained

GAIN = 0.1
"""K of the controller."""
LARGEST_ERROR = 0.2
"""Largest |e|."""

Costs = Mapping[int, Mapping[int, Sequence[float]]]
"""The cost of each of a seat's turns in nats, by seat and number of the game."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRow(TokenRow):
    """A conversation of one player, with the position of each of its replies."""

    replies: list[tuple[int, int, int]] = field(default_factory=list)
    """(number among the player's turns of the game, first token, one past the last token)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredKl:
    """A step's distance from the reference."""

    by_player: Mapping[str, float]
    """Mean over each player's trained tokens, in nats; players without tokens are left out."""
    mean: float | None = None
    """Mean over the trained tokens of all players, in nats; None without tokens."""
    costs: Costs = field(default_factory=dict)
    """Costs in nats, not multiplied by β; only with HANABI_KL_IN=reward."""


def adapted(weight: float, kl: float, target: float) -> float:
    """Return β after a step, see the module's docstring.

    Args:
        weight: β of the step.
        kl: The player's KL in the step, in nats per token.
        target: HANABI_KL_TARGET.
    """
    error = min(max(kl / target - 1, -LARGEST_ERROR), LARGEST_ERROR)
    return weight * (1 + GAIN * error)


def adapted_weights(
    weights: Mapping[str, float], kl_of: Mapping[str, float], target: float | None
) -> dict[str, float]:
    """Return each player's β after a step; it is unchanged without a target or without tokens.

    Args:
        weights: β of the step by player.
        kl_of: KL of the step by player.
        target: HANABI_KL_TARGET.
    """
    after = dict(weights)
    if target is not None:
        for player, kl in kl_of.items():
            after[player] = adapted(weights[player], kl, target)
    return after


def measure_batches(batches: Sequence[MicroBatch]) -> dict[str, float]:
    """Return each player's KL over all processes, from micro-batches with reference logprobs."""
    parts: list[tuple[str, float, int]] = []
    for batch in batches:
        if batch.reference_logprobs is None:
            raise RuntimeError(f"{batch.player}: a micro-batch has no reference logprobs.")
        parts.append(_kl_sum(batch, batch.reference_logprobs))
    return _means(gather_object(parts))


def measure_costs(
    groups: Sequence[Sequence[Episode]],
    *,
    trained_seats: Sequence[str],
    players: Sequence[str],
    reference: Reference,
    trained: TrainedTokens,
    cut: CutPlan,
    pad_id: int,
    device: torch.device,
) -> MeasuredKl:
    """Return each reply's cost in nats, and each player's KL; all processes call it together.

    Args:
        groups: The step's groups.
        trained_seats: Per seat, the adapter that is trained there, see `seats.SeatAssignment`.
        players: Per seat, the run's player who holds it.
        reference: The reference policy.
        trained: Which tokens of a reply carry loss; the others cost nothing.
        cut: How rows are split into micro-batches.
        pad_id: Token id of the padding.
        device: Where the tensors go.
    """
    parts: list[tuple[str, float, int]] = []
    replies: list[tuple[int, int, int, float]] = []
    with reference.in_use():
        for seat, player in enumerate(players):
            for rows in cut_rows(reply_rows(groups, seat, trained_seats, trained), cut):
                batch = collate(rows, player, 1, pad_id, device, cut.shares_prefixes)
                logprobs = reference.logprobs(batch)
                parts.append(_kl_sum(batch, logprobs))
                difference = torch.where(batch.trained_mask, batch.sampler_logprobs - logprobs, 0.0)
                for row, of_tokens in zip(rows, difference.double().cpu(), strict=False):
                    for number, start, end in row.replies:
                        # Position t holds the value of the token at t + 1.
                        cost = float(of_tokens[start - 1 : end - 1].sum())
                        replies.append((seat, row.game, number, cost))
    costs: dict[int, dict[int, list[float]]] = {}
    for seat in range(len(players)):
        costs[seat] = {}
        for game, episode in enumerate(flatten_groups(groups)):
            if is_trained(episode, seat, trained_seats):
                costs[seat][game] = [0.0] * len(episode.trajectory(seat))
    for seat, game, number, cost in gather_object(replies):
        costs[seat][game][number] = cost
    parts = gather_object(parts)
    num_tokens = sum(count for _, _, count in parts)
    mean = sum(total for _, total, _ in parts) / num_tokens if num_tokens else None
    return MeasuredKl(by_player=_means(parts), mean=mean, costs=costs)


def reply_rows(
    groups: Sequence[Sequence[Episode]],
    seat: int,
    trained_seats: Sequence[str],
    trained: TrainedTokens,
) -> list[ReplyRow]:
    """Return the conversations of a trained seat, divided as in `batching.token_rows`.

    Args:
        groups: The step's groups.
        seat: Number of the seat.
        trained_seats: Per seat, the adapter that is trained there.
        trained: Which tokens of a reply carry loss.
    """
    rows: list[ReplyRow] = []
    for game, episode in enumerate(flatten_groups(groups)):
        if not is_trained(episode, seat, trained_seats):
            continue
        row: ReplyRow | None = None
        for number, turn in enumerate(episode.trajectory(seat)):
            if row is None or turn.fresh:
                row = ReplyRow(ids=[], mask=[], logprobs=[], advantages=[], trained=[], game=game)
                rows.append(row)
            row.append(turn, trained(turn))
            end = len(row.ids)
            row.replies.append((number, end - len(turn.reply_ids), end))
    return [row for row in rows if any(row.mask)]


def _kl_sum(batch: MicroBatch, reference: torch.Tensor) -> tuple[str, float, int]:
    estimates = kl_estimate(batch.sampler_logprobs, reference)
    mask = batch.trained_mask
    total = torch.where(mask, estimates, 0.0).double().sum()
    return batch.player, float(total), int(mask.sum())


def _means(parts: Sequence[tuple[str, float, int]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for player, total, count in parts:
        sums[player] = sums.get(player, 0.0) + total
        counts[player] = counts.get(player, 0) + count
    return {player: sums[player] / counts[player] for player in sums if counts[player]}
