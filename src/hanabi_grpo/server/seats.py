"""The seats of one request: adapters to hold, and a player for each seat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hanabi_grpo.agents.script import make_script
from hanabi_grpo.agents.served_model import Model, PromptTokens, ServedPlayer
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import VersionError
from hanabi_grpo.rollout.loop import Player
from hanabi_grpo.rollout.messages import RequestedTask
from hanabi_grpo.rollout.sampler import SamplingConfig
from hanabi_grpo.server.adapter_loader import HeldAdapter
from hanabi_grpo.settings.refs import AdapterRef, ScriptRef, SeatRef, UrlRef, parse_seat


def wanted_adapters(tasks: Sequence[RequestedTask]) -> dict[str, int]:
    """Return the version of every adapter that a request needs.

    Raises:
        VersionError: An adapter is asked for at two versions.
    """
    wanted: dict[str, int] = {}
    # Most tasks of a request have the same seats.
    for refs in dict.fromkeys(task.refs for task in tasks):
        for ref in refs:
            if not isinstance(ref, AdapterRef) or ref.version is None:
                continue
            first = wanted.setdefault(ref.adapter, ref.version)
            if first != ref.version:
                raise VersionError(
                    f"{ref.adapter} is asked for as @{first} and @{ref.version}; one request, one "
                    "version."
                )
    return wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Seats players at the tasks of one request.

    A script or adapter that sits at several tasks is one player.
    """

    model: Model
    sampling: SamplingConfig
    leased: Mapping[str, HeldAdapter]
    """By adapter name, the version that is held for this request."""
    prompts: PromptTokens = field(default_factory=PromptTokens)
    """Counts what the request gives the engine."""
    own: bool = False
    """Whether the request is the session's trainer's."""
    made: dict[tuple[Setup[Any], SeatRef], Player] = field(default_factory=dict)
    """The players so far."""

    def seat(self, task: RequestedTask) -> list[Player]:
        """Return the player of each seat of a task."""
        setup = task.task.setup
        players = []
        for ref in task.refs:
            if (setup, ref) not in self.made:
                self.made[setup, ref] = self._make_player(setup, ref)
            players.append(self.made[setup, ref])
        return players

    def _make_player(self, setup: Setup[Any], ref: SeatRef) -> Player:
        match ref:
            case ScriptRef(name=name):
                return make_script(setup, name)
            case UrlRef():
                return self.model.partners.player(
                    ref,
                    max_tokens=self.sampling.max_tokens,
                    temperature=self.sampling.temperature,
                    own=self.own,
                )
            case _:
                return self._make_served(ref)

    def served(self, seat: str) -> ServedPlayer:
        """Return the player that samples in a seat, e.g. "player_0@7" or "base"."""
        return self._make_served(parse_seat(seat))

    def _make_served(self, ref: SeatRef) -> ServedPlayer:
        if not isinstance(ref, AdapterRef):
            return ServedPlayer(model=self.model, sampling=self.sampling, prompts=self.prompts)
        adapter = self.leased[ref.adapter]
        return ServedPlayer(
            model=self.model,
            sampling=self.sampling,
            prompts=self.prompts,
            lora=adapter.lora,
            version=adapter.version,
        )
