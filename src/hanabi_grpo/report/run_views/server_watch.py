"""A rollout server looked at from anywhere, over the routes that say what it is, how it is and what it logs.

The server plays the games, so their scores by version, bad replies and speed are in its log. Learning is the trainer's:
per-player figures, phase times and alarms are in the run folder alone.
"""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.envs.hanabi.rules.deals import is_held_out
from hanabi_grpo.errors import ServerGoneError
from hanabi_grpo.runs.run_folder import finite

_DEAL = re.compile(
    r"deal (?P<suite>\S+)/[0-9]+: (?P<games>[0-9]+) games(?: \((?P<dropped>[0-9]+) dropped\))?, "
    r"score (?P<score>[0-9.]+) \(kept [0-9.]+\), [0-9.]+ turns, (?P<illegal>[0-9]+) illegal, "
    r"(?P<unparsable>[0-9]+) unparsable, .+, (?P<seconds>[0-9.]+) s, [0-9.]+ tok/s, (?P<seats>.+)",
    re.ASCII,
)
_TRAINED = re.compile(r"(?:player_[0-9]+|shared)@([0-9]{1,10})", re.ASCII)
_LINES = 200
_MOST_VERSIONS = 20_000


@dataclass(slots=True, kw_only=True)
class VersionGames:
    """Training games that one version played, as far as the log reaches back."""

    games: int = 0
    points: float = 0.0
    illegal: int = 0
    unparsable: int = 0
    dropped: int = 0
    seconds: float = 0.0
    """Of the deal that took longest; deals are played side by side."""

    @property
    def score(self) -> float:
        """Mean score."""
        return self.points / self.games


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What one look found."""

    url: str
    health: Mapping[str, Any] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[int, VersionGames] = field(default_factory=dict)
    """By version, ascending."""
    lines: tuple[str, ...] = ()
    """The newest of the log."""
    problem: str = ""
    """Why the server did not answer just now; the rest is then of the last answer."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        data = {
            "server": self.url,
            "is_there": not self.problem,
            "problem": self.problem or None,
            "health": dict(self.health),
            "identity": dict(self.identity),
            "curve": [[version, games.score] for version, games in self.versions.items()],
            "bad_replies": [
                [version, (games.illegal + games.unparsable) / games.games] for version, games in self.versions.items()
            ],
            "log": list(self.lines[-20:]),
        }
        found: dict[str, Any] = finite(data)
        return found


class ServerWatch:
    """Asks one server again and again; of its log only what is new."""

    def __init__(self, client: RolloutClient) -> None:
        """Prepare; nothing is asked yet."""
        self.client = client
        self._instance = ""
        self._next = 0
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._versions: dict[int, VersionGames] = {}
        self._health: dict[str, Any] = {}
        self._identity: dict[str, Any] = {}

    def look(self) -> ServerState:
        """Return what the server says now.

        Raises:
            ServerError: It answers and refuses, e.g. for a wrong key; asking again would not help.
        """
        problem = ""
        try:
            self._health = self.client.health()
            self._identity = self.client.identity()
            instance = str(self._identity.get("instance_id", ""))
            if instance != self._instance:
                # A new process numbers its lines from 0.
                self._instance, self._next = instance, 0
            self._next, lines = self.client.log(self._next)
            for line in lines:
                self._take(visible(line))
        except ServerGoneError as error:
            problem = visible(str(error))
        return ServerState(
            url=self.client.url,
            health=self._health,
            identity=self._identity,
            versions={version: self._versions[version] for version in sorted(self._versions)},
            lines=tuple(self._lines),
            problem=problem,
        )

    def _take(self, line: str) -> None:
        self._lines.append(line)
        found = _DEAL.search(line)
        version = max((int(number) for number in _TRAINED.findall(found["seats"])), default=None) if found else None
        if found is None or version is None or is_held_out(found["suite"]) or not int(found["games"]):
            return
        if version not in self._versions and len(self._versions) >= _MOST_VERSIONS:
            del self._versions[min(self._versions)]
        of = self._versions.setdefault(version, VersionGames())
        games = int(found["games"])
        of.games += games
        of.points += games * float(found["score"])
        of.illegal += int(found["illegal"])
        of.unparsable += int(found["unparsable"])
        of.dropped += int(found["dropped"] or 0)
        of.seconds = max(of.seconds, float(found["seconds"]))
