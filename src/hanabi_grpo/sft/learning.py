"""What learns, each player's adapter or the whole model, its updates, and the held-out loss and
accuracy.

A student moves nothing but its own parameters.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hanabi_grpo.errors import NonFiniteError, SettingsError
from hanabi_grpo.settings import Settings
from hanabi_grpo.sft.samples import Sample, length_batches, num_exact_replies, padded, reply_logits
from hanabi_grpo.training.model.adapters import add_adapters, copy_parameters, use_adapter
from hanabi_grpo.training.model.shared_prefixes import share_prefixes
from hanabi_grpo.types import SHARED_ADAPTER, player_name

WHOLE_MODEL = "model"
"""Name of the one student that is no adapter."""
LARGE = 200_000_000
"""Parameters from which on activations are computed twice instead of kept (on a GPU)."""
_WARMUP_SHARE = 0.05
_LAST_RATE = 0.1
"""Of the peak learning rate, at the last step."""
_EVALUATIONS = 10
"""Looks at the held-out games, evenly over the steps."""
_HELD_OUT_SAMPLES = 400
"""Conversations that an evaluation looks at, per student."""


@dataclass(slots=True, kw_only=True)
class Student:
    """One set of parameters with its own optimizer, batches and count of steps."""

    name: str
    """An adapter's name, or `WHOLE_MODEL`."""
    parameters: dict[str, torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    held_out: Sequence[Sample]
    batches: Iterator[list[Sample]]
    select: Callable[[], None]
    """Makes the next forward pass go through these parameters."""
    step: int = 0
    """Updates that were made."""
    best: dict[str, torch.Tensor] | None = None
    """Its parameters (on the CPU) when the held-out loss was lowest, after at least one step."""
    best_step: int = 0
    best_loss: float = float("inf")

    def remember(self, loss: float) -> None:
        """Keep the parameters if this held-out loss is the lowest."""
        if loss < self.best_loss:
            self.best = copy_parameters(self.parameters)
            self.best_loss, self.best_step = loss, self.step


def load_base(settings: Settings, folder: Path, *, full: bool) -> Any:
    """Return the base model on its device, float32 when all of it is trained; a SettingsError:
    HANABI_DTYPE=float16.
    """
    from transformers import AutoModelForCausalLM

    if settings.dtype == "float16":
        raise SettingsError(
            "HANABI_DTYPE=float16: gradients underflow in it; warm-start takes bfloat16 or float32."
        )
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32 if full else getattr(torch, settings.dtype),
        attn_implementation="sdpa",
    )
    on_gpu = settings.device == "gpu" and torch.cuda.is_available()
    model.to("cuda" if on_gpu else "cpu")
    if on_gpu and model.num_parameters() > LARGE:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
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
) -> tuple[Any, list[Student]]:
    """Return the PEFT model, or the base model itself when all of it is trained; and the students.

    A SettingsError: a player has no reply to learn from, or none held out.
    """
    is_full = tuple(names) == (WHOLE_MODEL,)
    students = []
    if not is_full:
        model = add_adapters(
            model, names, rank=settings.lora_rank, alpha=settings.lora_alpha, seed=settings.seed
        )
    for number, name in enumerate(names):
        own, aside = (
            [
                one
                for one in samples
                if name in (WHOLE_MODEL, SHARED_ADAPTER, player_name(one.player))
            ]
            for samples in (taught, held_out)
        )
        if not own or not aside:
            raise SettingsError(
                f"warm-start: {name} has {len(own)} conversations to learn from and {len(aside)} "
                "held out; both are "
                "needed. Give more games, filter less, or train one adapter for all with --shared."
            )
        parameters = {
            key: value
            for key, value in model.named_parameters()
            if value.requires_grad and (is_full or f".{name}." in key)
        }
        students.append(
            Student(
                name=name,
                parameters=parameters,
                optimizer=torch.optim.AdamW(
                    parameters.values(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0
                ),
                held_out=aside,
                batches=length_batches(own, settings.seed + number, batch_size),
                select=(lambda: None) if is_full else partial(use_adapter, model, name),
            )
        )
    return model, students


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """How it is learned."""

    steps: int
    """Updates of each student."""
    micro_batch: int
    """Conversations of one forward pass; a step's batch is cut into such pieces, which changes no
    gradient.
    """
    learning_rate: float
    max_grad_norm: float
    autocast: torch.dtype | None = None
    """Number format of the passes when the parameters are float32 and the settings name another
    one.
    """

    def rate(self, step: int) -> float:
        """Return the learning rate of an update, counted from 1: linear warm-up, then half a cosine
        down to a tenth.
        """
        warmup = max(1, round(_WARMUP_SHARE * self.steps))
        if step <= warmup:
            return self.learning_rate * step / warmup
        done = (step - warmup) / max(1, self.steps - warmup)
        return self.learning_rate * (
            _LAST_RATE + (1 - _LAST_RATE) * 0.5 * (1 + math.cos(math.pi * done))
        )


def learn(
    model: Any,
    students: Sequence[Student],
    lesson: Lesson,
    on_step: Callable[[Student, float], None],
    should_stop: Callable[[], bool],
) -> Iterator[list[dict[str, Any]]]:
    """Train every student up to `lesson.steps` updates; a resumed one goes on where it was.

    Students take turns update by update; none sees another's samples, so each learns as it would
    alone. `on_step` receives a student after its update, and its loss in nats per reply token; when
    `should_stop` says True, the update in progress is given up.

    Yields:
        Held-out figures of all students, whose best parameters are remembered by then.

    Raises: NonFiniteError: A loss or a gradient is infinite or no number; nothing of that update
        was applied.
    """
    for step in range(min(student.step for student in students) + 1, lesson.steps + 1):
        model.train()
        for student in students:
            if student.step >= step:
                continue
            loss = None if should_stop() else _update(model, student, lesson, should_stop)
            if loss is None:
                return
            on_step(student, loss)
        if step == lesson.steps or step % max(1, lesson.steps // _EVALUATIONS) == 0:
            figures = [held_out_figures(model, student, lesson) for student in students]
            for student, figure in zip(students, figures, strict=True):
                student.remember(figure["loss"])
            yield figures


def held_out_figures(model: Any, student: Student, lesson: Lesson) -> dict[str, Any]:
    """Return how a student does on games whose starts it does not learn from.

    `loss` is in nats per token of a reply, `accuracy` the share of the `num_replies` replies that
    greedy sampling would give word for word after the same conversation; `name` and `step` are the
    student's."""
    model.eval()
    student.select()
    samples = sorted(student.held_out, key=lambda sample: sample.start)[:_HELD_OUT_SAMPLES]
    samples.sort(key=lambda sample: len(sample.ids))
    total, tokens, exact, replies = 0.0, 0, 0, 0
    with torch.no_grad():
        for start in range(0, len(samples), lesson.micro_batch):
            logits, targets, marks = _forward(
                model, samples[start : start + lesson.micro_batch], lesson
            )
            total += float(
                torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum")
            )
            tokens += targets.numel()
            hits, count = num_exact_replies(logits, targets, marks)
            exact, replies = exact + hits, replies + count
    figures = {"loss": total / tokens, "accuracy": exact / replies, "num_replies": replies}
    return {"name": student.name, "step": student.step, **figures}


def _update(
    model: Any, student: Student, lesson: Lesson, should_stop: Callable[[], bool]
) -> float | None:
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
            f"{student.name}, update {student.step + 1}: loss {total}, gradient norm {norm}; both "
            "must be finite. "
            "Nothing of it was applied. Take a lower --learning-rate, or HANABI_DTYPE=float32."
        )
    for group in student.optimizer.param_groups:
        group["lr"] = lesson.rate(student.step + 1)
    student.optimizer.step()
    student.step += 1
    return total


def _forward(model: Any, batch: Sequence[Sample], lesson: Lesson) -> tuple[Any, Any, Any]:
    ids, marks = (tensor.to(model.device) for tensor in padded(batch))
    with torch.autocast(
        model.device.type, dtype=lesson.autocast, enabled=lesson.autocast is not None
    ):
        logits, targets = reply_logits(model, ids, marks)
    return logits, targets, marks
