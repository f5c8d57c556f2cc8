"""What a teacher's labels teach (HANABI_TEACHER): rows with its replies, weights, and figures.

    L_teacher = w / M · Σ_t u_t (−log π(a_t | s))

over the M tokens t of the replies that the teacher would have given on the player's own turns, each
behind the prompt of that turn: cross-entropy on the states that the player itself meets. It is
added to the player's loss (`loss`), so it is a mean over the player's own tokens of the step over
all processes, as the policy's loss is, and no other player moves by it. u is the weight of a token
with HANABI_LOSS_UNIT, among the teacher's tokens; w falls with HANABI_TEACHER_STEPS.

Where the teacher draws its reply and says how likely each one is (`envs.base.MixingPolicy`), all of
them are targets, each with its chance p:

    L_teacher = w / M · Σ_turns Σ_k p_k Σ_t u_t (−log π(a_kt | s)),    M = Σ_turns Σ_k p_k n_k

with n_k tokens in reply k. That is the mean of the loss above over what the teacher may draw, and
its least value is the teacher's own entropy: it falls by KL(teacher ‖ player), turn by turn.

A teacher's reply is a row of its own: the conversation up to the turn, then the reply. Where
prefixes are shared (`model.prefix_tree`) a row costs its reply's tokens alone, and nothing where
the player said the same.

A teacher that is a model says how likely it finds what the player said, and adds to the advantage
of each of the player's own tokens

    b'_t = w · (log p_teacher(a_t | s) − log p_player(a_t | s) − mean over the player's tokens),

the score-function gradient of −w · KL(player ‖ teacher), token by token on the player's own states:
on-policy distillation.

Source: DAgger (Ross, Gordon and Bagnell 2011, arXiv 1011.0686); beside a reward, with a weight that
falls, kickstarting (Schmitt et al. 2018, arXiv 1803.03835). Distillation on the student's own
samples: Agarwal et al. 2023 (arXiv 2306.13649); with reverse KL Gu et al. 2023 (arXiv 2306.08543).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.teachers import parse_teachers
from hanabi_grpo.training.groups import flatten_groups
from hanabi_grpo.training.micro_batch import MicroBatch, TokenRow
from hanabi_grpo.training.minibatches import weights_by_part
from hanabi_grpo.training.token_weights import LossUnit
from hanabi_grpo.types import Episode, ReplyKind, Turn, is_trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Teaching:
    """What a player with a teacher learns from in a step, and how much."""

    teacher: float
    """Weight of the teacher's cross-entropy, or of its logprobs."""
    reward: float
    """Weight of the advantages."""


def teaching_at(settings: Settings, step: int) -> dict[str, Teaching]:
    """Return how each player with a teacher is taught in a step.

    Args:
        settings: The run's.
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
    """Return a row for each reply by which its teacher labelled a turn of one seat's player.

    Args:
        groups: Per task the games that are learned from.
        player: Number of the seat.
        trained_seats: Per seat the adapter that is trained there, see `batching.token_rows`.
        unit: What weighs the same, see `token_weights`.
        parts: Per game of the step its part, see `minibatches`.
        has_weights: Whether rows of replies have weights, and so on: rows of a micro-batch have
            the same columns.
        trains_all: Whether all tokens of a reply carry loss.
        with_steps: Whether rows say in which step of the game each token was said.
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
    groups: Sequence[Sequence[Episode]], player: int, trained_seats: Sequence[str]
) -> float | None:
    """Return the mean over tokens of log p by a seat's player less log p by its teacher, in nats.

    It estimates KL(player ‖ teacher). None: no model scored any reply of the player.

    Args:
        groups: The games, on all ranks.
        player: Number of the seat.
        trained_seats: Per seat the adapter whose games count.
    """
    differences: list[float] = []
    for episode in flatten_groups(groups):
        if is_trained(episode, player, trained_seats):
            for turn in episode.trajectory(player):
                differences.extend(-gap for gap in _raw_gaps(turn))
    return sum(differences) / len(differences) if differences else None


def teacher_gaps(turn: Turn, kl: float) -> list[float]:
    """Return for each token of a reply log p by the teacher less log p by the player, plus the KL.

    The sum has mean 0 over the player's tokens: a constant changes no expected gradient and lowers
    its variance, as for the entropy bonus. 0 for a reply that was not scored.

    Args:
        turn: The turn.
        kl: Of `measure_kl`.
    """
    gaps = [gap + kl for gap in _raw_gaps(turn)]
    return gaps or [0.0] * len(turn.reply_ids)


def num_lesson_tokens(rows: Sequence[TokenRow]) -> float:
    """Return how many tokens of some rows are a teacher's, each as often as it is likely."""
    total: float = 0
    for row in rows:
        total += row.lesson_chance * sum(weight > 0 for weight in row.lesson or ())
    return total


def lesson_figures(
    groups: Sequence[Sequence[Episode]], seats: Sequence[str], players: Sequence[str]
) -> dict[str, float]:
    """Return how far each player goes with its teacher, nothing of a player that has none.

    `teacher_agreement` is the share of its labelled turns on which a legal reply of its own named
    the teacher's action, or where the teacher draws the chance that it does the same, so that even
    the teacher beside itself is below 1; `teacher_share` the share of its turns that are labelled,
    and `teacher_plays` of those on which the teacher played in its place (absent at 0).

    Of a teacher that is a model it is `teacher_kl`: the mean of log p by the player less log p by
    the teacher over the player's tokens, in nats, an estimate of KL(player ‖ teacher).

    Args:
        groups: The games as they were drawn.
        seats: Per seat the run's own adapter, as episodes record it.
        players: Per seat the player who holds it.
    """
    figures: dict[str, float] = {}
    episodes = flatten_groups(groups)
    for seat, player in enumerate(players):
        turns: list[Turn] = []
        for episode in episodes:
            if is_trained(episode, seat, seats):
                turns.extend(episode.trajectory(seat))
        kl = measure_kl(groups, seat, seats)
        if kl is not None:
            figures[f"{player}/teacher_kl"] = kl
        labelled = [turn for turn in turns if turn.lesson is not None and turn.lesson.action]
        if not labelled:
            continue
        own = [turn for turn in labelled if turn.lesson is not None and not turn.lesson.plays]
        if own:
            figures[f"{player}/teacher_agreement"] = sum(map(_agreement, own)) / len(own)
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
        """Begin with none."""
        self._surprise: dict[str, float] = {}
        """In nats, of this process's tokens, each as often as it is likely."""
        self._entropy: dict[str, float] = {}
        """In nats, of the replies of this process among which a teacher draws; by players with
        such a teacher."""
        self._parts: dict[tuple[str, int], float] = {}
        """By player and part of the step the tokens on all processes."""

    def add(self, batch: MicroBatch, logprobs: torch.Tensor) -> None:
        """Count a micro-batch once.

        Args:
            batch: The micro-batch.
            logprobs: [rows, tokens] under the player as it was before it learned from them.
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
        """Return `teacher_loss` of each player, in nats a token, and begin anew.

        Where a player's teacher draws, also `teacher_divergence`: the loss less the entropy of the
        teacher's replies, which is KL(teacher ‖ player).

        Args:
            gather: (this process's list) -> those of all processes as one list.
        """
        # Players with tokens are the same on every process, so all of them ask or none does.
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
    """Return the replies that a turn is labelled with, each with its chance."""
    if turn.lesson is None or not turn.lesson.reply_ids:
        return []
    if not turn.lesson.replies:
        return [(turn.lesson.reply_ids, 1.0)]
    return [(reply.reply_ids, reply.chance) for reply in turn.lesson.replies]


def _expected_length(turn: Turn) -> float:
    """Return how many tokens a teacher's reply has in the mean."""
    return sum(chance * len(ids) for ids, chance in _labels(turn))


def _raw_gaps(turn: Turn) -> list[float]:
    """Return log p by the teacher less log p by the player of each token; [] where none scored."""
    if turn.lesson is None or not turn.lesson.logprobs:
        return []
    pairs = zip(turn.lesson.logprobs, turn.logprobs, strict=True)
    return [by_teacher - by_player for by_teacher, by_player in pairs]


def _prompt_ids(turn: Turn) -> tuple[int, ...]:
    """Return the ids before a turn's reply, whoever made it."""
    if turn.lesson is not None and turn.lesson.plays:
        return turn.prompt_ids[: -len(turn.lesson.reply_ids)]
    return turn.prompt_ids


def _agreement(turn: Turn) -> float:
    """Return how likely a turn's teacher does the same."""
    if turn.kind is not ReplyKind.LEGAL or turn.lesson is None:
        return 0.0
    if not turn.lesson.replies:
        return float(turn.action == turn.lesson.action)
    chances = {reply.action: reply.chance for reply in turn.lesson.replies}
    return chances.get(turn.action, 0.0)
