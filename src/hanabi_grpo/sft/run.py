"""One warm start from its options to its result."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.handshake import tokenizer_hash
from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model
from hanabi_grpo.runs.run_folder import leave_run_folder, lock_run_folder, make_run_folder, used_entries
from hanabi_grpo.settings import Settings
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.games import Sources
from hanabi_grpo.sft.samples import data_digest, split_held_out

_LARGE = 200_000_000
_RATES = {("adapters", False): 2e-3, ("adapters", True): 2e-4, ("model", False): 1e-3, ("model", True): 1e-5}
"""Peak learning rates: what learns, and whether the model has more than `_LARGE` parameters."""

Say = Callable[[str], None]
Show = Callable[[str, int, int | None, str], None]
"""What a progress bar is told: its name, how much is done of how much, and its text."""


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
    config: EnvConfig
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

    def run(self, say: Say, show: Show, should_stop: Callable[[], bool]) -> Outcome:
        """Read the games, learn, and keep the best and the newest state in `out`.

        Args:
            say: Receives a line about each choice that was made.
            show: Receives the progress.
            should_stop: Asked often; True ends the work with the newest state kept.

        Raises:
            SettingsError: Options, games or a model that do not fit.
            RunFolderError: `out` is in use or cannot be written.
            NonFiniteError: The loss became infinite or no number.
        """
        make_run_folder(self.out)
        with lock_run_folder(self.out):
            try:
                self._check_folder()
                return self._run(say, show, should_stop)
            finally:
                leave_run_folder(self.out)

    def _check_folder(self) -> None:
        used = used_entries(self.out)
        if used and not self.resume:
            raise RunFolderError(
                f"--out {self.out}: holds something already ({', '.join(used[:3])}). Go on with it by --resume, or "
                "choose another folder."
            )

    def _run(self, say: Say, show: Show, should_stop: Callable[[], bool]) -> Outcome:
        from transformers import AutoTokenizer

        folder = resolve_model(self.settings.model)
        chat = ChatFormat.from_tokenizer(AutoTokenizer.from_pretrained(folder), thinking=self.settings.thinking)
        encoder = Encoder(
            config=self.config,
            chat=chat,
            max_model_len=self.settings.max_model_len,
            max_completion_length=self.settings.max_completion_length,
        )
        notes: list[str] = []
        played = len(self.sources.line_ups) * self.sources.num_deals
        total = None if self.sources.paths else played

        def read(games: int) -> None:
            show("games", games, total, "games")
            if should_stop():
                raise _StoppedError

        try:
            samples = self.sources.samples(self.config, encoder, seed=self.settings.seed, notes=notes, progress=read)
        except _StoppedError:
            return Outcome(is_finished=False, stopped_at="the games were not all read; nothing was learned yet")
        for note in notes:
            say(note)
        say(encoder.counts.line())
        taught, held_out = split_held_out(samples)
        say(
            f"{len(taught)} conversations to learn from, {len(held_out)} held out "
            f"({len({sample.deck for sample in held_out})} of {len({sample.deck for sample in samples})} decks)"
        )
        identity = {
            "model_fingerprint": model_fingerprint(folder),
            "tokenizer_hash": tokenizer_hash(chat.tokenizer),
            "chat_hash": chat.hash,
            "dtype": self.settings.dtype,
        }
        return self._learn(folder, chat, (taught, held_out), identity, data_digest(samples), say, show, should_stop)

    def _learn(
        self,
        folder: Path,
        chat: ChatFormat,
        samples: tuple[list[Any], list[Any]],
        identity: dict[str, Any],
        digest: str,
        say: Say,
        show: Show,
        should_stop: Callable[[], bool],
    ) -> Outcome:
        import torch

        from hanabi_grpo.sft.learning import Lesson, held_out_figures, learn
        from hanabi_grpo.sft.state import Kept
        from hanabi_grpo.sft.students import load_base, make_students, student_names
        from hanabi_grpo.training.model.adapters import base_checksum

        settings = self.settings
        base = load_base(settings, folder, full=self.full)
        names = student_names(self.config.players, full=self.full, shared=self.shared)
        rate = self._rate(base.num_parameters(), say)
        dtype: torch.dtype = getattr(torch, settings.dtype)
        lesson = Lesson(
            steps=self.steps,
            micro_batch=min(self.batch, settings.per_device_train_batch_size),
            learning_rate=rate,
            max_grad_norm=settings.max_grad_norm,
            pad_id=chat.eos_id if chat.tokenizer.pad_token_id is None else int(chat.tokenizer.pad_token_id),
            autocast=dtype if self.full and dtype != torch.float32 else None,
        )
        model, students = make_students(base, names, settings, *samples, learning_rate=rate, batch_size=self.batch)
        key = {
            **identity,
            "data": digest,
            "learns": list(names),
            "steps": self.steps,
            "batch": self.batch,
            "learning_rate": rate,
            "max_grad_norm": settings.max_grad_norm,
            "seed": settings.seed,
            **({} if self.full else {"lora_rank": settings.lora_rank, "lora_alpha": settings.lora_alpha}),
        }
        facts = {
            "board_hashes": [self.config.spec().hash],
            "model": settings.model,
            **({} if self.full else {"base_checksum": base_checksum(model)}),
            **identity,
            "env_config": self.config.model_dump(mode="json"),
            "games": self.sources.describe(),
        }
        kept = Kept(out=self.out, key=key, facts=facts, history=[])
        if self.resume and not kept.restore(students):
            say(f"--resume: {self.out} keeps no state yet; starting at the beginning")
        if not kept.history:
            kept.add([held_out_figures(base, student, lesson) for student in students])

        def on_step(student: Any, loss: float) -> None:
            show(student.name, student.step, self.steps, f"{student.name}, loss {loss:.3f}")

        def on_evaluation(figures: list[Any]) -> None:
            kept.add(figures)
            kept.save(model, chat.tokenizer, students, dtype=dtype)
            for one in figures:
                say(f"{one.name}, step {one.step}: held-out loss {one.loss:.4f}, accuracy {one.accuracy:.3f}")

        done = learn(base, students, lesson, on_step=on_step, on_evaluation=on_evaluation, should_stop=should_stop)
        if not done:
            kept.save(model, chat.tokenizer, students, dtype=dtype)
            steps = ", ".join(f"{student.name} at step {student.step} of {self.steps}" for student in students)
            return Outcome(is_finished=False, stopped_at=f"{steps}, kept in {self.out}")
        return Outcome(is_finished=True, rows=tuple(_rows(kept.history, students)), next_steps=self._next_steps())

    def _rate(self, num_parameters: int, say: Say) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        what, is_large = "model" if self.full else "adapters", num_parameters > _LARGE
        rate = _RATES[what, is_large]
        say(f"learning rate: {rate:g} ({what} of {num_parameters / 1e6:.1f} M parameters; --learning-rate sets it)")
        return rate

    def _next_steps(self) -> tuple[str, ...]:
        if self.full:
            model = self.out / "model"
            return (
                f"the best is in {model}; MODEL={model} plays and trains on it:",
                f"  MODEL={model} hanabi-grpo evaluate base --own-server",
            )
        best = self.out / "checkpoint-0"
        return (
            f"the best is in {best}, the last step in {self.out / 'last' / 'checkpoint-0'}",
            f"  hanabi-grpo evaluate {best} --own-server",
            f"  HANABI_START_FROM={best} bash tools/train/train_grpo_msswift.sh",
        )


class _StoppedError(Exception):
    """Reading games was stopped."""


def _rows(history: list[dict[str, Any]], students: list[Any]) -> list[tuple[str, dict[str, Any]]]:
    rows = []
    for student in students:
        own = [row for row in history if row["name"] == student.name]
        best = [row for row in own if row["step"] == student.best_step]
        rows += [("before", own[0]), ("best", best[-1]), ("last", own[-1])]
    return rows
