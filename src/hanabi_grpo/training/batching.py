"""Turns episodes into micro-batches, each of which holds one player's trajectories.

There is one row per conversation, which is a player's whole game or one turn (HANABI_MEMORY): the
tokens that the sampler read and generated, in that order, with the loss on the replies. Every rank
computes the same plan from the same episodes, so that all ranks work on the same player at the same
time, as DeepSpeed's collectives require.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import NonFiniteError
from hanabi_grpo.training.advantages import clip, step_advantages, whiten
from hanabi_grpo.training.belief_labels import BeliefLabels, num_belief_tokens
from hanabi_grpo.training.estimators import (
    NOTHING_KNOWN,
    Estimator,
    EstimatorContext,
    TurnValues,
)
from hanabi_grpo.training.groups import flatten_groups, trained_groups
from hanabi_grpo.training.lessons import (
    Teaching,
    lesson_rows,
    measure_kl,
    num_lesson_tokens,
    teacher_gaps,
)
from hanabi_grpo.training.micro_batch import (
    PADDING_ROW_TOKENS,
    MicroBatch,
    TokenRow,
    collate,
)
from hanabi_grpo.training.minibatches import WHOLE_STEP, weights_by_part
from hanabi_grpo.training.model.prefix_tree import (
    PrefixOrder,
    cut_by_rows,
    cut_by_tokens,
    share_of,
)
from hanabi_grpo.training.thoughts import TrainedTokens, all_tokens
from hanabi_grpo.training.token_weights import LossUnit
from hanabi_grpo.types import DroppedGame, Episode, Turn, is_trained, player_name, task_name

MIN_GAMES = 2
"""Smallest group that has a baseline; with NUM_GENERATIONS=1 no baseline is needed."""
SHOWN_REASONS = 2
"""Number of reasons for dropped games that one sentence lists."""
_LARGEST = torch.finfo(torch.float32).max

Row = TypeVar("Row", bound=TokenRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageOptions:
    """How an estimator's advantages are processed before the loss."""

    whiten: bool = False
    """HANABI_WHITEN_ADVANTAGES."""
    clip: float | None = None
    """HANABI_ADVANTAGE_CLIP."""
    of_tokens: bool = False
    """HANABI_GAE_UNIT=token: there is one advantage per token instead of one per turn."""


UNTAUGHT = Teaching(teacher=0.0, reward=1.0)
"""The weights of a player without a teacher."""
PLAIN_ADVANTAGES = AdvantageOptions()
"""The estimator's advantages, unprocessed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPlan:
    """How a player's rows are split into this rank's micro-batches, see `cut_rows`."""

    tokens_per_micro_batch: int
    """Most tokens of a micro-batch; 0: count rows instead."""
    micro_batches_per_player: int
    """Number of micro-batches, if rows are counted."""
    rank: int
    world_size: int
    shares_prefixes: bool
    """Whether rows with a common prefix are kept together and computed as a tree."""


def usable_groups(
    groups: Sequence[Sequence[Episode]],
    dropped: Sequence[DroppedGame],
    min_games: int = MIN_GAMES,
) -> tuple[list[list[Episode]], list[str]]:
    """Return the groups that can be trained on, and a sentence for each task that lost games."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for game in dropped:
        reasons[task_name(game.suite, game.seed)].append(f"game {game.game}: {game.reason}")
    num_left: Counter[str] = Counter()
    too_small = []
    for group in groups:
        if not group:
            continue
        task = task_name(group[0].suite, group[0].seed)
        num_left[task] += len(group)
        if len(group) < min_games:
            too_small.append(task)
    problems = []
    for task in dict.fromkeys([*reasons, *too_small]):
        problem = f"task {task}: {num_left[task]} game(s) played"
        if task in reasons:
            num_dropped = len(reasons[task])
            listed = "; ".join(reasons[task][:SHOWN_REASONS])
            if num_dropped > SHOWN_REASONS:
                listed += "; …"
            num_games = num_dropped + num_left[task]
            problem = f"task {task}: {num_dropped} of {num_games} games dropped ({listed})"
        if task in too_small or num_left[task] < min_games:
            problem += f"; a group needs {min_games}, so the task is left out"
        problems.append(f"{problem}.")
    return [list(group) for group in groups if len(group) >= min_games], problems


def token_rows(
    groups: Sequence[Sequence[Episode]],
    player: int,
    estimator: Estimator,
    trained_seats: Sequence[str],
    *,
    context: EstimatorContext = NOTHING_KNOWN,
    unit: LossUnit = "token",
    options: AdvantageOptions = PLAIN_ADVANTAGES,
    trained: TrainedTokens = all_tokens,
    parts: Sequence[int] | None = None,
    with_steps: bool = False,
    teacher_kl: float | None = None,
) -> list[TokenRow]:
    """Return the rows of one seat's trained player over all groups.

    Games in which the player had no turn, or in which a partner held the seat, are excluded, also
    from the baseline.

    Args:
        groups: Per task, the games to train on.
        player: Number of the seat.
        estimator: Computes advantages from returns.
        trained_seats: Per seat, the adapter that is trained there, e.g. "player_0@7", or "" if the
            seat is not trained, see `seats.SeatAssignment`.
        context: What the estimator knows besides these games.
        unit: The unit that is weighted equally in the loss, see `token_weights`.
        options: How the estimator's advantages are processed.
        trained: Which tokens of a reply carry loss.
        parts: The part of each game of the step, see `minibatches`; None: the step is one part.
        with_steps: Whether rows record the step of the game of each reply token.
        teacher_kl: KL to a model that teaches the player, see `lessons.measure_kl`; None: no model
            teaches it.

    Raises:
        NonFiniteError: An advantage is infinite or not a number; rewards may be finite and still
            too large to compare.
    """
    own_groups = trained_groups(groups, player, trained_seats)
    advantages: TurnValues = []
    for group_advantages in step_advantages(own_groups, player, estimator, context):
        advantages.extend(group_advantages)
    episodes = flatten_groups(own_groups)
    numbers = []
    for number, episode in enumerate(flatten_groups(groups)):
        if is_trained(episode, player, trained_seats):
            numbers.append(number)
    lengths = []
    for episode in episodes:
        lengths.append([sum(trained(turn)) for turn in episode.trajectory(player)])
    if options.whiten:
        counted: Sequence[Sequence[int]] = lengths
        if options.of_tokens:
            counted = [_token_counts(episode.trajectory(player), trained) for episode in episodes]
        advantages = whiten(advantages, counted)
    if options.clip is not None:
        advantages = clip(advantages, options.clip)
    own_parts = [WHOLE_STEP if parts is None else parts[number] for number in numbers]
    weights = weights_by_part(lengths, own_parts, unit)
    rows: list[TokenRow] = []
    for number, episode, game_advantages, game_weights in zip(
        numbers, episodes, advantages, weights, strict=True
    ):
        largest_weight = max(game_weights, default=0.0)
        _check_finite(episode, player, game_advantages, largest_weight)
        turns = episode.trajectory(player)
        conversations: list[TokenRow] = []
        of_turns = _by_turn(turns, game_advantages, of_tokens=options.of_tokens)
        for turn, advantage, weight in zip(turns, of_turns, game_weights, strict=True):
            if turn.fresh or not conversations:
                conversations.append(
                    _empty_row(
                        number,
                        has_weights=unit != "token",
                        trains_all=trained is all_tokens,
                        with_steps=with_steps,
                        with_teacher=teacher_kl is not None,
                    )
                )
            gaps = None if teacher_kl is None else teacher_gaps(turn, teacher_kl)
            conversations[-1].append(turn, trained(turn), advantage, weight, gaps)
        rows += [row for row in conversations if any(row.mask)]
    return rows


def build_micro_batches(
    groups: Sequence[Sequence[Episode]],
    *,
    trained_seats: Sequence[str],
    players: Sequence[str],
    estimator: Estimator,
    context: EstimatorContext = NOTHING_KNOWN,
    cut: CutPlan,
    pad_id: int,
    device: torch.device,
    unit: LossUnit = "token",
    options: AdvantageOptions = PLAIN_ADVANTAGES,
    trained: TrainedTokens = all_tokens,
    parts: Sequence[int] | None = None,
    with_steps: bool = False,
    taught: Mapping[str, Teaching] | None = None,
    beliefs: BeliefLabels | None = None,
    setups: Sequence[Setup[Any]] = (),
) -> list[MicroBatch]:
    """Return this rank's micro-batches of one step, seat by seat, and part by part.

    An empty share becomes one row without loss, so that no rank waits for another.

    Args:
        groups: Per task, the games to train on, the same on every rank.
        trained_seats: See `token_rows`.
        players: Per seat, the run's player who holds it.
        estimator: Computes advantages from returns.
        context: What the estimator knows besides these games.
        cut: How rows are split into micro-batches.
        pad_id: Token id of the padding.
        device: Where the tensors go.
        unit: See `token_rows`.
        options: See `token_rows`.
        trained: See `token_rows`.
        parts: See `token_rows`. Every player has micro-batches of every part.
        with_steps: See `token_rows`.
        taught: How players with a teacher are taught, see `lessons`; None: no player has one.
        beliefs: Makes the rows of the belief loss; None: there is no belief loss.
        setups: Per task, its game; only the belief loss needs it.
    """
    if parts is None:
        parts = [WHOLE_STEP] * len(flatten_groups(groups))
    games_of_part = Counter(parts) or Counter([WHOLE_STEP])
    batches: list[MicroBatch] = []
    for seat, player in enumerate(players):
        teaching = (taught or {}).get(player, UNTAUGHT)
        teacher_kl = None
        if teaching.teacher:
            teacher_kl = measure_kl(groups, seat, trained_seats, trained)
        rows = token_rows(
            groups,
            seat,
            estimator,
            trained_seats,
            context=context,
            unit=unit,
            options=options,
            trained=trained,
            parts=parts,
            with_steps=with_steps,
            teacher_kl=teacher_kl,
        )
        if teaching.teacher:
            rows += lesson_rows(
                groups,
                seat,
                trained_seats,
                unit=unit,
                parts=parts,
                has_weights=unit != "token",
                trains_all=trained is all_tokens,
                with_steps=with_steps,
            )
        if beliefs is not None:
            rows += beliefs.rows(
                groups,
                setups,
                seat,
                player,
                trained_seats,
                has_weights=unit != "token",
                trains_all=trained is all_tokens,
                with_steps=with_steps,
                with_teacher=teacher_kl is not None,
            )
        for part, num_games in sorted(games_of_part.items()):
            rows_of_part = [row for row in rows if parts[row.game] == part]
            num_reply_tokens = sum(row.num_trained for row in rows_of_part)
            num_lessons = num_lesson_tokens(rows_of_part)
            num_answers = num_belief_tokens(rows_of_part)
            share_of_step = num_games / games_of_part.total()
            part_cut = replace(
                cut,
                micro_batches_per_player=ceil(share_of_step * cut.micro_batches_per_player),
            )
            for share in cut_shares(rows_of_part, part_cut):
                batch = collate(
                    share.rows,
                    player,
                    num_reply_tokens,
                    pad_id,
                    device,
                    cut.shares_prefixes,
                    part,
                )
                batch.weight = share.weight
                batch.num_lesson_tokens = num_lessons
                batch.teacher_weight = teaching.teacher
                batch.reward_weight = teaching.reward
                if num_answers and beliefs is not None:
                    batch.num_belief_tokens = num_answers
                    batch.belief_weight = beliefs.weights[player]
                batches.append(batch)
    return batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(Generic[Row]):
    """This rank's part of one micro-batch."""

    rows: list[Row]
    """Empty if the micro-batch has fewer rows than there are ranks."""
    weight: float
    """Weight of the heaviest rank's part, see `PrefixOrder.weight`; 0 without trees."""


def cut_rows(rows: list[Row], cut: CutPlan) -> list[list[Row]]:
    """Return this rank's rows of each micro-batch of one player, see `cut_shares`."""
    return [share.rows for share in cut_shares(rows, cut)]


def cut_shares(rows: list[Row], cut: CutPlan) -> list[Share[Row]]:
    """Return this rank's part of each micro-batch of one player.

    Rows are sorted by length before they are split, to reduce padding, and distributed to the ranks
    in turn. With `shares_prefixes`, rows with a common prefix stay together. A player has as many
    micro-batches as its tokens fill, the same number on every rank.
    """
    if cut.shares_prefixes:
        return _cut_by_prefix(rows, cut)
    ordered = sorted(rows, key=lambda row: -len(row.ids))
    if cut.tokens_per_micro_batch:
        lengths = [len(row.ids) for row in ordered]
        spans = cut_by_tokens(lengths, cut.tokens_per_micro_batch, cut.world_size)
    else:
        spans = cut_by_rows(len(rows), cut.micro_batches_per_player)
    shares = []
    for start, end in spans:
        rows_of_span = ordered[start:end]
        share = Share(rows=rows_of_span[cut.rank :: cut.world_size], weight=0.0)
        shares.append(share)
    return shares


def _cut_by_prefix(rows: list[Row], cut: CutPlan) -> list[Share[Row]]:
    if not rows:
        num_empty = 1 if cut.tokens_per_micro_batch else cut.micro_batches_per_player
        return [Share(rows=[], weight=float(PADDING_ROW_TOKENS)) for _ in range(num_empty)]
    sequences = []
    for row in rows:
        used_ids = row.ids[: row.num_computed]
        sequences.append(np.array(used_ids, dtype=np.int64))
    order = PrefixOrder(sequences)
    ordered = [rows[number] for number in order.order]
    if cut.tokens_per_micro_batch:
        spans = order.cut(cut.tokens_per_micro_batch, cut.world_size)
    else:
        spans = cut_by_rows(len(rows), cut.micro_batches_per_player)
    shares = []
    for span in spans:
        start, end = share_of(span, cut.rank, cut.world_size)
        weight = order.heaviest_share(span, cut.world_size)
        shares.append(Share(rows=ordered[start:end], weight=weight))
    return shares


def _empty_row(
    game: int, *, has_weights: bool, trains_all: bool, with_steps: bool, with_teacher: bool
) -> TokenRow:
    return TokenRow(
        ids=[],
        mask=[],
        logprobs=[],
        advantages=[],
        weights=[] if has_weights else None,
        trained=None if trains_all else [],
        steps=[] if with_steps else None,
        teacher_gaps=[] if with_teacher else None,
        game=game,
    )


def _token_counts(turns: Sequence[Turn], trained: TrainedTokens) -> list[int]:
    """Return, for each reply token of the turns, 1 if it carries loss, else 0."""
    counts: list[int] = []
    for turn in turns:
        counts.extend(int(carries_loss) for carries_loss in trained(turn))
    return counts


def _by_turn(
    turns: Sequence[Turn], advantages: Sequence[float], *, of_tokens: bool
) -> list[list[float]]:
    """Return, for each turn, the advantage of each token of its reply.

    Args:
        turns: One player's turns in one game.
        advantages: One per turn, or one per reply token of all turns.
        of_tokens: Whether there is one advantage per token.
    """
    if not of_tokens:
        by_turn = []
        for turn, advantage in zip(turns, advantages, strict=True):
            by_turn.append([advantage] * len(turn.reply_ids))
        return by_turn
    tokens = iter(advantages)
    return [list(islice(tokens, len(turn.reply_ids))) for turn in turns]


def _check_finite(
    episode: Episode, player: int, advantages: Sequence[float], weight: float
) -> None:
    for advantage in advantages:
        if not (abs(advantage) <= _LARGEST and abs(advantage * weight) <= _LARGEST):
            raise NonFiniteError(
                f"{player_name(player)}, task {task_name(episode.suite, episode.seed)}, game "
                f"{episode.game}: advantages {list(advantages)}; they must be finite. Use smaller "
                "reward weights (reward_* in the dataset's env_config)."
            )
