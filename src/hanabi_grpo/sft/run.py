"""One warm start from its options to its result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.handshake import tokenizer_hash
from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model
from hanabi_grpo.runs.run_folder import leave_run_folder, lock_run_folder, make_run_folder, used_entries
from hanabi_grpo.settings import Settings
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.learning import HeldOut, Lesson, held_out_figures, learn
from hanabi_grpo.sft.samples import Sample, data_digest, split_held_out
from hanabi_grpo.sft.sources import Sources
from hanabi_grpo.sft.state import LAST, MODEL, Kept
from hanabi_grpo.sft.students import LARGE, Student, load_base, make_students, student_names
from hanabi_grpo.training.model.adapters import base_checksum

_RATES = {("adapters", False): 2e-3, ("adapters", True): 2e-4, ("model", False): 1e-3, ("model", True): 1e-5}
"""Peak learning rates: what learns, and whether the model has more than `LARGE` parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Who hears of a warm start, and may stop it."""

    say: Callable[[str], None]
    """Receives a line about each choice that was made."""
    show: Callable[[str, int, int | None, str], None]
    """Receives the progress: name of a bar, how much is done of how much, and the bar's text."""
    should_stop: Callable[[], bool]
    """Asked often; True ends the work with the newest state kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a warm start ended."""

    is_finished: bool
    stopped_at: str = ""
    rows: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Label (before, best, last) and held-out figures."""
    next_steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """What to do."""

    settings: Settings
    """MODEL, SEED, LORA_RANK, LORA_ALPHA, HANABI_DTYPE and the limits of conversations."""
    setup: Setup[Any]
    sources: Sources
    out: Path
    steps: int
    batch: int
    learning_rate: float | None
    """At its peak; None: by the size of what learns."""
    shared: bool
    full: bool
    resume: bool

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            SettingsError: A number out of range, or options that exclude each other.
        """
        for name, number in (("steps", self.steps), ("batch", self.batch), ("deals", self.sources.num_deals)):
            if number < 1:
                raise SettingsError(f"--{name} {number}: must be 1 or more.")
        if self.learning_rate is not None and not 0 < self.learning_rate < float("inf"):
            raise SettingsError(f"--learning-rate {self.learning_rate}: must be above 0.")

    def run(self, watcher: Watcher) -> Outcome:
        """Read the games, learn, and keep the best and the newest state in `out`.

        Raises:
            SettingsError: Options, games or a model that do not fit.
            RunFolderError: `out` is in use or cannot be written.
            NonFiniteError: The loss became infinite or no number.
        """
        make_run_folder(self.out)
        with lock_run_folder(self.out):
            try:
                used = used_entries(self.out)
                if used and not self.resume:
                    raise RunFolderError(
                        f"--out {self.out}: holds something already ({', '.join(used[:3])}). Go on with it by "
                        "--resume, or choose another folder."
                    )
                return self._run(watcher)
            finally:
                leave_run_folder(self.out)

    def _run(self, watcher: Watcher) -> Outcome:
        settings = self.settings
        folder = resolve_model(settings.model)
        chat = ChatFormat.from_tokenizer(AutoTokenizer.from_pretrained(folder), thinking=settings.thinking)
        try:
            samples = self._read_games(chat, watcher)
        except _StoppedError:
            return Outcome(is_finished=False, stopped_at="the games were not all read; nothing was learned yet")
        taught, held_out = split_held_out(samples)
        watcher.say(
            f"{len(taught)} conversations to learn from, {len(held_out)} held out "
            f"({len({sample.start for sample in held_out})} of {len({sample.start for sample in samples})} starts)"
        )
        base = load_base(settings, folder, full=self.full)
        lesson = self._lesson(chat, base.num_parameters(), watcher.say)
        names = student_names(self.setup.spec.num_players, full=self.full, shared=self.shared)
        model, students = make_students(
            base, names, settings, taught, held_out, learning_rate=lesson.learning_rate, batch_size=self.batch
        )
        kept = self._kept(model, names, lesson, chat, samples)
        if self.resume and not kept.restore(students):
            watcher.say(f"--resume: {self.out} keeps no state yet; starting at the beginning")
        if not kept.history:
            kept.add([held_out_figures(base, student, lesson) for student in students])

        def on_step(student: Student, loss: float) -> None:
            watcher.show(student.name, student.step, self.steps, f"{student.name}, loss {loss:.3f}")

        def on_evaluation(figures: list[HeldOut]) -> None:
            kept.add(figures)
            kept.save(model, chat.tokenizer, students, dtype=getattr(torch, settings.dtype))
            for one in figures:
                watcher.say(f"{one.name}, step {one.step}: held-out loss {one.loss:.4f}, accuracy {one.accuracy:.3f}")

        if learn(base, students, lesson, on_step=on_step, on_evaluation=on_evaluation, should_stop=watcher.should_stop):
            return Outcome(is_finished=True, rows=_rows(kept.history, students), next_steps=self._next_steps())
        kept.save(model, chat.tokenizer, students, dtype=getattr(torch, settings.dtype))
        steps = ", ".join(f"{student.name} at step {student.step} of {self.steps}" for student in students)
        return Outcome(is_finished=False, stopped_at=f"{steps}, kept in {self.out}")

    def _read_games(self, chat: ChatFormat, watcher: Watcher) -> list[Sample]:
        limits = self.settings.max_model_len, self.settings.max_completion_length
        encoder = Encoder(setup=self.setup, chat=chat, max_model_len=limits[0], max_completion_length=limits[1])
        notes: list[str] = []

        def read(games: int) -> None:
            watcher.show("games", games, self.sources.num_games, "games")
            if watcher.should_stop():
                raise _StoppedError

        samples = self.sources.samples(encoder, seed=self.settings.seed, notes=notes, progress=read)
        for line in (*notes, encoder.line()):
            watcher.say(line)
        return samples

    def _lesson(self, chat: ChatFormat, num_parameters: int, say: Callable[[str], None]) -> Lesson:
        settings, pad = self.settings, chat.tokenizer.pad_token_id
        dtype: torch.dtype = getattr(torch, settings.dtype)
        what, rate = "model" if self.full else "adapters", self.learning_rate
        if rate is None:
            rate = _RATES[what, num_parameters > LARGE]
            say(f"learning rate: {rate:g} ({what} of {num_parameters / 1e6:.1f} M parameters; --learning-rate sets it)")
        return Lesson(
            steps=self.steps,
            micro_batch=min(self.batch, settings.per_device_train_batch_size),
            learning_rate=rate,
            max_grad_norm=settings.max_grad_norm,
            pad_id=chat.eos_id if pad is None else int(pad),
            autocast=dtype if self.full and dtype != torch.float32 else None,
        )

    def _kept(
        self, model: Any, names: Sequence[str], lesson: Lesson, chat: ChatFormat, samples: Sequence[Sample]
    ) -> Kept:
        settings = self.settings
        identity = {
            "model_fingerprint": model_fingerprint(resolve_model(settings.model)),
            "tokenizer_hash": tokenizer_hash(chat.tokenizer),
            "chat_hash": chat.hash,
            "dtype": settings.dtype,
        }
        facts = {
            "spec_hashes": [self.setup.spec.hash],
            "model": settings.model,
            **({} if self.full else {"base_checksum": base_checksum(model)}),
            **identity,
            **self.setup.row(),
            "games": self.sources.describe(),
        }
        key = {
            **identity,
            "data": data_digest(samples),
            "learns": list(names),
            **{"steps": self.steps, "batch": self.batch, "learning_rate": lesson.learning_rate},
            **{"max_grad_norm": settings.max_grad_norm, "seed": settings.seed},
            **({} if self.full else {"lora_rank": settings.lora_rank, "lora_alpha": settings.lora_alpha}),
        }
        return Kept(out=self.out, key=key, facts=facts, history=[])

    def _next_steps(self) -> tuple[str, ...]:
        if self.full:
            model = self.out / MODEL
            return (
                f"the best is in {model}; MODEL={model} plays and trains on it:",
                f"  MODEL={model} hanabi-grpo evaluate base --own-server",
            )
        best = self.out / "checkpoint-0"
        return (
            f"the best is in {best}, the last step in {self.out / LAST / 'checkpoint-0'}",
            f"  hanabi-grpo evaluate {best} --own-server",
            f"  HANABI_START_FROM={best} bash tools/train/train_grpo_msswift.sh",
        )


class _StoppedError(Exception):
    """Reading games was stopped."""


def _rows(history: Sequence[Mapping[str, Any]], students: Sequence[Student]) -> tuple[tuple[str, dict[str, Any]], ...]:
    rows: list[tuple[str, dict[str, Any]]] = []
    for student in students:
        own = [dict(row) for row in history if row["name"] == student.name]
        best = [row for row in own if row["step"] == student.best_step]
        rows += [("before", own[0]), ("best", best[-1]), ("last", own[-1])]
    return tuple(rows)
