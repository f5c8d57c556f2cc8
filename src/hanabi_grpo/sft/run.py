"""One warm start from its options to its result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import HanabiGrpoError, RunFolderError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.handshake import tokenizer_hash
from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model
from hanabi_grpo.runs.run_folder import (
    leave_run_folder,
    lock_run_folder,
    make_run_folder,
    some_of,
    used_entries,
)
from hanabi_grpo.settings import Settings
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.learning import (
    LARGE,
    WHOLE_MODEL,
    Lesson,
    Student,
    held_out_figures,
    learn,
    load_base,
    make_students,
)
from hanabi_grpo.sft.samples import Sample, data_digest, split_held_out
from hanabi_grpo.sft.sources import Sources
from hanabi_grpo.sft.state import LAST, MODEL, Kept
from hanabi_grpo.training.model.adapters import adapter_names, base_checksum
from hanabi_grpo.types import SHARED_ADAPTER

_RATES = {
    ("adapters", False): 2e-3,
    ("adapters", True): 2e-4,
    ("model", False): 1e-3,
    ("model", True): 1e-5,
}
"""Peak learning rates: what learns, and whether the model has more than `LARGE` parameters."""


class StoppedError(HanabiGrpoError):
    """A warm start was stopped; its text says where."""


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
    every_start: bool
    """Learn from the held-out starts too: for boards whose starts are all in the games."""
    resume: bool

    def run(self, watcher: Watcher) -> list[tuple[str, Mapping[str, Any]]]:
        """Read the games, learn, and keep the best and the newest state in `out`.

        Returns:
            Label (before, best, last) and held-out figures of each student.

        Raises:
            StoppedError: The watcher wished so.
            SettingsError: Options, games or a model that do not fit.
            RunFolderError: `out` is in use or cannot be written.
            NonFiniteError: The loss became infinite or no number.
        """
        make_run_folder(self.out)
        with lock_run_folder(self.out):
            try:
                if (used := used_entries(self.out)) and not self.resume:
                    raise RunFolderError(
                        f"--out {self.out}: holds something already ({some_of(used)}). Go on with "
                        "it by --resume, or "
                        "choose another folder."
                    )
                return self._run(watcher)
            finally:
                leave_run_folder(self.out)

    def next_steps(self) -> tuple[str, ...]:
        """Return what to type afterwards."""
        best = self.out / (MODEL if self.full else "checkpoint-0")
        evaluate = (
            f"MODEL={best} hanabi-grpo evaluate base"
            if self.full
            else f"hanabi-grpo evaluate {best}"
        )
        return (
            f"the best is in {best}, the last step in {self.out / LAST / 'checkpoint-0'}",
            f"  {evaluate} --own-server",
            f"  {'MODEL' if self.full else 'HANABI_START_FROM'}={best} bash "
            "tools/train/train_grpo_msswift.sh",
        )

    def _run(self, watcher: Watcher) -> list[tuple[str, Mapping[str, Any]]]:
        settings = self.settings
        folder = resolve_model(settings.model)
        chat = ChatFormat.from_tokenizer(
            AutoTokenizer.from_pretrained(folder), thinking=settings.thinking
        )
        samples = self._read_games(chat, watcher)
        taught, held_out = split_held_out(samples)
        taught = samples if self.every_start else taught
        how = "of them measured" if self.every_start else "held out"
        watcher.say(
            f"{len(taught)} conversations to learn from, {len(held_out)} {how} "
            f"({len({sample.start for sample in held_out})} of "
            f"{len({sample.start for sample in samples})} starts)"
        )
        base = load_base(settings, folder, full=self.full)
        lesson = self._lesson(base.num_parameters(), watcher.say)
        mode = SHARED_ADAPTER if self.shared else "per_player"
        names = (WHOLE_MODEL,) if self.full else adapter_names(self.setup.spec.num_players, mode)
        rate = lesson.learning_rate
        model, students = make_students(
            base, names, settings, taught, held_out, rate, batch_size=self.batch
        )
        kept = self._kept(model, names, rate, chat, samples)
        if self.resume and not kept.restore(students):
            watcher.say(f"--resume: {self.out} keeps no state yet; starting at the beginning")
        if not kept.history:
            kept.history += [held_out_figures(base, student, lesson) for student in students]

        def on_step(student: Student, loss: float) -> None:
            watcher.show(student.name, student.step, self.steps, f"{student.name}, loss {loss:.3f}")

        for figures in learn(base, students, lesson, on_step, watcher.should_stop):
            kept.history += figures
            kept.save(model, chat.tokenizer, students)
            for row in figures:
                figure = f"held-out loss {row['loss']:.4f}, accuracy {row['accuracy']:.3f}"
                watcher.say(f"{row['name']}, step {row['step']}: {figure}")
        if any(student.step < self.steps for student in students):
            kept.save(model, chat.tokenizer, students)
            steps = ", ".join(
                f"{student.name} at step {student.step} of {self.steps}" for student in students
            )
            raise StoppedError(f"{steps}, kept in {self.out}")
        return [row for student in students for row in _rows(kept.history, student)]

    def _read_games(self, chat: ChatFormat, watcher: Watcher) -> list[Sample]:
        limits = self.settings.max_model_len, self.settings.max_completion_length
        encoder = Encoder(
            setup=self.setup, chat=chat, max_model_len=limits[0], max_completion_length=limits[1]
        )
        sources, samples = self.sources, list[Sample]()
        # Of files it is known only when they are read.
        total = None if sources.paths else len(sources.lineups) * sources.num_tasks
        for number, own in enumerate(
            sources.samples(encoder, seed=self.settings.seed, say=watcher.say), 1
        ):
            samples += own
            watcher.show("games", number, total, "games")
            if watcher.should_stop():
                raise StoppedError("the games were not all read; nothing was learned yet")
        watcher.say(encoder.line())
        return samples

    def _lesson(self, num_parameters: int, say: Callable[[str], None]) -> Lesson:
        settings = self.settings
        dtype: torch.dtype = getattr(torch, settings.dtype)
        what, rate = "model" if self.full else "adapters", self.learning_rate
        if rate is None:
            rate = _RATES[what, num_parameters > LARGE]
            say(
                f"learning rate: {rate:g} ({what} of {num_parameters / 1e6:.1f} M parameters; "
                "--learning-rate sets it)"
            )
        return Lesson(
            steps=self.steps,
            micro_batch=min(self.batch, settings.per_device_train_batch_size),
            learning_rate=rate,
            max_grad_norm=settings.max_grad_norm,
            autocast=dtype if self.full and dtype != torch.float32 else None,
        )

    def _kept(
        self,
        model: Any,
        names: Sequence[str],
        rate: float,
        chat: ChatFormat,
        samples: Sequence[Sample],
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
        used = ("max_grad_norm", "seed", *(() if self.full else ("lora_rank", "lora_alpha")))
        key = {
            **identity,
            "data": data_digest(samples),
            "learns": list(names),
            "steps": self.steps,
            "batch": self.batch,
            "learning_rate": rate,
            **({"every_start": True} if self.every_start else {}),
            **{name: getattr(settings, name) for name in used},
        }
        return Kept(out=self.out, key=key, facts=facts, history=[])


def _rows(
    history: Sequence[Mapping[str, Any]], student: Student
) -> list[tuple[str, Mapping[str, Any]]]:
    own = [row for row in history if row["name"] == student.name]
    best = next(row for row in own if row["step"] == student.best_step)
    return [("before", own[0]), ("best", best), ("last", own[-1])]
