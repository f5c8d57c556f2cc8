"""The steps of supervised learning, and the held-out loss and accuracy."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from hanabi_grpo.errors import NonFiniteError
from hanabi_grpo.sft.batches import num_exact_replies, padded, reply_logits
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.sft.students import Student

_WARMUP_SHARE = 0.05
_LAST_RATE = 0.1
"""Of the peak learning rate, at the last step."""
_HELD_OUT_SAMPLES = 400
"""Conversations that an evaluation looks at, per student."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """How it is learned."""

    steps: int
    """Updates of each student."""
    micro_batch: int
    """Conversations of one forward pass; a step's batch is cut into such pieces, which changes no gradient."""
    learning_rate: float
    max_grad_norm: float
    pad_id: int
    evaluations: int = 10
    """Looks at the held-out games, evenly over the steps."""
    autocast: torch.dtype | None = None
    """Number format of the passes when the parameters are float32 and the settings name another one."""

    def rate(self, step: int) -> float:
        """Return the learning rate of an update, counted from 1: linear warm-up, then half a cosine down to a tenth."""
        warmup = max(1, round(_WARMUP_SHARE * self.steps))
        if step <= warmup:
            return self.learning_rate * step / warmup
        done = (step - warmup) / max(1, self.steps - warmup)
        return self.learning_rate * (_LAST_RATE + (1 - _LAST_RATE) * 0.5 * (1 + math.cos(math.pi * done)))

    def is_due(self, step: int) -> bool:
        """Tell whether the held-out games are looked at after this many updates."""
        return step == self.steps or step % max(1, self.steps // self.evaluations) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """How one student does on games whose starts it does not learn from."""

    name: str
    step: int
    loss: float
    """Nats per token of a reply."""
    accuracy: float
    """Share of the replies that greedy sampling would give word for word after the same conversation."""
    num_replies: int


def learn(
    model: Any,
    students: Sequence[Student],
    lesson: Lesson,
    *,
    on_step: Callable[[Student, float], None],
    on_evaluation: Callable[[list[HeldOut]], None],
    should_stop: Callable[[], bool],
) -> bool:
    """Train every student up to `lesson.steps` updates; a resumed one goes on where it was.

    Students take turns update by update; none sees another's samples, so each learns as it would alone.

    Args:
        model: The base model, adapters inside it or not.
        students: What learns.
        lesson: How.
        on_step: Receives a student after its update, and its loss in nats per reply token.
        on_evaluation: Receives the figures of all students; their best parameters are remembered by then.
        should_stop: Asked between updates; an update in progress is given up.

    Returns:
        True when all steps are done, False when it was stopped between two updates.

    Raises:
        NonFiniteError: A loss or a gradient is infinite or no number; nothing of that update was applied.
    """
    for step in range(min(student.step for student in students) + 1, lesson.steps + 1):
        model.train()
        for student in students:
            if student.step >= step:
                continue
            loss = None if should_stop() else _update(model, student, lesson, should_stop)
            if loss is None:
                model.eval()
                return False
            on_step(student, loss)
        if lesson.is_due(step):
            figures = [held_out_figures(model, student, lesson) for student in students]
            for student, figure in zip(students, figures, strict=True):
                student.remember(figure.loss)
            on_evaluation(figures)
    model.eval()
    return True


def held_out_figures(model: Any, student: Student, lesson: Lesson) -> HeldOut:
    """Return a student's loss and accuracy on its held-out samples."""
    model.eval()
    student.select()
    samples = sorted(student.held_out, key=lambda sample: sample.start)[:_HELD_OUT_SAMPLES]
    samples.sort(key=lambda sample: len(sample.ids))
    total, tokens, exact, replies = 0.0, 0, 0, 0
    with torch.no_grad():
        for start in range(0, len(samples), lesson.micro_batch):
            logits, targets, marks = _forward(model, samples[start : start + lesson.micro_batch], lesson)
            total += float(torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum"))
            tokens += targets.numel()
            hits, count = num_exact_replies(logits, targets, marks)
            exact, replies = exact + hits, replies + count
    return HeldOut(
        name=student.name, step=student.step, loss=total / tokens, accuracy=exact / replies, num_replies=replies
    )


def _update(model: Any, student: Student, lesson: Lesson, should_stop: Callable[[], bool]) -> float | None:
    """Make one update; None when it was stopped before anything moved."""
    student.select()
    batch = next(student.batches)
    tokens = sum(sum(sample.is_reply) for sample in batch)
    student.optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for start in range(0, len(batch), lesson.micro_batch):
        if start and should_stop():
            return None
        logits, targets, _ = _forward(model, batch[start : start + lesson.micro_batch], lesson)
        # Over the tokens of the whole batch: how it is cut into pieces does not matter.
        loss = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum") / tokens
        loss.backward()
        total += float(loss.detach())
    norm = float(torch.nn.utils.clip_grad_norm_(student.parameters.values(), lesson.max_grad_norm))
    if not math.isfinite(total) or not math.isfinite(norm):
        raise NonFiniteError(
            f"{student.name}, update {student.step + 1}: loss {total}, gradient norm {norm}; both must be finite. "
            "Nothing of it was applied. Take a lower --learning-rate, or HANABI_DTYPE=float32."
        )
    for group in student.optimizer.param_groups:
        group["lr"] = lesson.rate(student.step + 1)
    student.optimizer.step()
    student.step += 1
    return total


def _forward(model: Any, batch: Sequence[Sample], lesson: Lesson) -> tuple[Any, Any, Any]:
    ids, marks = padded(batch, lesson.pad_id)
    ids, marks = ids.to(model.device), marks.to(model.device)
    context: AbstractContextManager[Any] = (
        nullcontext() if lesson.autocast is None else torch.autocast(model.device.type, dtype=lesson.autocast)
    )
    with context:
        logits, targets = reply_logits(model, ids, marks)
    return logits, targets, marks
