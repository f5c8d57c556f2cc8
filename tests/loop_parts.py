"""A training run of the real loop on a tiny random model, whose games are written down.

Model, adapters, loss, optimizer, guard, schedule and checkpoints are the real ones; only the link
to a server and what the rest of the process is told are stand-ins.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.curves import validation_curves
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.registry import setup
from hanabi_grpo.runs.history import IncidentLog
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import own_seats
from hanabi_grpo.training.isolation import PlayerGuard, PlayerSchedule, player_groups
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.policy import Policy
from hanabi_grpo.training.run import RunParts, TrainingRun
from hanabi_grpo.training.validation import Validation
from hanabi_grpo.types import Episode, Turn, player_names
from made_games import made_episode, made_turn
from small_models import small_model

TEXTS = {11: "<think>", 12: "</think>"}
"""Texts of tokens that mean something in a test."""


def token_text(token: int) -> str:
    """Return the text of a token of the tiny random model."""
    return TEXTS.get(token, f" t{token}")


NAMES = player_names(2)
SPEC_HASH = "x"
LAPTOP: Setup[Any] = setup("hanabi", {"preset": "laptop"})
BASE_SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "num_generations": 2,
    "tasks_per_step": 2,
    "tokens_per_micro_batch": 2048,
    "learning_rate": 0.05,
    "lr_scheduler_type": "linear",
    "advantage": "grpo",
    "parity_tolerance": 100.0,
    "episodes_every": 1000,
    "lora_rank": 8,
}

Games = Callable[[int], list[list[Episode]]]
"""The groups of a step by the number of steps before it."""


def written_games(step: int) -> list[list[Episode]]:
    """Return two groups of two games, in which both players speak and all games differ."""
    seats = own_seats(2, NAMES, step)
    groups = []
    for task in range(2):
        group = []
        for game in range(2):
            first = made_turn(
                0,
                3 + game,
                4 + task,
                prompt_ids=(1, 2, 5 + task),
                version=step,
                rewards={"score": float(game + step % 2)},
            )
            second = made_turn(
                1, 6 + game, 7, 8 + task, prompt_ids=(2, 1), version=step, rewards={"score": 0.5}
            )
            group.append(_episode(first, second, seats=seats, task=task, game=game))
        groups.append(group)
    return groups


def _episode(*turns: Turn, seats: tuple[str, ...], task: int, game: int) -> Episode:
    return made_episode(*turns, seats=seats, seed=task, game=game, spec_hash=SPEC_HASH)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRequest:
    """Games that are asked for ahead (HANABI_OVERLAP)."""

    version: int
    """Who plays them."""


class WrittenLink:
    """A link whose server plays what was written down, and remembers what it was given."""

    def __init__(self, settings: Settings, run_folder: Path, games: Games) -> None:
        self.settings = settings
        self.run_folder = run_folder
        self.incidents = IncidentLog(run_folder)
        self.spec_hashes = [SPEC_HASH]
        self.server_facts: dict[str, Any] = {}
        self.partner_names: dict[str, str] = {}
        self.instances: tuple[str, ...] = ()
        """No server process, so there is none to probe."""
        self.pushed: list[int] = []
        self.partner_records: list[Any] = []
        """What partners were to be drawn by."""
        self.validation_scores: list[float] = []
        """One for each validation to come."""
        self._games = games

    def push(self, model: Any, names: tuple[str, ...], version: int) -> None:
        self.pushed.append(version)

    def play(self, tasks: Sequence[Any], names: tuple[str, ...], version: int) -> RolloutResult:
        return RolloutResult(groups=self._games(version), dropped=())

    def prepare(
        self, tasks: Sequence[Any], names: tuple[str, ...], version: int
    ) -> "WrittenRequest":
        return WrittenRequest(version=version)

    def fetch(self, request: "WrittenRequest") -> RolloutResult:
        return RolloutResult(groups=self._games(request.version), dropped=())

    def accept(self, request: "WrittenRequest", result: RolloutResult) -> RolloutResult:
        return result

    def validated(
        self, curves: Sequence[Any], names: tuple[str, ...], version: int
    ) -> dict[str, RolloutResult]:
        score = self.validation_scores.pop(0)
        groups = []
        for seed in range(2):
            game = made_episode(made_turn(0, 3), spec_hash=LAPTOP.spec.hash, score=score, seed=seed)
            groups.append([game])
        [curve] = curves
        return {curve.name: RolloutResult(groups=groups, dropped=())}

    def copy_log(self) -> None:
        pass

    def use_partner_record(self, record: Any) -> None:
        self.partner_records.append(record)


class RecordedEvents:
    """Keeps what the loop tells the rest of the process."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.rows: list[dict[str, float]] = []
        self.saved: list[Path] = []
        self.save_every = 0
        self._num_steps = 0
        self._is_last = False

    @property
    def should_stop(self) -> bool:
        return self._is_last

    @property
    def should_save(self) -> bool:
        return bool(self.save_every) and self._num_steps % self.save_every == 0

    def autocast(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def begin_step(self) -> None:
        self.calls.append("begin_step")

    def end_micro_batch(self) -> None:
        self.calls.append("end_micro_batch")

    def before_update(self) -> None:
        self.calls.append("before_update")

    def after_update(self) -> None:
        self.calls.append("after_update")

    def end_step(self, num_steps: int, *, is_last: bool) -> None:
        self.calls.append("end_step")
        self._num_steps = num_steps
        self._is_last = is_last

    def log(self, figures: Mapping[str, float]) -> None:
        self.rows.append(dict(figures))

    def end_save(self, folder: Path) -> None:
        self.saved.append(folder)


class RunOfATest:
    """A run, and the parts that a test looks at."""

    def __init__(
        self,
        run_folder: Path,
        *,
        num_steps: int = 3,
        games: Games = written_games,
        resume_folder: Path | None = None,
        first_step: int = 0,
        has_whole_weights: bool = True,
        policy_model: Any = None,
        tokenizer: Any = None,
        setup: Setup[Any] = LAPTOP,
        **settings: Any,
    ) -> None:
        run_folder.mkdir(parents=True, exist_ok=True)
        self.settings = Settings(**{**BASE_SETTINGS, **settings})
        self.link = WrittenLink(self.settings, run_folder, games)
        self.events = RecordedEvents()
        self.incidents: list[tuple[str, str]] = []
        self.model = policy_model or tiny_policy_model(self.settings)
        self.guard = PlayerGuard(
            max_norm=self.settings.max_grad_norm, sharded=False, report=self._report
        )
        groups = player_groups(self.model, NAMES, self.settings.rate_of)
        optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
        self.guard.watch(optimizer)
        self.optimizer = optimizer
        accelerator = Accelerator(cpu=True)
        schedule = PlayerSchedule(
            optimizer,
            self.settings.lr_scheduler_type,
            num_training_steps=num_steps,
            num_warmup_steps=0,
        )
        setups = {SPEC_HASH: setup}
        curves = validation_curves(self.settings)
        validation = Validation(self.settings, run_folder, curves, first_step)
        self.policy = Policy(
            self.model,
            NAMES,
            temperature=1.0,
            token_filter=self.settings.token_filter,
            has_whole_weights=has_whole_weights,
        )
        parts = RunParts(
            settings=self.settings,
            link=self.link,  # type: ignore[arg-type]
            accelerator=accelerator,
            policy=self.policy,
            optimizer=accelerator.prepare(optimizer),
            schedule=schedule,
            guard=self.guard,
            validation=validation,
            setups=setups,
            events=self.events,
            report=self._report,
            pad_id=0,
            end_id=None,
            token_text=token_text,
            max_steps=num_steps,
            first_step=first_step,
            resume_folder=resume_folder,
            base_checksum=adapters.base_checksum(self.model),
            started_from={},
            tokenizer=tokenizer,
        )
        self.run = TrainingRun(parts)

    def weights(self, player: str) -> dict[str, torch.Tensor]:
        """Return a copy of a player's adapter."""
        return {
            name: value.detach().clone()
            for name, value in self.model.named_parameters()
            if f".{player}." in name
        }

    def _report(self, kind: str, message: str, **_: object) -> None:
        self.incidents.append((kind, message))


def tiny_policy_model(settings: Settings, **sizes: float) -> Any:
    """Return the model that every run of a test begins with; its adapters do something already."""
    torch.manual_seed(0)
    model = adapters.add_adapters(
        small_model(**sizes),
        NAMES,
        rank={name: settings.rank_of(name) for name in NAMES},
        alpha={name: settings.alpha_of(name) for name in NAMES},
        seed=1,
    )
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.1)
    return model


def same_weights(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Tell whether two adapters are equal bit by bit."""
    return all(torch.equal(value, other[name]) for name, value in one.items())
