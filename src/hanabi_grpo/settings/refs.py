"""Policy specs: which policy plays, in one syntax for settings, commands, requests and records.

| text | value | which policy plays |
|---|---|---|
| `iggi` | `ScriptRef` | that script of the environment |
| `base` | `Role.BASE` | the served model without an adapter |
| `served` | `Role.SERVED` | the server's newest adapter of the seat |
| `earlier` | `Role.EARLIER` | an earlier version of the run itself; only HANABI_PARTNERS |
| `url:big` | `UrlRef` | the model of that name in the server's HANABI_PARTNER_URLS |
| `human` | `Role.HUMAN` | the person at the terminal; only `hanabi-grpo play` |
| `player_0@7` | `AdapterRef` | that adapter of the server at that version, in any seat |
| `player_0`, `player_0@latest` | `AdapterRef` | the same at its newest version |
| `outputs/run/checkpoint-50` | `CheckpointRef` | its adapter of the seat |
| `outputs/run` | `CheckpointRef` | the same of the run's newest checkpoint |
| `outputs/run@best` | `CheckpointRef` | the same of the checkpoint that validation chose |
| `outputs/run:player_1` | `CheckpointRef` | that adapter of it, in any seat |
| `zoo:laptop` | `CheckpointRef` | a team of the zoo, its adapter of the seat |
| `wandb:entity/project/name:alias` | `CheckpointRef` | an artifact at W&B |
| `hf:org/repo`, `hf:org/repo@revision` | `CheckpointRef` | an exported repository of the hub |

The entity and the alias of an artifact may be left out.

A spec is parsed once, where it enters the program, and is a value (`Ref`) from there on; `str`
returns the text. `parse_ref` reads what people type, `parse_seat` what a request or a record
contains. On the wire and in records a seat stays text, and is one of four: a script, `base`,
`url:big`, or an adapter at a version. That adapter may be a guest: one that a client uploaded in
addition to those of the session. Its name is a digest of its weights, e.g.
`frozen_0123456789abcdef@50`.

`tracking.checkpoints` finds what is stored at a checkpoint's place.
"""

import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.zoo import PREFIX, zoo_team
from hanabi_grpo.types import HUMAN, MAX_PLAYERS, SHARED_ADAPTER, player_names

BASE = "base"
SERVED = "served"
LATEST = "latest"
FROZEN_PREFIX = "frozen_"
"""What the name of every guest adapter begins with."""
NOT_HELD = "upload it again"
"""In a server's refusal when it does not hold, or no longer holds, a guest adapter."""
_MAX_SHOWN = 80
"""Characters of a bad spec in an error."""
_MAX_FOLDER_NAME = 255
"""Maximum length of a text that may name a folder; the file system refuses longer names."""
_OWN_ADAPTERS = (*player_names(MAX_PLAYERS), SHARED_ADAPTER)
_AT_BEST = "@best"
_PLAYER = rf"player_[0-9]+|{SHARED_ADAPTER}"
_WANDB_PART = r"[^/:,\s]{1,128}"
_ADAPTER_PATTERN = re.compile(
    r"(?P<name>[A-Za-z0-9_]{1,64})(?:@(?P<version>latest|[0-9]{1,12}))?", re.ASCII
)
_SEATED_PATTERN = re.compile(rf"(?P<player>{_PLAYER})\s*=\s*(?P<spec>.*)", re.ASCII)
_WEIGHTED_PATTERN = re.compile(r"(?P<entry>.+?)\s*\*\s*(?P<weight>[0-9]+(?:\.[0-9]+)?)", re.ASCII)
_CHOSEN_ADAPTER_PATTERN = re.compile(rf"(?P<place>.+):(?P<adapter>{_PLAYER})", re.ASCII)
_WANDB_PATTERN = re.compile(
    rf"wandb:(?:(?P<entity>{_WANDB_PART})/)?(?P<project>{_WANDB_PART})/(?P<name>{_WANDB_PART})"
    rf"(?::(?P<alias>{_WANDB_PART}))?"
)
_HUB_PATTERN = re.compile(
    r"hf:(?P<org>[A-Za-z0-9][\w.-]{0,95})/(?P<repo>[A-Za-z0-9][\w.-]{0,95})"
    r"(?:@(?P<revision>[\w./-]{1,200}))?",
    re.ASCII,
)
_SCRIPT_PATTERN = re.compile(r"[a-z][a-z0-9.-]{0,63}", re.ASCII)
_URL_PATTERN = re.compile(r"url:(?P<name>[a-z][a-z0-9_-]{0,31})", re.ASCII)
_WANDB_VERSION_PATTERN = re.compile(r"v(0|[1-9][0-9]{0,8})", re.ASCII)
_NOT_IN_A_METRIC_NAME = re.compile(r"[^\w.-]+")


class Role(StrEnum):
    """Policies that one word names."""

    BASE = BASE
    SERVED = SERVED
    EARLIER = "earlier"
    HUMAN = HUMAN


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRef:
    """A script of the environment."""

    name: str
    """Name in the environment's `policies`, e.g. "iggi"."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlRef:
    """A model behind a URL."""

    name: str
    """The server's name for it in HANABI_PARTNER_URLS, e.g. "big"."""

    def __str__(self) -> str:
        return f"url:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRef:
    """An adapter that the server holds: one of its session, or a guest."""

    adapter: str
    """Name, e.g. "player_0", "shared" or "frozen_0123456789abcdef"."""
    version: int | None = None
    """None: the newest."""

    def __str__(self) -> str:
        version = LATEST if self.version is None else self.version
        return f"{self.adapter}@{version}"

    @property
    def is_guest(self) -> bool:
        """True when a client uploaded the adapter in addition to those of the session."""
        return self.adapter.startswith(FROZEN_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPlace:
    """The checkpoint of a run that validation chose.

    It may change while the run continues.
    """

    run: Path

    def __str__(self) -> str:
        return f"{self.run}{_AT_BEST}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbPlace:
    """An artifact at W&B, as it was typed."""

    entity: str = ""
    """Empty: the entity of this shell, or the one that the key belongs to."""
    project: str
    name: str
    alias: str = ""
    """Empty: latest."""

    def __post_init__(self) -> None:
        """Refuse parts that would lead out of the download folder.

        The parts become folder names, and some of them come from W&B's answers.
        """
        for part in (self.entity, self.project, self.name, self.alias):
            has_separator = any(character in part for character in "/\\\0")
            is_only_dots = part != "" and part.strip(".") == ""
            if has_separator or is_only_dots:
                raise SettingsError(
                    f"wandb:{self.path}: {part!r} cannot be a folder name; give "
                    "wandb:entity/project/name:alias, e.g. "
                    "wandb:team/hanabi-grpo/laptop-adapters:best, and check WANDB_ENTITY."
                )

    def __str__(self) -> str:
        if self.alias:
            return f"wandb:{self.path}"
        return f"wandb:{self.path.removesuffix(f':{LATEST}')}"

    @property
    def path(self) -> str:
        """What W&B calls it, e.g. "team/hanabi/laptop-adapters:latest"."""
        name = f"{self.name}:{self.alias or LATEST}"
        return "/".join(part for part in (self.entity, self.project, name) if part)

    @property
    def is_version(self) -> bool:
        """Whether the alias is a version, which W&B numbers and never moves."""
        return _WANDB_VERSION_PATTERN.fullmatch(self.alias) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPlace:
    """A repository of the hub."""

    org: str
    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        repository = f"hf:{self.org}/{self.repo}"
        return f"{repository}@{self.revision}" if self.revision else repository


Moving = BestPlace | WandbPlace | HubPlace
"""A name that may later refer to a different checkpoint."""
Place = Path | Moving
"""Where a checkpoint is: a folder, or a name for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """Adapters of a checkpoint."""

    place: Place
    adapter: str | None = None
    """None: that of the seat."""

    def __str__(self) -> str:
        text = str(self.place)
        if "/" not in text:
            # Without a slash it would not be read as a folder again.
            text = f"./{text}"
        return self._with_adapter(text, ":")

    @property
    def label(self) -> str:
        """Its name in tables and charts: a folder by the last two parts of its path."""
        text = str(self.place)
        if isinstance(self.place, Path | BestPlace):
            text = "/".join(Path(text).parts[-2:])
        return self._with_adapter(text, ":")

    @property
    def metric_name(self) -> tuple[str, str]:
        """Its name in metrics, e.g. ("run", "checkpoint-50.player_1").

        The first part, its parent, tells checkpoints of the same name apart.
        """
        match self.place:
            case WandbPlace(project=parent, name=name, alias=alias):
                name = f"{name}.{alias}" if alias else name
            case HubPlace(org=org, repo=repo, revision=revision):
                parent = f"hf.{org}"
                name = f"{repo}.{revision}" if revision else repo
            case Path() | BestPlace() as place:
                folder = Path(str(place))
                parent = folder.parent.name.replace(":", ".")
                name = folder.name or "checkpoint"
        return parent, self._with_adapter(_NOT_IN_A_METRIC_NAME.sub(".", name), ".")

    def _with_adapter(self, text: str, separator: str) -> str:
        return f"{text}{separator}{self.adapter}" if self.adapter else text


Ref = ScriptRef | Role | AdapterRef | CheckpointRef | UrlRef
"""A policy spec as a value."""
SeatRef = ScriptRef | Role | AdapterRef | UrlRef
"""What may take a seat on a server: `Role.BASE` alone of the roles, adapters with a version."""


def parse_ref(
    text: str,
    *,
    where: str,
    roles: Sequence[Role],
    scripts: Collection[str],
    adapters: bool = False,
) -> Ref:
    """Read a policy spec that a person typed.

    Checkpoints and URLs are always allowed.

    Args:
        text: The spec, e.g. "iggi" or "outputs/run:player_1".
        where: What errors begin with, e.g. "HANABI_PARTNERS".
        roles: The roles that are allowed here.
        scripts: Names of the environment's scripts.
        adapters: Whether the server's own adapters are allowed too.

    Returns:
        The value; `str` of it is read as the same value again.

    Raises:
        SettingsError: It is not a spec; the message lists what is allowed and a close match.
    """
    if text in scripts:
        return ScriptRef(name=text)
    if text in roles:
        return Role(text)
    url = _URL_PATTERN.fullmatch(text)
    if url is not None:
        return UrlRef(name=url["name"])
    if adapters:
        match = _ADAPTER_PATTERN.fullmatch(text)
        if match is not None and match["name"] in _OWN_ADAPTERS:
            is_latest = match["version"] in (None, LATEST)
            version = None if is_latest else int(match["version"])
            return AdapterRef(adapter=match["name"], version=version)
    if "/" in text or is_remote(text) or text.startswith(PREFIX) or _is_folder_here(text):
        return parse_checkpoint(text, where=f"{where}: ")
    raise _unknown_spec(text, where, known=(*scripts, *roles), adapters=adapters)


def _is_folder_here(text: str) -> bool:
    """Tell whether a text without a slash names a folder, or the best version of one."""
    run = text.removesuffix(_AT_BEST)
    return run != "" and Path(run[:_MAX_FOLDER_NAME]).is_dir()


def _unknown_spec(text: str, where: str, *, known: Sequence[str], adapters: bool) -> SettingsError:
    close = difflib.get_close_matches(text[:_MAX_SHOWN], known, n=1)
    hint = f" Did you mean {str(close[0])!r}?" if close else ""
    served = ", an adapter of the server (player_0@latest)" if adapters else ""
    return SettingsError(
        f"{where}: {text[:_MAX_SHOWN]!r} is unknown; allowed are {', '.join(known)}{served}, "
        "url:NAME, or a checkpoint: a folder with a slash in it (./checkpoint-50), "
        "zoo:NAME, wandb:team/project/name:alias or hf:org/repo, optionally followed by :player_1."
        f"{hint}"
    )


def parse_checkpoint(text: str, *, where: str = "") -> CheckpointRef:
    """Read the spec of a checkpoint, optionally followed by `:player_1`.

    Args:
        text: A folder, `RUN@best`, `zoo:NAME`, `wandb:entity/project/name:alias` or
            `hf:org/repo@revision`.
        where: What errors begin with.

    Raises:
        SettingsError: A `wandb:` or `hf:` spec is malformed.
    """
    chosen = _CHOSEN_ADAPTER_PATTERN.fullmatch(text)
    if chosen is None:
        return CheckpointRef(place=_parse_place(text, text, where))
    place = _parse_place(chosen["place"], text, where)
    return CheckpointRef(place=place, adapter=chosen["adapter"])


def _parse_place(typed: str, text: str, where: str) -> Place:
    """Return the place of a checkpoint; `text` is the whole spec, for errors."""
    if typed.startswith(PREFIX):
        return zoo_team(typed.removeprefix(PREFIX)).folder
    wandb = _WANDB_PATTERN.fullmatch(typed)
    if wandb is not None:
        return WandbPlace(
            entity=wandb["entity"] or "",
            project=wandb["project"],
            name=wandb["name"],
            alias=wandb["alias"] or "",
        )
    hub = _HUB_PATTERN.fullmatch(typed)
    if hub is not None:
        return HubPlace(org=hub["org"], repo=hub["repo"], revision=hub["revision"])
    if is_remote(typed):
        form = "hf:org/repo, or hf:org/repo@revision"
        if text.startswith("wandb:"):
            form = (
                "wandb:entity/project/name:alias, e.g. wandb:team/hanabi-grpo/laptop-adapters:best"
            )
        raise SettingsError(f"{where}{text[:_MAX_SHOWN]!r}: give {form}.")
    folder = Path(typed)
    if str(folder).endswith(_AT_BEST) and not folder.is_dir():
        return BestPlace(run=Path(str(folder).removesuffix(_AT_BEST)))
    return folder


def split_player(entry: str) -> tuple[str | None, str]:
    """Return the player before `=` and the rest, e.g. ("player_1", "hf:org/repo").

    Without a player, the first is None.
    """
    match = _SEATED_PATTERN.fullmatch(entry)
    if match is None:
        return None, entry
    return match["player"], match["spec"]


def split_weight(entry: str) -> tuple[str, str | None]:
    """Return an entry of HANABI_PARTNERS without its weight, and the weight as it was typed.

    E.g. ("player_1=iggi", "2.5") of "player_1=iggi*2.5", and ("iggi", None) of "iggi".
    """
    match = _WEIGHTED_PATTERN.fullmatch(entry)
    if match is None:
        return entry, None
    return match["entry"], match["weight"]


def is_remote(text: str) -> bool:
    """Tell whether a text names a checkpoint that is not on this machine."""
    return text.startswith(("wandb:", "hf:"))


def parse_seat(text: object) -> SeatRef:
    """Read the policy of a seat as in requests and responses, e.g. "player_0@7".

    Raises:
        SettingsError: It is not such a policy.
    """
    ref = find_seat(text) if isinstance(text, str) else None
    if ref is None:
        raise SettingsError(
            f"seat {str(text)[:_MAX_SHOWN]!r}: allowed are adapter@version (player_0@7), {BASE}, "
            "url:NAME, or the name of a script of the environment, in lowercase."
        )
    return ref


def find_seat(text: str) -> SeatRef | None:
    """Return the policy of a seat as in records.

    None for what no server seats: a person ("human"), or a spec that a table shows as typed.
    """
    if text == BASE:
        return Role.BASE
    url = _URL_PATTERN.fullmatch(text)
    if url is not None:
        return UrlRef(name=url["name"])
    # A script is recognized by the form of its name; only the environment knows which ones exist.
    if _SCRIPT_PATTERN.fullmatch(text) and text not in tuple(Role):
        return ScriptRef(name=text)
    adapter = _ADAPTER_PATTERN.fullmatch(text)
    if adapter is not None and adapter["version"] not in (None, LATEST):
        return AdapterRef(adapter=adapter["name"], version=int(adapter["version"]))
    return None


def unknown_url(ref: UrlRef, known: Collection[str], where: str = "") -> SettingsError:
    """Return the error for a URL that the server does not know.

    Args:
        ref: What was asked for.
        known: The specs that the server knows, e.g. {"url:big"}.
        where: What the message begins with.
    """
    return SettingsError(
        f"{where}{ref}: the rollout server knows {', '.join(known) or 'no URL'}; start it with "
        f"HANABI_PARTNER_URLS={ref.name}=http://…/v1#MODEL."
    )


def check_seat(seat: object) -> str:
    """Return the text of a seat unchanged; SettingsError if it is invalid, see `parse_seat`."""
    parse_seat(seat)
    return str(seat)


def seat_adapter(seat: str) -> tuple[str, int] | None:
    """Return adapter and version of a recorded seat, e.g. ("player_0", 7).

    None when no adapter sits there.
    """
    ref = find_seat(seat)
    if not isinstance(ref, AdapterRef) or ref.version is None:
        return None
    return ref.adapter, ref.version


def is_scripted(seat: str) -> bool:
    """Tell whether a script sits there, by the form of its name; nothing is sampled for it."""
    return isinstance(find_seat(seat), ScriptRef)


def is_frozen(seat: str) -> bool:
    """Tell whether a guest adapter sits there: one that is not the session's."""
    ref = find_seat(seat)
    return isinstance(ref, AdapterRef) and ref.is_guest


def is_url(seat: str) -> bool:
    """Tell whether a model behind a URL sits there."""
    return isinstance(find_seat(seat), UrlRef)
