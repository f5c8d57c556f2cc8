"""Small networks that learn beside the model, each with an optimizer of its own, from features that
they never move.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

WIDTH = 64
"""Of the one hidden layer of a head."""
MAX_NORM = 1.0
"""Of an update's gradient."""
Place = tuple[int, int]
"""Number of a game in the step, and of a turn in it."""
Seen = tuple[str, list[Place], torch.Tensor]
"""A player, turns of its own, and [turns, size] features of each."""


def value_head(num_features: int) -> nn.Sequential:
    """Return a head that says 0 of everything as long as it has learned nothing."""
    head = nn.Sequential(nn.Linear(num_features, WIDTH), nn.Tanh(), last := nn.Linear(WIDTH, 1))
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return head


def explained(targets: torch.Tensor, foreseen: torch.Tensor) -> float:
    """Return the share of the targets' variance that was foreseen; 0 where they do not vary."""
    spread = float(targets.var(unbiased=False))
    return 1 - float((targets - foreseen).var(unbiased=False)) / spread if spread else 0.0


class Learner:
    """A module on the CPU, its optimizer, and the number of steps that it has learned from."""

    def __init__(self, make: Callable[[], nn.Module], rate: float, seed: str) -> None:
        """Make the module, drawn by `seed` alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]) >> 1)
            self.head: Any = make()
        self.optimizer = torch.optim.Adam(self.head.parameters(), lr=rate)
        self.steps = 0

    def update(self, loss: torch.Tensor) -> None:
        """Take one step down a loss."""
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.head.parameters(), MAX_NORM)
        self.optimizer.step()

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of all that a resumed run needs."""
        found = {f"head.{name}": value for name, value in self.head.state_dict().items()}
        for number, moments in self.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{number}.{name}": value for name, value in moments.items()}
        return {name: value.clone() for name, value in found.items()} | {
            "steps": torch.tensor(self.steps)
        }

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Put a `state` back."""
        moments: dict[int, dict[str, torch.Tensor]] = defaultdict(dict)
        head = {}
        for key, value in state.items():
            part, _, name = key.partition(".")
            if part == "head":
                head[name] = value
            elif part == "optimizer":
                number, _, moment = name.partition(".")
                moments[int(number)][moment] = value.clone()
        self.head.load_state_dict(head)
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": dict(moments)})
        self.steps = int(state["steps"])


class Learners:
    """Those of a run, by name."""

    each: Mapping[str, Any]

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of all states, by "<name>|<key>"."""
        return {
            f"{name}|{key}": value
            for name, one in self.each.items()
            for key, value in one.state().items()
        }

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Put a `state` back; what has none in it stays new."""
        for name, one in self.each.items():
            own = {
                key.removeprefix(f"{name}|"): value
                for key, value in state.items()
                if key.startswith(f"{name}|")
            }
            if own:
                one.restore(own)


def by_place(seen: list[Seen]) -> tuple[list[str], list[Place], torch.Tensor]:
    """Return players, places and [turns, size] features of all that was seen, in one order on every
    process.
    """
    found = [(place, player) for player, places, _ in seen for place in places]
    order = sorted(range(len(found)), key=lambda at: found[at][0])
    features = (
        torch.cat([one for _, places, one in seen if places])[order] if found else torch.empty(0, 0)
    )
    return [found[at][1] for at in order], [found[at][0] for at in order], features
