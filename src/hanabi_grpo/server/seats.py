"""The seats of one request: adapters to hold, and a player for each seat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hanabi_grpo.agents.scored import ScoredPlayer, have_same_tokens
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.agents.served_model import Model, PromptTokens, ServedPlayer, TeamModels
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import SettingsError, VersionError
from hanabi_grpo.rollout.loop import Player
from hanabi_grpo.rollout.messages import RequestedTask
from hanabi_grpo.rollout.sampler import SamplingConfig
from hanabi_grpo.server.adapter_loader import HeldAdapter
from hanabi_grpo.settings.refs import AdapterRef, ScriptRef, SeatRef, UrlRef, parse_seat
from hanabi_grpo.settings.teachers import SeatTeacher
from hanabi_grpo.types import player_name


def wanted_adapters(tasks: Sequence[RequestedTask]) -> dict[str, int]:
    """Return the version of every adapter that a request needs.

    Raises:
        VersionError: An adapter is requested in two versions.
    """
    wanted: dict[str, int] = {}
    # Most tasks of a request have the same seats.
    for refs, teachers in dict.fromkeys((task.refs, task.teachers) for task in tasks):
        taught = [parse_seat(teacher.policy) for teacher in teachers if teacher is not None]
        for ref in (*refs, *taught):
            if not isinstance(ref, AdapterRef) or ref.version is None:
                continue
            first = wanted.setdefault(ref.adapter, ref.version)
            if first != ref.version:
                raise VersionError(
                    f"{ref.adapter} is requested as @{first} and @{ref.version}; a request must "
                    "use one version."
                )
    return wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Assigns players to the seats of one request's tasks.

    A script or adapter in several tasks is a single player.
    """

    models: TeamModels
    sampling: SamplingConfig
    leased: Mapping[str, HeldAdapter]
    """By adapter name, the version held for this request."""
    prompts: PromptTokens = field(default_factory=PromptTokens)
    """Counter of the request's prompt tokens."""
    own: bool = False
    """Whether the request is the session's trainer's."""
    made: dict[tuple[Setup[Any], SeatRef, int], Player] = field(default_factory=dict)
    """The players so far, see `_key`."""

    def seat(self, task: RequestedTask) -> list[Player]:
        """Return the player of each seat of a task."""
        setup = task.task.setup
        players = []
        for seat, ref in enumerate(task.refs):
            player = player_name(seat)
            # "base" is the base model of the seat's player; all others are the same in every seat.
            key = (setup, ref, id(self._model_of(ref, player)))
            if key not in self.made:
                self.made[key] = self._make_player(setup, ref, player)
            player_here = self.made[key]
            teacher = task.teachers[seat] if task.teachers else None
            if teacher is not None and not teacher.is_script:
                player_here = self._scored(player_here, teacher, player)
            players.append(player_here)
        return players

    def _scored(self, player: Player, teacher: SeatTeacher, name: str) -> Player:
        """Return a player whose replies another model scores."""
        scoring = self._make_served(parse_seat(teacher.policy), name)
        if not isinstance(player, ServedPlayer):
            return player
        if not have_same_tokens(player.model, scoring.model):
            raise SettingsError(
                f"HANABI_TEACHER: the base models of {teacher.policy} and {name} have different "
                "tokens, so one cannot score the other's replies; choose a teacher on a model with "
                "the same tokenizer and chat template."
            )
        return ScoredPlayer(player=player, teacher=scoring)

    def _model_of(self, ref: SeatRef, player: str | None) -> Model:
        """Return the model that samples for a policy.

        Args:
            ref: The policy.
            player: The player whose seat it is; None: outside a game.
        """
        if isinstance(ref, AdapterRef):
            return self.models.named(self.leased[ref.adapter].base)
        if isinstance(ref, ScriptRef | UrlRef):
            return self.models.first
        return self.models.without_adapter(player)

    def _make_player(self, setup: Setup[Any], ref: SeatRef, player: str) -> Player:
        match ref:
            case ScriptRef(name=name):
                return make_script(setup, name)
            case UrlRef():
                return self.models.first.partners.player(
                    ref,
                    max_tokens=self.sampling.max_tokens,
                    temperature=self.sampling.temperature,
                    own=self.own,
                )
            case _:
                return self._make_served(ref, player)

    def served(self, seat: str, player: str | None = None) -> ServedPlayer:
        """Return the player that samples for a seat reference, e.g. "player_0@7" or "base".

        Args:
            seat: The reference.
            player: The player whose seat it is; None: outside a game.

        Raises:
            SettingsError: The reference is "base" outside a game, and there are several base
                models.
        """
        return self._make_served(parse_seat(seat), player)

    def _make_served(self, ref: SeatRef, player: str | None) -> ServedPlayer:
        model = self._model_of(ref, player)
        if not isinstance(ref, AdapterRef):
            return ServedPlayer(model=model, sampling=self.sampling, prompts=self.prompts)
        adapter = self.leased[ref.adapter]
        return ServedPlayer(
            model=model,
            sampling=self.sampling,
            prompts=self.prompts,
            lora=adapter.lora,
            version=adapter.version,
        )
