"""One seat of any environment as an OpenEnv server, with scripts in the other seats.

`hanabi-grpo openenv` starts it.
"""

import functools
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse

from hanabi_grpo.envs.base import Policy, Setup
from hanabi_grpo.envs.interop.openenv_places import IDLE_SECONDS, Places
from hanabi_grpo.envs.wrappers import SeatEnv
from hanabi_grpo.errors import HanabiGrpoError, IllegalActionError, SettingsError, shown
from hanabi_grpo.types import player_name

SPLITS = ("openenv", "train")
"""Splits whose starts a client may select by default; none of them is held out."""


class SeatAction(Action):
    """The reply of the learning seat."""

    reply: str = Field(
        description="Any text. The action that it names is played; a bad reply is penalized."
    )


class SeatObservation(Observation):
    """What the learning seat is shown, and the outcome of its reply.

    `reward` is the sum of `rewards`.
    """

    message: str = Field(description='What is new for the seat; "" when the episode is over.')
    system: str = Field(description='The system message of the seat, e.g. the rules; "" for none.')
    legal: list[str] | None = Field(description="Legal actions now; null if any text is legal.")
    rewards: dict[str, float] = Field(
        default_factory=dict, description="Parts of the reward by name."
    )
    kind: str | None = Field(
        default=None, description="Kind of the reply: legal, illegal or unparsable."
    )
    action: str | None = Field(default=None, description="The action played for the reply.")
    truncated: bool = Field(default=False, description="The episode ended because of its length.")
    result: dict[str, float] = Field(
        default_factory=dict, description="Figures of the episode at its end."
    )


class SeatState(State):
    """The start that is played."""

    env: str = ""
    preset: str = ""
    seat: str = ""
    split: str = ""
    seed: int | None = None


class SeatEnvironment(Environment[SeatAction, SeatObservation, SeatState]):
    """The episodes of one session. Sessions share only the scripts, which are stateless."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self, setup: Setup[Any], seat: int, partners: Mapping[int, Policy], splits: Sequence[str]
    ) -> None:
        """Prepare a session; `reset` starts its first episode.

        Args:
            setup: The environment and config.
            seat: Number of the learning seat, from 0.
            partners: Scripts for all other seats.
            splits: Splits whose starts a reset may select; the first is the default.
        """
        super().__init__()
        self._setup = setup
        self._splits = tuple(splits)
        self._env = SeatEnv(setup.environment, setup.config, seat, partners)
        self._state = SeatState()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **options: Any
    ) -> SeatObservation:
        """Start an episode.

        Args:
            seed: Index of the start within the split; random if omitted.
            episode_id: Name of the episode in `state`; a new name if omitted.
            options: `split` and `game`; see `SeatEnv`.

        Raises:
            SettingsError: An unknown option, or a split that the server was not started with.
        """
        start: dict[str, Any] = {"split": self._splits[0]}
        if options.get("split", self._splits[0]) not in self._splits:
            allowed = ",".join(self._splits)
            raise SettingsError(
                f"split={shown(options['split'])}: this server offers {allowed}. To offer others, "
                f"start it with: hanabi-grpo openenv --split {allowed},OTHER."
            )
        if seed is not None:
            start["seed"] = seed
        message, info = self._env.reset(options=start | options)
        task = self._env.referee.task
        self._state = SeatState(
            episode_id=episode_id or uuid.uuid4().hex,
            env=self._setup.env,
            preset=self._setup.spec.preset,
            seat=info["player"],
            split=task.split,
            seed=task.seed,
        )
        return SeatObservation(message=message, system=info["system"], legal=info["legal"])

    def step(
        self, action: SeatAction, timeout_s: float | None = None, **other: Any
    ) -> SeatObservation:
        """Take the seat's reply, then let the scripts play until its next turn or the end.

        Args:
            action: The reply.
            timeout_s: Unused; OpenEnv passes it.
            **other: Unused.

        Raises:
            IllegalActionError: No episode has been started, or it is over.
        """
        if self._state.episode_id is None:
            raise IllegalActionError(
                "No episode has been started in this session: send reset first."
            )
        message, reward, terminated, truncated, info = self._env.step(action.reply)
        self._state.step_count += 1
        figures = info.get("result", {})
        return SeatObservation(
            message=message,
            system=info["system"],
            legal=info["legal"],
            done=terminated or truncated,
            reward=reward,
            rewards=info["rewards"],
            kind=str(info["kind"]) if "kind" in info else None,
            action=info.get("action"),
            truncated=truncated,
            result={name: float(value) for name, value in figures.items()},
        )

    @property
    def state(self) -> SeatState:
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        spec = self._setup.spec
        names = []
        for player, policy in sorted(self._env.partners.items()):
            names.append(f"{player_name(player)} {policy.name}")
        scripts = ", ".join(names) or "none"
        return EnvironmentMetadata(
            name=f"{spec.env}-{spec.preset}",
            description=(
                f"Seat {player_name(self._env.seat)} of {spec.env}, {spec.preset}; scripts: "
                f"{scripts}."
            ),
            version=spec.hash,
        )


async def _answer_mistake(request: Request, error: Exception) -> JSONResponse:
    """Answer a request that asks for what the environment refuses; nothing is logged."""
    return JSONResponse({"detail": str(error)}, status_code=422)


def openenv_app(
    setup: Setup[Any],
    seat: int,
    partners: Mapping[int, Policy],
    *,
    sessions: int = 64,
    idle_seconds: float = IDLE_SECONDS,
    splits: Sequence[str] = SPLITS,
) -> Places:
    """Build OpenEnv's own FastAPI app for one seat, with limits on the sessions of its clients.

    The app accepts every client; `server/openenv_door.py` controls access.

    Args:
        setup: The environment and config.
        seat: Number of the learning seat, from 0.
        partners: Scripts for all other seats.
        sessions: Maximum number of open sessions; further ones are refused.
        idle_seconds: Idle time after which a session is closed.
        splits: Splits whose starts a reset may select; the first is the default.

    Raises:
        SettingsError: The game has no such seat, the partners do not fill the other seats, or no
            split is given.
    """
    if not splits or not all(splits):
        raise SettingsError(f"splits {list(splits)}: give one or more names, e.g. openenv,train.")
    make = functools.partial(SeatEnvironment, setup, seat, partners, splits)
    # Rejects a nonexistent seat before any client connects.
    make()
    app = create_app(
        make, SeatAction, SeatObservation, env_name=setup.env, max_concurrent_envs=sessions
    )
    # Over HTTP every request has an environment of its own, so a step without a reset is common.
    app.add_exception_handler(HanabiGrpoError, _answer_mistake)
    return Places(app, sessions=sessions, idle_seconds=idle_seconds)
