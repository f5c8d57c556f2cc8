"""What goes wrong in a scripted trainer: the tests write a plan, the trainer's process reads it."""

import dataclasses
import json
import os
from dataclasses import dataclass

PLAN_VARIABLE = "SCRIPTED"
"""The environment variable that carries a plan, as JSON."""
PLANTED_RANK = 1
"""Number of the process on which a fault of one process is planted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerSteps:
    """A player, and the steps in which something happens to it."""

    player: int
    """The player's index."""
    steps: tuple[int, ...]
    """Numbers of steps, counted from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The faults and pretences of one trainer; the default is a trainer where nothing goes wrong.

    Steps are counted from 0, as versions of the adapters are.
    """

    absent: PlayerSteps | None = None
    """This player's turns are removed from the episodes."""
    empty: tuple[int, ...] = ()
    """Steps of which every game is dropped."""
    nan_loss: PlayerSteps | None = None
    """The logprobs of this player's forward passes are NaN."""
    nan_reward: tuple[int, ...] = ()
    """Steps in which one game has a reward of NaN."""
    full_disk: tuple[int, ...] = ()
    """Numbers of the checkpoints that cannot be written, counted from 1."""
    any_vocabulary: bool = False
    """The model's tokenizer need not know the environment's words."""
    rows: tuple[tuple[int, ...], ...] = ()
    """By step, how many of its episodes each player has turns in, by its index; (): in all."""
    wrong_logprobs: PlayerSteps | None = None
    """On rank `PLANTED_RANK` alone, the trainer's logprobs of this player are off by a nat."""
    broken: tuple[int, ...] = ()
    """Steps in which rank `PLANTED_RANK` alone raises an error that nobody foresaw."""
    counts: str | None = None
    """Folder of rank-0.json, …: how many passes through the model each rank has made."""
    plain: bool = False
    """ms-swift's own forward pass over all tokens and PEFT's own layers are used."""
    apart: bool = False
    """Every player has forward passes of its own."""
    seconds: float = 0.2
    """How long games take in an overlapped trainer."""
    stale: int | None = None
    """In an overlapped trainer: this player's games come from the version before, from version 1
    on, whatever their stamps say."""

    def to_json(self) -> str:
        """Return the value of `PLAN_VARIABLE`."""
        return json.dumps(dataclasses.asdict(self))


def read_plan() -> Plan:
    """Return the plan of this process, from its environment."""
    fields = json.loads(os.environ.get(PLAN_VARIABLE, "{}"))
    for name in ("absent", "nan_loss", "wrong_logprobs"):
        if fields.get(name) is not None:
            fields[name] = PlayerSteps(**fields[name])
    return Plan(**fields)
