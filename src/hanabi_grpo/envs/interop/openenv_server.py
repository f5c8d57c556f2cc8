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

from hanabi_grpo.envs.base import Policy, Setup
from hanabi_grpo.envs.interop.openenv_places import IDLE_SECONDS, Places
from hanabi_grpo.envs.wrappers import SeatEnv
from hanabi_grpo.errors import IllegalActionError, SettingsError, shown
from hanabi_grpo.types import player_name

SPLITS = ("openenv", "train")
"""Whose starts a client may name unless told otherwise: no held-out ones."""


class SeatAction(Action):
    """What the learning seat replies."""

    reply: str = Field(
        description="Any text; what it names is played, and a bad reply costs its price."
    )


class SeatObservation(Observation):
    """What the learning seat is shown, and what came of its reply.

    `reward` is the sum of `rewards`.
    """

    message: str = Field(description='What is new for the seat; "" when the episode is over.')
    system: str = Field(description='The system message of the seat, e.g. the rules; "" for none.')
    legal: list[str] | None = Field(description="Legal actions now; null where any text is one.")
    rewards: dict[str, float] = Field(
        default_factory=dict, description="Parts of the reward by name."
    )
    kind: str | None = Field(
        default=None, description="Of the reply: legal, illegal or unparsable."
    )
    action: str | None = Field(default=None, description="What was played for the reply.")
    truncated: bool = Field(default=False, description="The episode ended because of its length.")
    result: dict[str, float] = Field(
        default_factory=dict, description="Figures of the episode at its end."
    )


class SeatState(State):
    """Which start is played."""

    env: str = ""
    preset: str = ""
    seat: str = ""
    split: str = ""
    seed: int | None = None


class SeatEnvironment(Environment[SeatAction, SeatObservation, SeatState]):
    """An episode of one session. Sessions share nothing but scripts, which keep no state."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self, setup: Setup[Any], seat: int, partners: Mapping[int, Policy], splits: Sequence[str]
    ) -> None:
        """Prepare a session; `reset` starts its first episode.

        Args:
            setup: What is played.
            seat: Number of the learning seat, from 0.
            partners: Scripts of all other seats.
            splits: Splits whose starts a reset may name; the first where it names none.
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
            seed: Number of the start within the split; a random one when left out.
            episode_id: What `state` calls the episode; a new name when left out.
            options: `split` and `game`, see `SeatEnv`.

        Raises:
            SettingsError: Another option, or a split that the server was not started with.
        """
        start: dict[str, Any] = {"split": self._splits[0]}
        if options.get("split", self._splits[0]) not in self._splits:
            allowed = ",".join(self._splits)
            raise SettingsError(
                f"split={shown(options['split'])}: this server offers {allowed}. Others can be "
                f"added where it is started: hanabi-grpo openenv --split {allowed},OTHER."
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
        """Take the seat's reply, and let the scripts play until its next turn or the end.

        Args:
            action: The reply.
            timeout_s: Not used; OpenEnv passes it.
            **other: Not used either.

        Raises:
            IllegalActionError: No episode was started, or it is over.
        """
        if self._state.episode_id is None:
            raise IllegalActionError("No episode was started in this session: send reset first.")
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


def openenv_app(
    setup: Setup[Any],
    seat: int,
    partners: Mapping[int, Policy],
    *,
    sessions: int = 64,
    idle_seconds: float = IDLE_SECONDS,
    splits: Sequence[str] = SPLITS,
) -> Places:
    """Build OpenEnv's own FastAPI app for one seat, with an end to what its clients may hold.

    It lets everybody in: `server/openenv_door.py` has the door.

    Args:
        setup: What is played.
        seat: Number of the learning seat, from 0.
        partners: Scripts of all other seats.
        sessions: Sessions that may be open at once; one more is refused.
        idle_seconds: After which a session that asks nothing is ended.
        splits: Splits whose starts a reset may name; the first where it names none.

    Raises:
        SettingsError: The game has no such seat, the partners do not fill the others, or there is
            no split.
    """
    if not splits or not all(splits):
        raise SettingsError(f"splits {list(splits)}: give one or more names, e.g. openenv,train.")
    make = functools.partial(SeatEnvironment, setup, seat, partners, splits)
    # Refuses a seat that does not exist before anybody connects.
    make()
    app = create_app(
        make, SeatAction, SeatObservation, env_name=setup.env, max_concurrent_envs=sessions
    )
    return Places(app, sessions=sessions, idle_seconds=idle_seconds)
