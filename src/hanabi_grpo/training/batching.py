"""Episodes in, micro-batches out. Each micro-batch holds one player's trajectories and uses only
its adapter.

One sequence per conversation, a player's whole game or a turn: the tokens that the server sampled,
in the order in which it saw them, with the loss on the replies. Every rank computes the same plan
from the same episodes, so that all work on the same player at the same micro-step, which
DeepSpeed's collectives need."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from swift.rl_core.data import GRPOBatch

from hanabi_grpo.errors import NonFiniteError
from hanabi_grpo.training.advantages import step_advantages, trained_groups
from hanabi_grpo.training.estimators import NOTHING_KNOWN, Estimator, EstimatorContext
from hanabi_grpo.training.model.prefix_tree import (
    PrefixOrder,
    PrefixTree,
    cut_by_rows,
    cut_by_tokens,
    prefix_tree,
    share_of,
)
from hanabi_grpo.training.token_weights import LossUnit, token_weights
from hanabi_grpo.types import DroppedGame, Episode, is_trained, player_name, task_name

MIN_GAMES = 2
"""A group of fewer has no baseline."""
_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One player's trajectory as aligned columns, all of the same length."""

    ids: list[int]
    mask: list[bool]
    """True on reply tokens."""
    logprobs: list[float]
    """The sampler's, on reply tokens; 0 elsewhere."""
    advantages: list[float]
    """Of the reply tokens' turns, times the tokens' weights in the loss; 0 elsewhere."""
    game: int = -1
    """Number of the game in the step, the same for all its players and on every rank; -1: a row
    without loss.
    """


Row = TypeVar("Row", bound=TokenRow)


@dataclass
class PlayerBatch(GRPOBatch):
    """ms-swift's batch, and whose it is."""

    player: str = ""
    has_data: bool = False
    """Whether the player has a token in the loss on any rank."""
    games: tuple[int, ...] = ()
    """Per row the number of its game, see `TokenRow`."""
    shaping: torch.Tensor | None = None
    """What `add_entropy_bonus` added to the advantages; None: nothing."""
    tree: PrefixTree | None = None
    """Of its rows, where what they begin with alike is computed once."""


def usable_groups(
    groups: Sequence[Sequence[Episode]], dropped: Sequence[DroppedGame]
) -> tuple[list[list[Episode]], list[str]]:
    """Return the groups that can be trained on, and a sentence for each task that lost games."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for one in dropped:
        reasons[task_name(one.suite, one.seed)].append(f"game {one.game}: {one.reason}")
    left = Counter(task_name(episode.suite, episode.seed) for group in groups for episode in group)
    short = [
        task_name(group[0].suite, group[0].seed) for group in groups if 0 < len(group) < MIN_GAMES
    ]
    sentences = []
    for name in dict.fromkeys([*reasons, *short]):
        sentence = f"task {name}: {left[name]} game(s) played"
        if why := reasons.get(name):
            shown = "; ".join(why[:2]) + ("; …" if len(why) > 2 else "")
            sentence = f"task {name}: {len(why)} of {left[name] + len(why)} games dropped ({shown})"
        too_few = name in short or left[name] < MIN_GAMES
        sentences.append(
            f"{sentence}; a group needs {MIN_GAMES}, so it is left out."
            if too_few
            else f"{sentence}."
        )
    return [list(group) for group in groups if len(group) >= MIN_GAMES], sentences


def sequences_of(
    groups: Sequence[Sequence[Episode]],
    player: int,
    estimator: Estimator,
    own: Sequence[str],
    *,
    context: EstimatorContext = NOTHING_KNOWN,
    unit: LossUnit = "token",
) -> list[TokenRow]:
    """Return a player's sequences over all groups; `unit`: see `token_weights`.

    `own` are the words of the seats that are trained, here and below, see `partners.own_seats`.

    Games in which it had no turn, or a partner its seat, are left out, of the baseline as well. A
    NonFiniteError where an advantage is infinite or no number: rewards may be finite and too large
    to compare."""
    trained = trained_groups(groups, player, own)
    advantages = step_advantages(trained, player, estimator, context)
    values = [game for group in advantages for game in group]
    episodes = [episode for group in trained for episode in group]
    everywhere = [episode for group in groups for episode in group]
    numbers = [
        number for number, episode in enumerate(everywhere) if is_trained(episode, player, own)
    ]
    weights = token_weights(
        [[len(one.reply_ids) for one in episode.trajectory(player)] for episode in episodes], unit
    )
    found = []
    for number, episode, game_values, game_weights in zip(
        numbers, episodes, values, weights, strict=True
    ):
        weighted = [value * weight for value, weight in zip(game_values, game_weights, strict=True)]
        if not all(abs(value) <= _LARGEST for value in (*game_values, *weighted)):
            raise NonFiniteError(
                f"{player_name(player)}, task {task_name(episode.suite, episode.seed)}, game "
                f"{episode.game}: "
                f"advantages {game_values}; they must be finite. Use smaller reward weights "
                "(reward_* in the dataset's "
                "env_config)."
            )
        rows: list[TokenRow] = []
        for turn, value in zip(episode.trajectory(player), weighted, strict=True):
            if turn.fresh or not rows:
                rows.append(TokenRow(ids=[], mask=[], logprobs=[], advantages=[], game=number))
            row, skipped, said = rows[-1], len(turn.prompt_ids), len(turn.reply_ids)
            row.ids.extend((*turn.prompt_ids, *turn.reply_ids))
            row.mask.extend([False] * skipped + [True] * said)
            row.logprobs.extend([0.0] * skipped + [*turn.logprobs])
            row.advantages.extend([0.0] * skipped + [value] * said)
        found += [row for row in rows if any(row.mask)]
    return found


def plan_batches(
    groups: Sequence[Sequence[Episode]],
    *,
    own: Sequence[str],
    players: Sequence[str],
    micro_batches_per_player: int,
    rank: int,
    world_size: int,
    estimator: Estimator,
    pad_id: int,
    device: torch.device,
    context: EstimatorContext = NOTHING_KNOWN,
    tokens_per_micro_batch: int = 0,
    unit: LossUnit = "token",
    shared: bool = False,
) -> list[dict[str, Any]]:
    """Return this rank's micro-batches of one step, seat by seat; `players` says who of the run
    sits in each.

    Sequences are sorted by length before they are cut, so that little is padded, and dealt to the
    ranks in turn; with `shared`, so that those that begin alike are together. A share that holds
    nothing becomes one row without loss, so that no rank waits for another. A player has as many
    micro-batches as its tokens fill, the same number on every rank; without
    `tokens_per_micro_batch`, `micro_batches_per_player` of equally many sequences."""
    batches: list[dict[str, Any]] = []
    for seat, player in enumerate(players):
        rows = sequences_of(groups, seat, estimator, own, context=context, unit=unit)
        num_tokens = sum(sum(one.mask) for one in rows)
        tokens, parts = tokens_per_micro_batch, micro_batches_per_player
        shares = cut_rows(
            rows, tokens=tokens, parts=parts, rank=rank, world_size=world_size, shared=shared
        )
        batches += [collate(share, player, num_tokens, pad_id, device, shared) for share in shares]
    return batches


def cut_rows(
    rows: list[Row], *, tokens: int, parts: int, rank: int, world_size: int, shared: bool
) -> list[list[Row]]:
    """Return this rank's rows of each micro-batch of one player, see `plan_batches`."""
    if not shared:
        ordered = sorted(rows, key=lambda one: -len(one.ids))
        lengths = [len(one.ids) for one in ordered]
        spans = (
            cut_by_tokens(lengths, tokens, world_size) if tokens else cut_by_rows(len(rows), parts)
        )
        return [ordered[start:end][rank::world_size] for start, end in spans]
    if not rows:
        return [[] for _ in range(1 if tokens else parts)]
    # What comes after the last reply is not computed.
    last = [max(place for place, said in enumerate(one.mask) if said) for one in rows]
    order = PrefixOrder(
        [np.array(one.ids[:end], dtype=np.int64) for one, end in zip(rows, last, strict=True)]
    )
    ordered = [rows[number] for number in order.order]
    spans = order.cut(tokens, world_size) if tokens else cut_by_rows(len(rows), parts)
    return [ordered[slice(*share_of(span, rank, world_size))] for span in spans]


def useful_share(batches: Sequence[Mapping[str, Any]]) -> float:
    """Return tokens of sequences over tokens computed: below 1 with padding, above where beginnings
    are shared.
    """
    computed = 0
    for batch in batches:
        tree = batch["grpo_batch"].tree
        computed += (batch["model_inputs"]["input_ids"] if tree is None else tree.ids).numel()
    return sum(int(batch["grpo_batch"].seq_lengths.sum()) for batch in batches) / max(computed, 1)


def collate(
    rows: Sequence[TokenRow],
    player: str,
    num_tokens: int,
    pad_id: int,
    device: torch.device,
    shared: bool = False,
) -> dict[str, Any]:
    """Return a player's rows as one micro-batch, padded on the right to the longest; without rows
    one without loss.

    The loss is divided by `num_tokens`. With `shared` it gets a tree.
    """
    rows = rows or [
        TokenRow(ids=[pad_id] * 2, mask=[False] * 2, logprobs=[0.0] * 2, advantages=[0.0] * 2)
    ]
    width = max(len(row.ids) for row in rows)

    def column(values: Iterable[Sequence[float]], fill: float, dtype: torch.dtype) -> torch.Tensor:
        padded = [[*row, *[fill] * (width - len(row))] for row in values]
        return torch.tensor(padded, dtype=dtype, device=device)

    ids = column((row.ids for row in rows), pad_id, torch.long)
    attention = column(([1] * len(row.ids) for row in rows), 0, torch.long)
    # Position t of these holds the token at t + 1: the first token of a sequence is never
    # predicted.
    mask = column((row.mask for row in rows), False, torch.bool)[:, 1:]
    return {
        "model_inputs": {"input_ids": ids, "attention_mask": attention},
        "grpo_batch": PlayerBatch(
            completion_mask=mask,
            truncated_mask=torch.zeros(len(rows), dtype=torch.bool, device=device),
            seq_lengths=attention.sum(1),
            rollout_per_token_logps=column((row.logprobs for row in rows), 0.0, torch.float32)[
                :, 1:
            ],
            advantages=column((row.advantages for row in rows), 0.0, torch.float32)[:, 1:],
            # The loss divides by this player's tokens of the whole step, so that neither the cut
            # into micro-batches nor another player's data changes its gradient.
            num_items_in_batch=torch.tensor(max(num_tokens, 1), device=device),
            logits_to_keep=width - 1,
            player=player,
            has_data=num_tokens > 0,
            games=tuple(row.game for row in rows),
            tree=prefix_tree(ids, mask) if shared else None,
        ),
    }
