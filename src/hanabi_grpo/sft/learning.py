"""The students of a warm start, their updates, and the held-out loss and accuracy.

A student is a player's adapter or the whole model. It changes only its own parameters.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from hanabi_grpo.errors import NonFiniteError, SettingsError
from hanabi_grpo.settings import Settings
from hanabi_grpo.sft.sampled_softmax import SampledSoftmax
from hanabi_grpo.sft.samples import (
    Sample,
    TooFewGamesError,
    length_batches,
    num_exact_replies,
    padded,
    reply_logits,
)
from hanabi_grpo.sft.word_parts import WordParts
from hanabi_grpo.training.model.adapters import (
    add_adapters,
    copy_parameters,
    trainable_parameters,
    use_adapter,
)
from hanabi_grpo.training.model.dropout import switch_off_dropout
from hanabi_grpo.training.model.output_head import return_hidden_states
from hanabi_grpo.training.model.shared_prefixes import share_prefixes
from hanabi_grpo.types import SHARED_ADAPTER, player_name

logger = logging.getLogger(__name__)

WHOLE_MODEL = "model"
"""Name of the student that is the whole model instead of an adapter."""
_WORD_PARTS = "word_parts"
"""Name of the vectors of word parts among a student's parameters."""
LARGE = 200_000_000
"""Number of parameters above which activations are recomputed instead of stored (on a GPU)."""
_BETAS = (0.9, 0.98)
"""Betas of AdamW."""
_WARMUP_SHARE = 0.05
"""Share of the steps over which the learning rate rises to its peak."""
_EVALUATIONS = 10
"""Number of evaluations on the held-out games, evenly distributed over the steps."""
_HELD_OUT_SAMPLES = 400
"""Conversations in an evaluation, per student."""


@dataclass(slots=True, kw_only=True)
class Student:
    """One set of parameters with its own optimizer, batches and count of steps."""

    name: str
    """An adapter's name, or `WHOLE_MODEL`."""
    parameters: dict[str, torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    held_out: Sequence[Sample]
    """Samples for evaluation, which it does not learn from."""
    batches: Iterator[list[Sample]]
    """Endless iterator over the samples of each update."""
    select: Callable[[], None]
    """Makes the next forward pass use these parameters."""
    parts: WordParts | None = None
    """Shared word parts if the whole model learns; their vectors are among the parameters."""
    softmax: SampledSoftmax | None = None
    """Estimates the softmax over a large vocabulary of whole words; None: the exact softmax."""
    step: int = 0
    """Number of updates so far."""
    best: dict[str, torch.Tensor] | None = None
    """Its parameters (on the CPU) at the lowest held-out loss, after at least one step."""
    best_step: int = 0
    best_loss: float = float("inf")

    def remember(self, loss: float) -> None:
        """Keep the parameters if this held-out loss is the lowest."""
        if loss < self.best_loss:
            self.best = copy_parameters(self.parameters)
            self.best_loss = loss
            self.best_step = self.step


def load_base(settings: Settings, folder: Path, *, full: bool) -> Any:
    """Load the base model on its device, without dropout.

    Args:
        settings: Device and number format.
        folder: The model folder.
        full: The whole model is trained, so its parameters are float32.

    Raises:
        SettingsError: HANABI_DTYPE=float16.
    """
    from transformers import AutoModelForCausalLM

    if settings.dtype == "float16":
        raise SettingsError(
            "HANABI_DTYPE=float16: gradients underflow in float16; use bfloat16 or float32 for "
            "warm-start."
        )
    dtype = torch.float32 if full else getattr(torch, settings.dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    on_gpu = settings.device == "gpu" and torch.cuda.is_available()
    if settings.device == "gpu" and not on_gpu:
        logger.warning(
            "warm-start runs on the CPU: %s, but torch cannot use a GPU; `nvidia-smi -L` lists the "
            "GPUs, `hanabi-grpo doctor` reports what is wrong with them",
            settings.device_reason,
        )
    model.to("cuda" if on_gpu else "cpu")
    if on_gpu and model.num_parameters() > LARGE:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    switch_off_dropout(model)
    share_prefixes(model)
    return model


def make_students(
    model: Any,
    names: Sequence[str],
    settings: Settings,
    taught: Sequence[Sample],
    held_out: Sequence[Sample],
    learning_rate: float,
    *,
    batch_size: int,
    parts: WordParts | None = None,
) -> tuple[Any, list[Student]]:
    """Make the students of a warm start.

    Args:
        model: The base model.
        names: Names of the adapters, or `WHOLE_MODEL` alone.
        settings: Rank, alpha and seed.
        taught: Samples of all players for training.
        held_out: Samples of all players for evaluation.
        learning_rate: The peak learning rate.
        batch_size: Samples per update.
        parts: Parts that the model's words share; only if the whole model learns.

    Returns:
        The PEFT model, or the base model itself if the whole model is trained; and the students.

    Raises:
        TooFewGamesError: A player has no replies to learn from, or no held-out ones.
    """
    is_full = tuple(names) == (WHOLE_MODEL,)
    if not is_full:
        model = add_adapters(
            model,
            names,
            rank={name: settings.rank_of(name) for name in names},
            alpha={name: settings.alpha_of(name) for name in names},
            seed=settings.seed,
        )
    students = []
    for number, name in enumerate(names):
        student_taught = _samples_for(name, taught)
        student_held_out = _samples_for(name, held_out)
        if not student_taught or not student_held_out:
            raise TooFewGamesError(
                f"warm-start: {name} has {len(student_taught)} conversations to learn from and "
                f"{len(student_held_out)} held out; both are required. Provide more games, loosen "
                "the filters, or train one adapter for all players with --shared."
            )
        parameters = trainable_parameters(model, adapter=None if is_full else name)
        softmax = None
        if parts is not None:
            parameters[_WORD_PARTS] = parts.vectors
            vocabulary = model.get_output_embeddings().weight.shape[0]
            softmax = SampledSoftmax.of(student_taught, vocabulary, settings.seed, model.device)
        optimizer = torch.optim.AdamW(
            parameters.values(), lr=learning_rate, betas=_BETAS, weight_decay=0.0
        )
        student = Student(
            name=name,
            parameters=parameters,
            optimizer=optimizer,
            held_out=student_held_out,
            batches=length_batches(student_taught, settings.seed + number, batch_size),
            select=(lambda: None) if is_full else partial(use_adapter, model, name),
            parts=parts,
            softmax=softmax,
        )
        students.append(student)
    return model, students


def _samples_for(name: str, samples: Sequence[Sample]) -> list[Sample]:
    """Return a student's samples: those of its player, or all if it learns for all players."""
    if name in (WHOLE_MODEL, SHARED_ADAPTER):
        return list(samples)
    return [sample for sample in samples if player_name(sample.player) == name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """Hyperparameters of the students."""

    steps: int
    """Updates of each student."""
    micro_batch: int
    """Conversations per forward pass.

    A batch is split into micro-batches, which does not change the gradient.
    """
    learning_rate: float
    """The peak learning rate."""
    max_grad_norm: float
    autocast: torch.dtype | None = None
    """Number format of forward passes, if it differs from float32 parameters."""

    def rate(self, step: int) -> float:
        """Return the learning rate of an update: linear warm-up, then half a cosine to zero.

        Args:
            step: Number of the update, from 1.
        """
        warmup = max(1, round(_WARMUP_SHARE * self.steps))
        if step <= warmup:
            return self.learning_rate * step / warmup
        # One more than the steps, so that the last update has a learning rate above 0.
        progress = (step - warmup) / (self.steps - warmup + 1)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))

    def is_evaluated(self, step: int) -> bool:
        """Tell whether the held-out games are evaluated after a step; always after the last."""
        return step == self.steps or step % max(1, self.steps // _EVALUATIONS) == 0


def learn(
    model: Any,
    students: Sequence[Student],
    lesson: Lesson,
    on_step: Callable[[Student, float], None],
    should_stop: Callable[[], bool],
) -> Iterator[list[dict[str, Any]]]:
    """Train every student up to `lesson.steps` updates; a resumed student continues.

    Students take turns, one update each. None sees another's samples, so each learns exactly as it
    would alone.

    Args:
        model: The base model.
        students: The students.
        lesson: Their hyperparameters.
        on_step: Receives a student after its update, and its loss in nats per reply token.
        should_stop: Called often; if it returns True, the update in progress is abandoned.

    Yields:
        Held-out figures of all students, after their best parameters have been stored.

    Raises:
        NonFiniteError: A loss or a gradient is infinite or NaN; that update was not applied.
    """
    first_step = min(student.step for student in students) + 1
    for step in range(first_step, lesson.steps + 1):
        model.train()
        for student in students:
            if student.step >= step:
                continue
            loss = None if should_stop() else _update(model, student, lesson, should_stop)
            if loss is None:
                return
            on_step(student, loss)
        if lesson.is_evaluated(step):
            all_figures = [held_out_figures(model, student, lesson) for student in students]
            for student, figures in zip(students, all_figures, strict=True):
                student.remember(figures.get("objective", figures["loss"]))
            yield all_figures


def held_out_figures(model: Any, student: Student, lesson: Lesson) -> dict[str, Any]:
    """Evaluate a student on games whose starts it does not learn from.

    Returns:
        `name` and `step` of the student, and the result of `measure`.
    """
    model.eval()
    student.select()
    figures = measure(model, student.held_out, lesson.micro_batch, lesson.autocast)
    return {"name": student.name, "step": student.step, **figures}


def measure(
    model: Any,
    samples: Sequence[Sample],
    micro_batch: int,
    autocast: torch.dtype | None = None,
) -> dict[str, Any]:
    """Evaluate a model on conversations.

    Args:
        model: The model, in evaluation mode.
        samples: Conversations; of moves, and of each player's answers, at most 400 are used.
        micro_batch: Conversations per forward pass.
        autocast: See `Lesson.autocast`.

    Returns:
        For moves, `loss` in nats per reply token, and `accuracy`, the share of the `num_replies`
        replies that greedy sampling would reproduce exactly after the same conversation. If there
        are answers to questions about hidden cards, also `beliefs`: by player, `loss` in nats per
        answer including its end token, `accuracy` and `num_answers`; and `objective`, the loss in
        nats per token over moves and answers together, which selects the best parameters.
    """
    moves = []
    answers: dict[str, list[Sample]] = {}
    for sample in sorted(samples, key=lambda sample: sample.start):
        if sample.question_start is None:
            moves.append(sample)
        else:
            answers.setdefault(player_name(sample.player), []).append(sample)
    measured = _measure(model, moves[:_HELD_OUT_SAMPLES], micro_batch, autocast)
    figures: dict[str, Any] = {
        "loss": measured.loss / measured.num_tokens,
        "accuracy": measured.num_exact / measured.num_replies,
        "num_replies": measured.num_replies,
    }
    beliefs = {}
    total_loss = measured.loss
    num_tokens = measured.num_tokens
    for player in sorted(answers):
        measured = _measure(model, answers[player][:_HELD_OUT_SAMPLES], micro_batch, autocast)
        beliefs[player] = {
            "loss": measured.loss / measured.num_replies,
            "accuracy": measured.num_exact / measured.num_replies,
            "num_answers": measured.num_replies,
        }
        total_loss += measured.loss
        num_tokens += measured.num_tokens
    if beliefs:
        figures["beliefs"] = beliefs
        figures["objective"] = total_loss / num_tokens
    return figures


def belief_text(figures: Mapping[str, Any]) -> str:
    """Return the held-out belief losses from `measure` as text, e.g. "player_0 1.312"."""
    texts = []
    for player, beliefs in figures.get("beliefs", {}).items():
        texts.append(f"{player} {beliefs['loss']:.3f}")
    return ", ".join(texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """Sums over the replies of some samples."""

    loss: float
    """In nats."""
    num_tokens: int
    num_exact: int
    """Replies that greedy sampling would reproduce."""
    num_replies: int


def _measure(
    model: Any, samples: Sequence[Sample], micro_batch: int, autocast: torch.dtype | None
) -> _Measured:
    by_length = sorted(samples, key=lambda sample: len(sample.ids))
    total_loss = 0.0
    num_tokens = 0
    num_exact = 0
    num_replies = 0
    with torch.no_grad():
        for batch in _cut(by_length, micro_batch):
            logits, targets, marks = _forward(model, batch, autocast)
            total_loss += float(cross_entropy(logits.float(), targets, reduction="sum"))
            num_tokens += targets.numel()
            exact, replies = num_exact_replies(logits, targets, marks)
            num_exact += exact
            num_replies += replies
    return _Measured(
        loss=total_loss, num_tokens=num_tokens, num_exact=num_exact, num_replies=num_replies
    )


def _update(
    model: Any, student: Student, lesson: Lesson, should_stop: Callable[[], bool]
) -> float | None:
    """Perform one update.

    Returns:
        The loss in nats per reply token; None if the update was stopped before any parameter
        changed.
    """
    student.select()
    batch = next(student.batches)
    num_tokens = sum(sum(sample.is_reply) for sample in batch)
    student.optimizer.zero_grad(set_to_none=True)
    batch_loss = 0.0
    for number, micro_batch in enumerate(_cut(batch, lesson.micro_batch)):
        if number and should_stop():
            return None
        if student.softmax is None:
            logits, targets, _ = _forward(model, micro_batch, lesson.autocast)
        else:
            logits, targets = _sampled_forward(
                model, micro_batch, lesson.autocast, student.softmax, key=student.step
            )
        # Divided by the tokens of the whole batch, so that micro-batches do not change the result.
        loss = cross_entropy(logits.float(), targets, reduction="sum") / num_tokens
        loss.backward()
        batch_loss += float(loss.detach())
    if student.parts is not None:
        student.parts.collect_gradient()
    parameters = student.parameters.values()
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, lesson.max_grad_norm))
    if not math.isfinite(batch_loss) or not math.isfinite(norm):
        raise NonFiniteError(
            f"{student.name}, update {student.step + 1}: loss {batch_loss}, gradient norm {norm}; "
            "both must be finite. The update was not applied. Use a lower --learning-rate or "
            "HANABI_DTYPE=float32."
        )
    for group in student.optimizer.param_groups:
        group["lr"] = lesson.rate(student.step + 1)
    student.optimizer.step()
    if student.parts is not None:
        student.parts.move_words()
    student.step += 1
    return batch_loss


def _cut(samples: Sequence[Sample], size: int) -> Iterator[Sequence[Sample]]:
    """Yield pieces of `size` samples; the last one may have fewer."""
    for start in range(0, len(samples), size):
        yield samples[start : start + size]


def _forward(
    model: Any, batch: Sequence[Sample], autocast: torch.dtype | None
) -> tuple[Any, Any, Any]:
    """Return the logits of the reply tokens, the ids of these tokens, and the reply marks.

    Their shapes are (reply tokens, vocabulary), (reply tokens,) and (rows, tokens).
    """
    ids, marks = padded(batch)
    ids = ids.to(model.device)
    marks = marks.to(model.device)
    with torch.autocast(model.device.type, dtype=autocast, enabled=autocast is not None):
        logits, targets = reply_logits(model, ids, marks)
    return logits, targets, marks


def _sampled_forward(
    model: Any,
    batch: Sequence[Sample],
    autocast: torch.dtype | None,
    softmax: SampledSoftmax,
    key: int,
) -> tuple[Any, Any]:
    """Return the logits of `SampledSoftmax` at reply tokens, and the positions of these tokens.

    Args:
        model: The model.
        batch: Samples.
        autocast: See `Lesson.autocast`.
        softmax: The student's sampled softmax.
        key: See `SampledSoftmax.logits`.
    """
    head = model.get_output_embeddings()
    with return_hidden_states(head):
        hidden, targets, _ = _forward(model, batch, autocast)
    with torch.autocast(model.device.type, dtype=autocast, enabled=autocast is not None):
        logits = softmax.logits(head.weight, hidden, key)
    return logits, softmax.positions(targets)
