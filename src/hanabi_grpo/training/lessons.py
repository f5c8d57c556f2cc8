"""Learning from a teacher's labels (HANABI_TEACHER): rows with its replies, weights, and figures.

    L_teacher = w / M · Σ_t u_t (−log π(a_t | s))

over the M tokens t of the replies that the teacher would have given on the player's own turns, each
after the prompt of that turn: cross-entropy on the states that the player itself visits. The term
is added to the player's loss (`loss`). Like the policy loss, it is a mean over the player's own
tokens of the step over all processes, and it does not affect any other player. u is the weight of a
token with HANABI_LOSS_UNIT, among the teacher's tokens; w decreases over HANABI_TEACHER_STEPS.

If the teacher samples its reply and knows the probability of each one (`envs.base.MixingPolicy`),
all its replies are targets, each weighted by its probability p:

    L_teacher = w / M · Σ_turns Σ_k p_k Σ_t u_t (−log π(a_kt | s)),    M = Σ_turns Σ_k p_k n_k

with n_k tokens in reply k. That is the expected loss above over the teacher's replies. Its minimum
is the teacher's own entropy, and it exceeds the minimum by KL(teacher ‖ player), turn by turn.

Each reply of a teacher is a separate row: the conversation up to the turn, then the reply. With
shared prefixes (`model.prefix_tree`) a row costs only its reply's tokens, and nothing if the player
said the same.

A teacher that is a model scores the player's own replies, and adds to the advantage of each of
their tokens

    b'_t = w · (log p_teacher(a_t | s) − log p_player(a_t | s) − mean),

with the mean over the player's tokens that carry loss. It is the score-function gradient of
−w · KL(player ‖ teacher), token by token on the player's own states: on-policy distillation.

Source: DAgger (Ross, Gordon and Bagnell 2011, arXiv 1011.0686); combined with a reward and with a
decreasing weight: kickstarting (Schmitt et al. 2018, arXiv 1803.03835). Distillation on the
student's own samples: Agarwal et al. 2023 (arXiv 2306.13649); with reverse KL: Gu et al. 2023
(arXiv 2306.08543).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch

from hanabi_grpo.envs.texts import has_thought
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.teachers import parse_teachers
from hanabi_grpo.training.groups import flatten_groups
from hanabi_grpo.training.micro_batch import MicroBatch, TokenRow
from hanabi_grpo.training.minibatches import weights_by_part
from hanabi_grpo.training.thoughts import TrainedTokens, all_tokens
from hanabi_grpo.training.token_weights import LossUnit
from hanabi_grpo.types import Episode, ReplyKind, Turn, is_trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Teaching:
    """Weights of a teacher's labels and of the reward for a player in a step."""

    teacher: float
    """Weight of the teacher's cross-entropy, or of its logprobs."""
    reward: float
    """Weight of the advantages."""


def teaching_at(settings: Settings, step: int) -> dict[str, Teaching]:
    """Return the weights of each player with a teacher in a step.

    Args:
        settings: The run's settings.
        step: Number of steps before this one.
    """
    left = 1.0
    if settings.teacher_steps:
        left = max(0.0, 1 - step / settings.teacher_steps)
    taught = {}
    for player in parse_teachers(settings):
        taught[player] = Teaching(
            teacher=settings.teacher_weight_of(player) * left,
            reward=settings.reward_weight_of(player),
        )
    return taught


def lesson_rows(
    groups: Sequence[Sequence[Episode]],
    player: int,
    trained_seats: Sequence[str],
    *,
    unit: LossUnit,
    parts: Sequence[int],
    has_weights: bool,
    trains_all: bool,
    with_steps: bool,
) -> list[TokenRow]:
    """Return a row for each reply with which the teacher labeled a turn of one seat's player.

    The last three arguments are the columns of the rows of replies, because all rows of a
    micro-batch have the same columns.

    Args:
        groups: Per task, the games to train on.
        player: Number of the seat.
        trained_seats: Per seat, the adapter that is trained there, see `batching.token_rows`.
        unit: The unit that is weighted equally, see `token_weights`.
        parts: The part of each game of the step, see `minibatches`.
        has_weights: Whether rows have weights.
        trains_all: Whether all tokens of a reply carry loss.
        with_steps: Whether rows record the step of the game of each reply token.
    """
    games: list[tuple[int, tuple[Turn, ...]]] = []
    for number, episode in enumerate(flatten_groups(groups)):
        if is_trained(episode, player, trained_seats):
            games.append((number, episode.trajectory(player)))
    lengths = [[_expected_length(turn) for turn in turns] for _, turns in games]
    weights = weights_by_part(lengths, [parts[number] for number, _ in games], unit)
    rows = []
    for (number, turns), game_weights in zip(games, weights, strict=True):
        conversation: list[int] = []
        for turn, weight in zip(turns, game_weights, strict=True):
            before = [] if turn.fresh else conversation
            conversation = [*before, *turn.prompt_ids, *turn.reply_ids]
            for lesson_ids, chance in _labels(turn):
                prompt = [*before, *_prompt_ids(turn)]
                row = TokenRow.unsampled(
                    prompt,
                    lesson_ids,
                    game=number,
                    has_weights=has_weights,
                    trains_all=trains_all,
                    with_steps=with_steps,
                    lesson=[0.0] * len(prompt) + [weight * chance] * len(lesson_ids),
                    lesson_chance=chance,
                )
                rows.append(row)
    return rows


def measure_kl(
    groups: Sequence[Sequence[Episode]],
    player: int,
    trained_seats: Sequence[str],
    trained: TrainedTokens = all_tokens,
) -> float | None:
    """Return the mean over tokens of log p_player − log p_teacher of a seat, in nats.

    It estimates KL(player ‖ teacher). None if no model scored any reply of the player.

    Args:
        groups: The games of all ranks.
        player: Number of the seat.
        trained_seats: Per seat, the adapter whose games count.
        trained: Which tokens of a reply carry loss; the mean is over these.
    """
    differences: list[float] = []
    for episode in flatten_groups(groups):
        if is_trained(episode, player, trained_seats):
            for turn in episode.trajectory(player):
                gaps = _raw_gaps(turn)
                if gaps:
                    differences.extend(-gap for gap in compress(gaps, trained(turn)))
    return sum(differences) / len(differences) if differences else None


def teacher_gaps(turn: Turn, kl: float) -> list[float]:
    """Return log p_teacher − log p_player + KL for each token of a reply.

    Adding the KL makes the mean over the tokens that carry loss 0. The constant does not change the
    expected gradient and lowers its variance, as for the entropy bonus. Tokens of a reply that was
    not scored get 0.

    Args:
        turn: The turn.
        kl: Returned by `measure_kl`.
    """
    gaps = [gap + kl for gap in _raw_gaps(turn)]
    return gaps or [0.0] * len(turn.reply_ids)


def num_lesson_tokens(rows: Sequence[TokenRow]) -> float:
    """Return the number of a teacher's tokens in the rows, each weighted by its probability."""
    total: float = 0
    for row in rows:
        total += row.lesson_chance * sum(weight > 0 for weight in row.lesson or ())
    return total


def lesson_figures(
    groups: Sequence[Sequence[Episode]],
    seats: Sequence[str],
    players: Sequence[str],
    trained: TrainedTokens = all_tokens,
) -> dict[str, float]:
    """Return how well each player agrees with its teacher; nothing for players without a teacher.

    - `teacher_agreement`: share of the player's labeled turns on which its own legal reply had the
      teacher's action. If the teacher samples its actions, it is the mean probability that the
      teacher does the same, so even a copy of the teacher is below 1.
    - `teacher_share`: share of the player's turns that are labeled.
    - `teacher_plays`: share of its turns on which the teacher played instead (absent at 0).
    - `teacher_skips_thought`: share of its labeled turns on which the player wrote a thought and
      the label has none (absent at 0).
    - `teacher_kl`, for a teacher that is a model: the mean of log p_player − log p_teacher over the
      player's tokens that carry loss, in nats, an estimate of KL(player ‖ teacher).

    Args:
        groups: The games as they were drawn.
        seats: Per seat, the run's own adapter, as episodes record it.
        players: Per seat, the player who holds it.
        trained: Which tokens of a reply carry loss.
    """
    figures: dict[str, float] = {}
    episodes = flatten_groups(groups)
    for seat, player in enumerate(players):
        turns: list[Turn] = []
        for episode in episodes:
            if is_trained(episode, seat, seats):
                turns.extend(episode.trajectory(seat))
        kl = measure_kl(groups, seat, seats, trained)
        if kl is not None:
            figures[f"{player}/teacher_kl"] = kl
        labelled = [turn for turn in turns if turn.lesson is not None and turn.lesson.action]
        if not labelled:
            continue
        own = [turn for turn in labelled if turn.lesson is not None and not turn.lesson.plays]
        if own:
            figures[f"{player}/teacher_agreement"] = sum(map(_agreement, own)) / len(own)
            num_skipped = sum(map(_skips_thought, own))
            if num_skipped:
                figures[f"{player}/teacher_skips_thought"] = num_skipped / len(own)
        figures[f"{player}/teacher_share"] = len(labelled) / len(turns)
        if len(own) < len(labelled):
            figures[f"{player}/teacher_plays"] = (len(labelled) - len(own)) / len(turns)
    return figures


def weight_figures(taught: Mapping[str, Teaching]) -> dict[str, float]:
    """Return the weight of each player's teacher in a step."""
    return {f"{player}/teacher_weight": teaching.teacher for player, teaching in taught.items()}


class TaughtTokens:
    """How surprising a teacher's tokens were to each player in the step in progress."""

    def __init__(self) -> None:
        """Start empty."""
        self._surprise: dict[str, float] = {}
        """By player, the sum in nats over this process's tokens, weighted by their probabilities.
        """
        self._entropy: dict[str, float] = {}
        """By player whose teacher samples, the teacher's entropy in nats over this process's
        replies."""
        self._parts: dict[tuple[str, int], float] = {}
        """By player and part of the step, the number of tokens on all processes."""

    def add(self, batch: MicroBatch, logprobs: torch.Tensor) -> None:
        """Count a micro-batch; call it once for each.

        Args:
            batch: The micro-batch.
            logprobs: [rows, tokens] logprobs of the player before it learns from the micro-batch.
        """
        if not batch.num_lesson_tokens:
            return
        surprise = 0.0
        if batch.lesson_weights is not None:
            on_lessons = batch.lesson_weights > 0
            said = logprobs.detach().double()
            if batch.lesson_chances is not None:
                chances = batch.lesson_chances.double()
                said = said * chances
                entropy = -float(torch.xlogy(chances, chances).sum())
                self._entropy[batch.player] = self._entropy.get(batch.player, 0.0) + entropy
            surprise = -float(said[on_lessons].sum())
        self._surprise[batch.player] = self._surprise.get(batch.player, 0.0) + surprise
        self._parts[batch.player, batch.part] = batch.num_lesson_tokens

    def take(self, gather: Callable[[list[Any]], list[Any]]) -> dict[str, float]:
        """Return `teacher_loss` of each player, in nats per token, and reset.

        If a player's teacher samples its replies, also return `teacher_divergence`: the loss minus
        the entropy of the teacher's replies, which is KL(teacher ‖ player).

        Args:
            gather: (this process's list) -> the lists of all processes as one list.
        """
        # The players with tokens are the same on every process, so either all of them gather or
        # none does.
        if not self._parts:
            return {}
        totals: dict[str, float] = {}
        for player, surprise in gather(list(self._surprise.items())):
            totals[player] = totals.get(player, 0.0) + surprise
        entropies: dict[str, float] = {}
        for player, entropy in gather(list(self._entropy.items())):
            entropies[player] = entropies.get(player, 0.0) + entropy
        counts: dict[str, float] = {}
        for (player, _), count in self._parts.items():
            counts[player] = counts.get(player, 0) + count
        self._surprise = {}
        self._entropy = {}
        self._parts = {}
        figures = {f"{player}/teacher_loss": totals[player] / counts[player] for player in totals}
        for player, entropy in entropies.items():
            divergence = (totals[player] - entropy) / counts[player]
            figures[f"{player}/teacher_divergence"] = divergence
        return figures


def _labels(turn: Turn) -> list[tuple[tuple[int, ...], float]]:
    """Return the replies that a turn is labeled with, each with its probability."""
    if turn.lesson is None or not turn.lesson.reply_ids:
        return []
    if not turn.lesson.replies:
        return [(turn.lesson.reply_ids, 1.0)]
    return [(reply.reply_ids, reply.chance) for reply in turn.lesson.replies]


def _expected_length(turn: Turn) -> float:
    """Return the expected number of tokens in a teacher's reply."""
    return sum(chance * len(ids) for ids, chance in _labels(turn))


def _raw_gaps(turn: Turn) -> list[float]:
    """Return log p_teacher − log p_player of each token; [] if the reply was not scored."""
    if turn.lesson is None or not turn.lesson.logprobs:
        return []
    pairs = zip(turn.lesson.logprobs, turn.logprobs, strict=True)
    return [by_teacher - by_player for by_teacher, by_player in pairs]


def _prompt_ids(turn: Turn) -> tuple[int, ...]:
    """Return the ids before a turn's reply, whether the player or the teacher made it."""
    if turn.lesson is not None and turn.lesson.plays:
        return turn.prompt_ids[: -len(turn.lesson.reply_ids)]
    return turn.prompt_ids


def _skips_thought(turn: Turn) -> bool:
    """Return whether the player wrote a thought on this turn and its label has none."""
    return turn.lesson is not None and not turn.lesson.thought and has_thought(turn.reply)


def _agreement(turn: Turn) -> float:
    """Return the probability that a turn's teacher chooses the same action."""
    if turn.kind is not ReplyKind.LEGAL or turn.lesson is None:
        return 0.0
    return turn.lesson.action_chances().get(turn.action, 0.0)
