"""Small networks that are learned besides the model, from features that are detached from it.

Each network is on the CPU and has its own optimizer.
"""

import hashlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.training.estimators import LearnedValues
from hanabi_grpo.types import Episode

HIDDEN_WIDTH = 64
"""Width of a head's single hidden layer."""
MAX_NORM = 1.0
"""Largest gradient norm of an update; larger gradients are clipped."""
_SEED_BYTES = 8


class TurnPlace(NamedTuple):
    """The place of a turn in a step."""

    game: int
    """Number of the game in the step."""
    turn: int
    """Number of the turn in the game."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerTurns:
    """Some turns of one player, computed by one process."""

    player: str
    """E.g. "player_0"."""
    places: Sequence[TurnPlace]
    features: torch.Tensor
    """[turns, size], see `features.turn_features`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTurns:
    """All turns of trained players in a step, as columns sorted by place."""

    players: Sequence[str]
    places: Sequence[TurnPlace]
    features: torch.Tensor
    """[turns, size]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The networks' results for a step's episodes."""

    metrics: Mapping[str, float]
    values: LearnedValues
    """Values of these episodes, for the estimator."""


def value_head(num_features: int) -> nn.Sequential:
    """Return a head whose output is 0 for every input until it has learned something."""
    first = nn.Linear(num_features, HIDDEN_WIDTH)
    last = nn.Linear(HIDDEN_WIDTH, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(first, nn.Tanh(), last)


def explained_variance(targets: torch.Tensor, predictions: torch.Tensor) -> float:
    """Return the share of the targets' variance that was predicted; 0 if they do not vary."""
    variance = float(targets.var(unbiased=False))
    if not variance:
        return 0.0
    return 1 - float((targets - predictions).var(unbiased=False)) / variance


class Learner:
    """A module on the CPU, its optimizer, and the number of steps that it has learned from."""

    def __init__(self, make: Callable[[], nn.Module], rate: float, seed: str) -> None:
        """Create the module.

        Args:
            make: Returns the new module.
            rate: Learning rate.
            seed: Seed of the module's weights, independent of the global random state.
        """
        digest = hashlib.sha256(seed.encode()).digest()
        # torch accepts 63 bits.
        number = int.from_bytes(digest[:_SEED_BYTES]) >> 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            self.head: Any = make()
        self.optimizer = torch.optim.Adam(self.head.parameters(), lr=rate)
        self.steps = 0

    def update(self, loss: torch.Tensor) -> None:
        """Take one optimizer step on a loss."""
        self.optimizer.zero_grad()
        loss.backward()
        self.step()

    def step(self) -> None:
        """Take one optimizer step with the present gradient."""
        nn.utils.clip_grad_norm_(self.head.parameters(), MAX_NORM)
        self.optimizer.step()

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of everything that a resumed run needs.

        Keys are "head.<parameter>", "optimizer.<number of the parameter>.<moment>" and "steps".
        """
        state: dict[str, torch.Tensor] = {}
        for name, value in self.head.state_dict().items():
            state[f"head.{name}"] = _copy_to_cpu(value)
        for number, moments in self.optimizer.state_dict()["state"].items():
            for name, value in moments.items():
                state[f"optimizer.{number}.{name}"] = _copy_to_cpu(value)
        state["steps"] = torch.tensor(self.steps)
        return state

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore a `state`.

        Raises:
            RunFolderError: The state belongs to a different network.
        """
        parameters: dict[str, torch.Tensor] = {}
        moments: dict[int, dict[str, torch.Tensor]] = defaultdict(dict)
        for key, value in state.items():
            part, _, name = key.partition(".")
            if part == "head":
                parameters[name] = value
            elif part == "optimizer":
                number, _, moment = name.partition(".")
                moments[int(number)][moment] = value.clone()
        try:
            self.head.load_state_dict(parameters)
        except RuntimeError as error:
            raise RunFolderError(
                "the critics or credit networks in the checkpoint do not match those of these "
                f"settings ({' '.join(str(error).split())}). Set HANABI_ADVANTAGE and "
                "HANABI_CRITIC as in the run that wrote it and use its version, or start a new run "
                "with HANABI_START_FROM set to the checkpoint."
            ) from error
        optimizer_state = self.optimizer.state_dict()
        optimizer_state["state"] = dict(moments)
        self.optimizer.load_state_dict(optimizer_state)
        self.steps = int(state["steps"])


def _copy_to_cpu(value: torch.Tensor) -> torch.Tensor:
    return value.detach().to("cpu", copy=True)


class Learners(ABC):
    """All networks that a run learns besides the model, by name."""

    reads_replies: ClassVar[bool]
    """Whether the features of a turn include its reply, or only its prompt."""
    by_name: Mapping[str, Learner]
    """E.g. the critic of each adapter."""

    @abstractmethod
    def observe(
        self, groups: Sequence[Sequence[Episode]], turns: Sequence[PlayerTurns]
    ) -> Observation:
        """Evaluate a step's episodes, and learn from them.

        Args:
            groups: The step's groups.
            turns: The features of trained players' turns, from all processes, in any order.
        """

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of all states, by "<name>|<key>"."""
        return states_of(self.by_name)

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore a `state`; a network that is not in it stays newly initialized."""
        restore_states(self.by_name, state)


def states_of(learners: Mapping[str, Learner]) -> dict[str, torch.Tensor]:
    """Return copies of the states of all learners, by "<name>|<key>"."""
    state: dict[str, torch.Tensor] = {}
    for name, learner in learners.items():
        for key, value in learner.state().items():
            state[f"{name}|{key}"] = value
    return state


def restore_states(learners: Mapping[str, Learner], state: Mapping[str, torch.Tensor]) -> None:
    """Restore the result of `states_of`; a learner that is not in it stays newly initialized."""
    for name, learner in learners.items():
        prefix = f"{name}|"
        learner_state = {}
        for key, value in state.items():
            if key.startswith(prefix):
                learner_state[key.removeprefix(prefix)] = value
        if learner_state:
            learner.restore(learner_state)


def sort_by_place(turns: Sequence[PlayerTurns]) -> StepTurns:
    """Return all turns in a fixed order, which is the same on every process."""
    players: list[str] = []
    places: list[TurnPlace] = []
    features: list[torch.Tensor] = []
    for player_turns in turns:
        players.extend([player_turns.player] * len(player_turns.places))
        places.extend(player_turns.places)
        if player_turns.places:
            features.append(player_turns.features)
    if not places:
        return StepTurns(players=[], places=[], features=torch.empty(0, 0))
    order = sorted(range(len(places)), key=places.__getitem__)
    return StepTurns(
        players=[players[row] for row in order],
        places=[places[row] for row in order],
        features=torch.cat(features)[order],
    )
