"""One warm start from its options to its result."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import AutoTokenizer

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import HanabiGrpoError, RunFolderError
from hanabi_grpo.processes import usable_cores
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.handshake import tokenizer_hash
from hanabi_grpo.rollout.vocabulary import boards_of
from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model
from hanabi_grpo.runs.run_folder import (
    leave_run_folder,
    lock_run_folder,
    make_run_folder,
    some_of,
    used_entries,
)
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.defaults import tiny_model_command
from hanabi_grpo.settings.per_player import PerPlayer
from hanabi_grpo.settings.refs import BASE
from hanabi_grpo.settings.shell import TRAIN_SCRIPT, start_words
from hanabi_grpo.sft.beliefs import parse_shares
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.kept_games import KeptGames, removing_refused_games
from hanabi_grpo.sft.learning import (
    LARGE,
    WHOLE_MODEL,
    Lesson,
    Student,
    belief_text,
    held_out_figures,
    learn,
    load_base,
    make_students,
)
from hanabi_grpo.sft.sampled_softmax import NUM_DRAWN
from hanabi_grpo.sft.samples import Sample, data_digest, split_held_out
from hanabi_grpo.sft.sources import Sources
from hanabi_grpo.sft.state import LAST, MODEL, ResultFolder
from hanabi_grpo.sft.word_parts import WordParts
from hanabi_grpo.training.model.adapters import adapter_names, base_checksum
from hanabi_grpo.types import SHARED_ADAPTER, player_names

_ADAPTER_RATE = 2e-3
"""Default peak learning rate of adapters."""
_LARGE_ADAPTER_RATE = 2e-4
"""The same on a model with more than `LARGE` parameters."""
_MODEL_RATE = 1e-3
"""Default peak learning rate of a whole model."""
_LARGE_MODEL_RATE = 1e-5
"""The same for a model with more than `LARGE` parameters."""


class StoppedError(HanabiGrpoError):
    """A warm start was stopped; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Functions through which a warm start reports its progress and can be stopped."""

    say: Callable[[str], None]
    """Receives a line about each choice that was made."""
    show: Callable[[str, int, int | None, str], None]
    """Receives the progress: name of a bar, amount done, total, and the bar's text."""
    should_stop: Callable[[], bool]
    """Called often; True saves the newest state and ends the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """The options of a warm start."""

    settings: Settings
    """MODEL, SEED, LORA_RANK, LORA_ALPHA, HANABI_DTYPE and the token limits of conversations."""
    setup: Setup[Any]
    """The game."""
    sources: Sources
    out: Path
    """The result folder."""
    steps: int
    """Updates of each adapter."""
    batch: int
    """Conversations per update."""
    learning_rate: float | None
    """The peak learning rate; None: chosen by the size of the model."""
    shared: bool
    """Train one adapter for all players."""
    full: bool
    """Train the whole model instead of adapters."""
    every_start: bool
    """Also learn from the held-out starts: for boards where the games cover all starts."""
    resume: bool
    """Continue the warm start in `out`."""
    beliefs: PerPlayer = 0.0
    """Share of learned replies that answer questions about hidden cards, for all seats or each."""

    def run(self, watcher: Watcher) -> list[tuple[str, Mapping[str, Any]]]:
        """Read the games, learn, and save the best and the newest state in `out`.

        Args:
            watcher: Receives the progress, and can stop the work.

        Returns:
            Label (before, best, last) and held-out figures of each student.

        Raises:
            StoppedError: The watcher stopped the work.
            SettingsError: Options, games or model do not fit together.
            RunFolderError: `out` is in use or cannot be written.
            NonFiniteError: The loss became infinite or NaN.
        """
        make_run_folder(self.out, option="--out")
        with lock_run_folder(self.out, option="--out"):
            try:
                used = used_entries(self.out)
                if used and not self.resume:
                    raise RunFolderError(
                        f"--out {self.out}: is not empty ({some_of(used)}). Continue a warm start "
                        "with --resume, or choose another folder."
                    )
                return self._run(watcher)
            finally:
                leave_run_folder(self.out)

    def next_steps(self, assignments: Sequence[str] = ()) -> tuple[str, ...]:
        """Return where the result is, and the commands to run next.

        Args:
            assignments: NAME=value of each further setting that these commands need.
        """
        evaluate = list(assignments)
        train = list(assignments)
        if self.full:
            best = self.out / MODEL
            model = f"MODEL={shlex.quote(str(best))}"
            evaluate.append(model)
            train.append(model)
            lineup = BASE
            where = f"the best model is in {best}"
        else:
            best = self.out / "checkpoint-0"
            lineup, start = self._uses(best)
            train.append(f"HANABI_START_FROM={shlex.quote(start)}")
            last = self.out / LAST / "checkpoint-0"
            where = f"the best adapters are in {best}, those of the last step in {last}"
        evaluate += ["hanabi-grpo", "evaluate", shlex.quote(lineup), "--own-server"]
        train += start_words(TRAIN_SCRIPT, "train")
        return where, f"  {' '.join(evaluate)}", f"  {' '.join(train)}"

    def _uses(self, checkpoint: Path) -> tuple[str, str]:
        """Return a lineup with the adapters of a checkpoint, and HANABI_START_FROM.

        If only some seats have learned, the other seats play as the base model.
        """
        learned = self._student_names()
        players = player_names(self.setup.spec.num_players)
        if SHARED_ADAPTER in learned or learned == players:
            return str(checkpoint), str(checkpoint)
        seats = [f"{checkpoint}:{name}" if name in learned else BASE for name in players]
        starts = [f"{name}={checkpoint}" for name in learned]
        return ",".join(seats), ",".join(starts)

    def _run(self, watcher: Watcher) -> list[tuple[str, Mapping[str, Any]]]:
        settings = self.settings
        folder = resolve_model(settings.model, tiny_model_command(*boards_of([self.setup])))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        chat = ChatFormat.from_tokenizer(tokenizer, thinking=settings.thinking)
        samples = self._read_games(chat, watcher)
        with removing_refused_games(self.out):
            taught, held_out = split_held_out(samples)
        if self.every_start:
            taught = samples
        watcher.say(self._describe_split(samples, taught, held_out))
        base = load_base(settings, folder, full=self.full)
        lesson = self._lesson(base.num_parameters(), watcher.say)
        names = self._student_names()
        parts = None
        if self.full:
            word_parts = self.setup.environment.word_parts(self.setup.config)
            parts = WordParts.of(base, tokenizer, word_parts)
        with removing_refused_games(self.out):
            model, students = make_students(
                base,
                names,
                settings,
                taught,
                held_out,
                lesson.learning_rate,
                batch_size=self.batch,
                parts=parts,
            )
        result = self._result_folder(model, students, lesson.learning_rate, chat, samples)
        if self.resume and not result.restore(students):
            watcher.say(f"--resume: {self.out} has no saved state yet; starting from scratch")
        if not result.history:
            result.history += [held_out_figures(base, student, lesson) for student in students]

        def on_step(student: Student, loss: float) -> None:
            watcher.show(student.name, student.step, self.steps, f"{student.name}, loss {loss:.3f}")

        for all_figures in learn(base, students, lesson, on_step, watcher.should_stop):
            result.history += all_figures
            result.save(model, chat.tokenizer, students)
            for figures in all_figures:
                line = (
                    f"{figures['name']}, step {figures['step']}: held-out loss "
                    f"{figures['loss']:.4f}, accuracy {figures['accuracy']:.3f}"
                )
                if beliefs := belief_text(figures):
                    line += f"; belief loss in nats per answer: {beliefs}"
                watcher.say(line)
        if any(student.step < self.steps for student in students):
            result.save(model, chat.tokenizer, students)
            progress = []
            for student in students:
                progress.append(f"{student.name} at step {student.step} of {self.steps}")
            raise StoppedError(f"{', '.join(progress)}, saved in {self.out}")
        rows = []
        for student in students:
            rows += _result_rows(result.history, student)
        return rows

    def _student_names(self) -> tuple[str, ...]:
        if self.full:
            return (WHOLE_MODEL,)
        mode = SHARED_ADAPTER if self.shared else "per_player"
        names = adapter_names(self.setup.spec.num_players, mode)
        seats = self.sources.seats
        if self.shared or seats is None:
            return names
        return tuple(names[seat] for seat in seats)

    def _describe_split(
        self, samples: Sequence[Sample], taught: Sequence[Sample], held_out: Sequence[Sample]
    ) -> str:
        kind = "of them used for evaluation" if self.every_start else "held out"
        num_starts = len({sample.start for sample in samples})
        num_held_out_starts = len({sample.start for sample in held_out})
        return (
            f"{len(taught)} conversations to learn from, {len(held_out)} {kind} "
            f"({num_held_out_starts} of {num_starts} starts)"
        )

    def _read_games(self, chat: ChatFormat, watcher: Watcher) -> list[Sample]:
        sources = self.sources
        encoder = Encoder(
            setup=self.setup,
            chat=chat,
            max_model_len=self.settings.max_model_len,
            max_completion_length=self.settings.max_completion_length,
            belief_shares=parse_shares(self.beliefs, self.setup),
        )
        kept = KeptGames.open(self.out, self._games_key(chat, encoder))
        encoder.counts.update(kept.counts)
        num_scripted = sources.num_script_games
        if kept.num_games:
            watcher.say(f"{kept.num_games} of {num_scripted} games are already in {kept.folder}")
        # The number of games in files is known only after they have been read.
        total = None if sources.paths else num_scripted
        recorded: list[Sample] = []
        games = sources.samples(
            encoder,
            seed=self.settings.seed,
            say=watcher.say,
            first_game=kept.num_games,
            num_workers=usable_cores(),
        )
        # Closed at once if the warm start is stopped, because worker processes may be playing.
        with closing(games):
            for num_games, game_samples in enumerate(games, start=kept.num_games + 1):
                if num_games <= num_scripted:
                    kept.add(game_samples, encoder.counts)
                else:
                    recorded += game_samples
                if num_games == num_scripted:
                    kept.save(encoder.counts)
                watcher.show("games", num_games, total, "games")
                if watcher.should_stop():
                    self._stop_in_games(kept, encoder)
        watcher.say(encoder.line())
        return kept.samples + recorded

    def _stop_in_games(self, kept: KeptGames, encoder: Encoder) -> NoReturn:
        """Save the games of scripts and end the warm start.

        Raises:
            StoppedError: Always.
        """
        kept.save(encoder.counts)
        num_scripted = self.sources.num_script_games
        where = "not all games had been read"
        if num_scripted:
            where = f"{kept.num_games} of {num_scripted} games played, saved in {kept.folder}"
        raise StoppedError(f"{where}; training has not started")

    def _games_key(self, chat: ChatFormat, encoder: Encoder) -> dict[str, Any]:
        """Return everything that the samples from scripts' games depend on."""
        key = {
            **self.sources.script_key(),
            "seed": self.settings.seed,
            "game": self.setup.row(),
            "spec_hash": self.setup.spec.hash,
            "tokenizer_hash": tokenizer_hash(chat.tokenizer),
            "chat_hash": chat.hash,
            "max_model_len": encoder.max_model_len,
            "max_completion_length": encoder.max_completion_length,
        }
        if encoder.belief_shares:
            key["beliefs"] = self.beliefs
        return key

    def _lesson(self, num_parameters: int, say: Callable[[str], None]) -> Lesson:
        settings = self.settings
        rate = self.learning_rate
        if rate is None:
            rate = self._default_rate(num_parameters)
            kind = "model" if self.full else "adapters"
            size = f"{num_parameters / 1e6:.1f} M parameters"
            say(f"learning rate: {rate:g} ({kind}, {size}; set it with --learning-rate)")
        dtype: torch.dtype = getattr(torch, settings.dtype)
        return Lesson(
            steps=self.steps,
            micro_batch=min(self.batch, settings.per_device_train_batch_size),
            learning_rate=rate,
            max_grad_norm=settings.max_grad_norm,
            autocast=dtype if self.full and dtype != torch.float32 else None,
        )

    def _default_rate(self, num_parameters: int) -> float:
        is_large = num_parameters > LARGE
        if self.full:
            return _LARGE_MODEL_RATE if is_large else _MODEL_RATE
        return _LARGE_ADAPTER_RATE if is_large else _ADAPTER_RATE

    def _result_folder(
        self,
        model: Any,
        students: Sequence[Student],
        rate: float,
        chat: ChatFormat,
        samples: Sequence[Sample],
    ) -> ResultFolder:
        """Return the result folder, with everything that the result depends on.

        Args:
            model: The model that the students are part of.
            students: The students.
            rate: Peak learning rate.
            chat: The chat format.
            samples: All samples, held-out ones included.
        """
        settings = self.settings
        identity = {
            "model_fingerprint": model_fingerprint(resolve_model(settings.model)),
            "tokenizer_hash": tokenizer_hash(chat.tokenizer),
            "chat_hash": chat.hash,
            "dtype": settings.dtype,
        }
        facts: dict[str, Any] = {"spec_hashes": [self.setup.spec.hash], "model": settings.model}
        if not self.full:
            facts["base_checksum"] = base_checksum(model)
        facts |= identity
        facts |= self.setup.row()
        facts["games"] = self.sources.describe()
        key: dict[str, Any] = {
            **identity,
            "data": data_digest(samples),
            "learns": [student.name for student in students],
            "steps": self.steps,
            "batch": self.batch,
            "learning_rate": rate,
        }
        if self.every_start:
            key["every_start"] = True
        if any(student.softmax is not None for student in students):
            key["sampled_softmax"] = NUM_DRAWN
        if parse_shares(self.beliefs, self.setup):
            key["beliefs"] = self.beliefs
        key["max_grad_norm"] = settings.max_grad_norm
        key["seed"] = settings.seed
        if not self.full:
            key["lora_rank"] = settings.lora_rank
            key["lora_alpha"] = settings.lora_alpha
        return ResultFolder(out=self.out, key=key, facts=facts, history=[])


def _result_rows(
    history: Sequence[Mapping[str, Any]], student: Student
) -> list[tuple[str, Mapping[str, Any]]]:
    """Return a student's held-out figures before learning, at its best step and at its last."""
    rows = [row for row in history if row["name"] == student.name]
    best = next(row for row in rows if row["step"] == student.best_step)
    return [("before", rows[0]), ("best", best), ("last", rows[-1])]
