"""References: who plays, in one language for settings, commands, requests and records.

| text | value | who plays |
|---|---|---|
| `iggi` | `ScriptRef` | that bot |
| `base` | `Role.BASE` | the served model without an adapter |
| `served` | `Role.SERVED` | the server's newest adapter of the seat |
| `earlier` | `Role.EARLIER` | an earlier version of the run itself; only HANABI_PARTNERS |
| `url:big` | `UrlRef` | the model of that name in the server's HANABI_PARTNER_URLS |
| `human` | `Role.HUMAN` | whoever sits at the terminal; only `hanabi-grpo play` |
| `player_0@7` | `AdapterRef` | that adapter of the server at that version, in whatever seat |
| `player_0`, `player_0@latest` | `AdapterRef` | the same at its newest version |
| `outputs/run`, `outputs/run/checkpoint-50` | `CheckpointRef` | its adapter of the seat; a run stands for its newest |
| `outputs/run@best` | `CheckpointRef` | the checkpoint of the run that validation chose |
| `outputs/run:player_1` | `CheckpointRef` | that adapter of it, in whatever seat |
| `wandb:entity/project/name:alias` | `CheckpointRef` | an artifact; entity and alias may be left out |
| `hf:org/repo`, `hf:org/repo@revision` | `CheckpointRef` | a repository that `hanabi-grpo export` made |

A reference is parsed where it is typed and carried as a value; `str` gives the text again. On the
wire and in records a seat stays text: a script, `base`, `url:big`, an adapter at a version, or one
that was lent, whose name is a digest of it, e.g. `frozen_0123456789abcdef@50`. What a place holds
is found by `tracking.checkpoints`."""

import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.types import MAX_PLAYERS, SHARED_ADAPTER, player_names

BASE, SERVED, HUMAN = "base", "served", "human"
LATEST = "latest"
FROZEN_PREFIX = "frozen_"
NOT_HELD = "upload it again"
"""What a server's refusal says when it does not hold, or no longer holds, an adapter that was
lent.
"""
_SHOWN = 80
"""Characters of a bad reference in an error."""
_OWN_ADAPTERS = (*player_names(MAX_PLAYERS), SHARED_ADAPTER)
_PLAYER = rf"player_[0-9]+|{SHARED_ADAPTER}"
_AT_BEST = "@best"
_PART = r"[^/:,\s]{1,128}"
_ADAPTER = re.compile(r"([A-Za-z0-9_]{1,64})(?:@(latest|[0-9]{1,12}))?", re.ASCII)
_SEATED = re.compile(rf"({_PLAYER})\s*=\s*(.*)", re.ASCII)
_CHOSEN = re.compile(rf"(.+):({_PLAYER})", re.ASCII)
_WANDB = re.compile(
    rf"wandb:(?:(?P<entity>{_PART})/)?(?P<project>{_PART})/(?P<name>{_PART})(?::(?P<alias>{_PART}))?"
)
_HUB = re.compile(
    r"hf:([A-Za-z0-9][\w.-]{0,95})/([A-Za-z0-9][\w.-]{0,95})(?:@([\w./-]{1,200}))?", re.ASCII
)
_SCRIPT = re.compile(r"[a-z][a-z0-9.-]{0,63}", re.ASCII)
_URL = re.compile(r"url:([a-z][a-z0-9_-]{0,31})", re.ASCII)
_VERSION = re.compile(r"v(0|[1-9][0-9]{0,8})", re.ASCII)
_NOT_IN_A_NAME = re.compile(r"[^\w.-]+")


class Role(StrEnum):
    """Who plays, where one word says it."""

    BASE = BASE
    SERVED = SERVED
    EARLIER = "earlier"
    HUMAN = HUMAN


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRef:
    """A script of the environment."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlRef:
    """A model behind a URL, by the name that the server has for it."""

    name: str

    def __str__(self) -> str:
        return f"url:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRef:
    """An adapter of the server."""

    adapter: str
    version: int | None = None
    """None: the newest."""

    def __str__(self) -> str:
        return f"{self.adapter}@{LATEST if self.version is None else self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPlace:
    """The checkpoint of a run that validation chose; while the run goes on, it may become another
    one.
    """

    run: Path

    def __str__(self) -> str:
        return f"{self.run}{_AT_BEST}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbPlace:
    """An artifact at W&B, as it was typed; no entity: the one of this shell or of the key, no
    alias: latest.
    """

    entity: str = ""
    project: str
    name: str
    alias: str = ""

    def __post_init__(self) -> None:
        """Refuse parts that would name another folder than one below the downloads; W&B's answers
        are asked too.
        """
        for part in (self.entity, self.project, self.name, self.alias):
            if set(part) & set("/\\\0") or (part and set(part) == {"."}):
                raise SettingsError(
                    f"wandb:{self.path}: {part!r} names no folder; give "
                    "wandb:entity/project/name:alias, e.g. "
                    "wandb:team/hanabi-grpo/laptop-adapters:best, and look at WANDB_ENTITY."
                )

    def __str__(self) -> str:
        path = self.path
        return f"wandb:{path if self.alias else path.removesuffix(f':{LATEST}')}"

    @property
    def path(self) -> str:
        """What W&B calls it, e.g. "team/hanabi/laptop-adapters:latest"."""
        return "/".join(
            part
            for part in (self.entity, self.project, f"{self.name}:{self.alias or LATEST}")
            if part
        )

    @property
    def is_version(self) -> bool:
        """Whether the alias is a version, which W&B numbers and never moves."""
        return _VERSION.fullmatch(self.alias) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPlace:
    """A repository of the hub."""

    org: str
    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"hf:{self.org}/{self.repo}" + (f"@{self.revision}" if self.revision else "")


Moving = BestPlace | WandbPlace | HubPlace
"""A name for a checkpoint that may be given to another one."""
Place = Path | Moving
"""Where a checkpoint is: a folder, or what stands for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """Adapters of a checkpoint."""

    place: Place
    adapter: str | None = None
    """None: that of the seat."""

    def __str__(self) -> str:
        text = str(self.place)
        # A folder without a slash gets one, so that it is read as a folder again.
        return ("" if "/" in text else "./") + text + (f":{self.adapter}" if self.adapter else "")

    @property
    def label(self) -> str:
        """What a table or a chart calls it: a folder by its last two names."""
        is_folder = isinstance(self.place, Path | BestPlace)
        text = "/".join(Path(str(self.place)).parts[-2:]) if is_folder else str(self.place)
        return text + (f":{self.adapter}" if self.adapter else "")

    @property
    def metric_name(self) -> tuple[str, str]:
        """What metrics call it, e.g. ("run", "checkpoint-50.player_1"): the first tells equal ones
        apart.
        """
        match self.place:
            case WandbPlace(project=parent, name=name, alias=alias):
                own = f"{name}.{alias}" if alias else name
            case HubPlace(org=org, repo=repo, revision=revision):
                parent, own = f"hf.{org}", f"{repo}.{revision}" if revision else repo
            case Path() | BestPlace() as place:
                folder = Path(str(place))
                parent, own = folder.parent.name.replace(":", "."), folder.name or "checkpoint"
        return parent, _NOT_IN_A_NAME.sub(".", own) + (f".{self.adapter}" if self.adapter else "")


Ref = ScriptRef | Role | AdapterRef | CheckpointRef | UrlRef


def parse_ref(
    text: str,
    *,
    where: str,
    roles: Sequence[Role],
    scripts: Collection[str],
    adapters: bool = False,
) -> Ref:
    """Read who plays.

    `roles` are those that are allowed here beside checkpoints and the environment's `scripts`;
    `adapters`: the server's own are, too. Errors begin with `where`, e.g. "HANABI_PARTNERS".

    Raises:
        SettingsError: It is none; says what is allowed and what is near.
    """
    if text in scripts:
        return ScriptRef(name=text)
    if text in roles:
        return Role(text)
    if url := _URL.fullmatch(text):
        return UrlRef(name=url[1])
    match = _ADAPTER.fullmatch(text) if adapters else None
    if match and match[1] in _OWN_ADAPTERS:
        return AdapterRef(
            adapter=match[1], version=None if match[2] in (None, LATEST) else int(match[2])
        )
    run = text.removesuffix(_AT_BEST)
    if "/" in text or is_remote(text) or (run and Path(run[:255]).is_dir()):
        return parse_checkpoint(text, where=f"{where}: ")
    known = (*scripts, *roles)
    close = difflib.get_close_matches(text[:_SHOWN], known, n=1)
    nearest = f" Did you mean {str(close[0])!r}?" if close else ""
    served = ", an adapter of the server (player_0@latest)" if adapters else ""
    raise SettingsError(
        f"{where}: {text[:_SHOWN]!r} is unknown; allowed are {', '.join(known)}{served}, "
        "url:NAME, or a checkpoint: a "
        "folder with a slash in it (./checkpoint-50), wandb:team/project/name:alias or "
        "hf:org/repo, perhaps with "
        f":player_1 behind it.{nearest}"
    )


def parse_checkpoint(text: str, *, where: str = "") -> CheckpointRef:
    """Read a folder, `RUN@best`, `wandb:entity/project/name:alias` or `hf:org/repo@revision`,
    perhaps with `:player_1`.

    Raises:
        SettingsError: A `wandb:` or `hf:` reference that is none; begins with `where`.
    """
    match = _CHOSEN.fullmatch(text)
    typed, adapter = (match[1], match[2]) if match else (text, None)
    place: Place = Path(typed)
    if found := _WANDB.fullmatch(typed):
        place = WandbPlace(**{part: text or "" for part, text in found.groupdict().items()})
    elif found := _HUB.fullmatch(typed):
        place = HubPlace(org=found[1], repo=found[2], revision=found[3])
    elif is_remote(typed):
        wandb = "wandb:entity/project/name:alias, e.g. wandb:team/hanabi-grpo/laptop-adapters:best"
        form = wandb if text.startswith("wandb:") else "hf:org/repo, or hf:org/repo@revision"
        raise SettingsError(f"{where}{text[:_SHOWN]!r}: give {form}.")
    elif str(place).endswith(_AT_BEST) and not Path(typed).is_dir():
        place = BestPlace(run=Path(str(place).removesuffix(_AT_BEST)))
    return CheckpointRef(place=place, adapter=adapter)


def split_player(entry: str) -> tuple[str | None, str]:
    """Return the player before `=` and the rest, e.g. ("player_1", "hf:org/repo"); None where there
    is no player.
    """
    match = _SEATED.fullmatch(entry)
    return (match[1], match[2]) if match else (None, entry)


def is_remote(text: str) -> bool:
    """Tell whether a text names a checkpoint that lies elsewhere."""
    return text.startswith(("wandb:", "hf:"))


def seat_adapter(seat: str) -> tuple[str, int] | None:
    """Return adapter and version of a seat on the wire, e.g. ("player_0", 7); None when no adapter
    sits there.
    """
    match = _ADAPTER.fullmatch(seat)
    return (match[1], int(match[2])) if match and match[2] not in (None, LATEST) else None


def is_scripted(seat: str) -> bool:
    """Tell whether a script sits there, by the form of its name; nothing is sampled for it."""
    return _SCRIPT.fullmatch(seat) is not None and seat not in tuple(Role)


def is_frozen(seat: str) -> bool:
    """Tell whether an adapter sits there that is not the session's."""
    return seat.startswith(FROZEN_PREFIX) and seat_adapter(seat) is not None


def is_url(seat: str) -> bool:
    """Tell whether a model behind a URL sits there."""
    return _URL.fullmatch(seat) is not None


def unknown_url(word: str, known: Collection[str], where: str = "") -> SettingsError:
    """Return the error for a URL that the server does not know."""
    return SettingsError(
        f"{where}{word}: the rollout server knows {', '.join(known) or 'no URL'}; start it with "
        f"HANABI_PARTNER_URLS={word.removeprefix('url:')}=http://…/v1#MODEL."
    )


def check_seat(seat: object) -> str:
    """Return a seat on the wire as it is; SettingsError where it is none."""
    if isinstance(seat, str) and (
        seat == BASE or is_scripted(seat) or is_url(seat) or seat_adapter(seat)
    ):
        return seat
    raise SettingsError(
        f"seat {str(seat)[:_SHOWN]!r}: allowed are adapter@version (player_0@7), {BASE}, "
        "url:NAME, or the name of a "
        "script of the environment, in small letters."
    )
