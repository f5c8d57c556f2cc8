"""Decoding of JSON into msgspec structs, and episodes as JSON in answers and recordings.

Input is not trusted: a missing field, a wrong type, a number that is not finite, or lists of
different lengths raise an error with the field, its value and what is allowed.
"""

import math
import re
from collections.abc import Container, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from hanabi_grpo.errors import ServerError, shown
from hanabi_grpo.types import (
    CHANCES_TOLERANCE,
    MAX_PLAYERS,
    MAX_WEIGHTED_REPLIES,
    Episode,
    Turn,
    WeightedReply,
)

SCHEMA = 2
"""Version of the format of recorded episodes."""
MAX_TOKEN_ID = 2**31 - 1
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
_Kind = TypeVar("_Kind")
_Path = list[str | int]
"""Field names and list positions that lead to a value."""
_LOCATION_MARK = " - at "
_LOCATION_PATTERN = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>[\w.\[\]]*)`")
"""End of an error message of msgspec, e.g. " - at `$.tasks[0].seed`"."""
_STEP_PATTERN = re.compile(r"\.(?P<name>[A-Za-z_]\w*)|\[(?P<index>\d+)\]")
_FIELD_PATTERN = re.compile(
    r"Object (?P<problem>missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL
)
_MAX_FIELD_NAME = 80
"""Characters of an unknown field's name that an error quotes."""
_MAX_MESSAGE = 400
"""Characters of msgspec's message that an error quotes; the message may contain a whole name."""
_UNKNOWN = object()
"""Stands for a value that cannot be shown."""
_MAX_QUOTED_BYTES = 1 << 20
"""Longer texts are not decoded again for an error message.

Decoded into plain objects, they would take many times their size.
"""


def read_struct(kind: type[_Kind], data: Any, *, secret_fields: Container[str] = ()) -> _Kind:
    """Return JSON as a struct or a `dict`, with every type checked and every number finite.

    Args:
        kind: A msgspec struct, or `dict`.
        data: JSON as bytes, or already parsed.
        secret_fields: Names of fields whose values no error may show.

    Raises:
        ValueError: The data is invalid, e.g. "tasks.0.seed='3': Expected `int`, got `str`".
    """
    try:
        if isinstance(data, bytes):
            return msgspec.json.decode(data, type=kind)
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_describe(str(error), data, secret_fields)) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: {error.reason}") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _describe(message: str, data: Any, secret_fields: Container[str]) -> str:
    """Return msgspec's message, preceded by the name of the field and its value."""
    path: _Path = []
    # The message quotes names of unknown fields in full, whatever they contain: a search would try
    # each of their " - at ", and take time that grows with the square of their number.
    end = max(message.rfind(_LOCATION_MARK), 0)
    location = _LOCATION_PATTERN.fullmatch(message, end)
    if location is not None:
        message = message[: location.start()]
        path = _read_path(location["path"])
    field = _FIELD_PATTERN.fullmatch(message)
    if field is not None:
        path.append(field["name"][:_MAX_FIELD_NAME])
        is_missing = field["problem"] == "missing required"
        message = "this field is missing" if is_missing else "no such field"
    message = message[:_MAX_MESSAGE]
    name = ".".join(map(str, path)) or "all of it"
    is_key = location is not None and location["key"] is not None
    value = _UNKNOWN if is_key or name in secret_fields else _value_at(data, path)
    # A message about a struct already names its fields; its value would repeat them.
    is_shown = message.startswith("Expected") or not isinstance(value, Mapping)
    if value is _UNKNOWN or not is_shown:
        return f"{name}: {message}"
    return f"{name}={shown(value)}: {message}"


def _read_path(text: str) -> _Path:
    """Return the steps of a path, e.g. ["tasks", 0, "seed"] for ".tasks[0].seed"."""
    path: _Path = []
    for step in _STEP_PATTERN.finditer(text):
        path.append(step["name"] or int(step["index"]))
    return path


def _value_at(data: Any, path: _Path) -> Any:
    if isinstance(data, bytes) and len(data) > _MAX_QUOTED_BYTES:
        return _UNKNOWN
    try:
        value = msgspec.json.decode(data) if isinstance(data, bytes) else data
        for step in path:
            value = value[step]
    except (ValueError, LookupError, TypeError, RecursionError):
        return _UNKNOWN
    return value


def episode_to_json(episode: Episode) -> dict[str, Any]:
    """Return an episode as one JSON object, e.g. a line of `episodes/step_10.jsonl`."""
    row: dict[str, Any] = msgspec.to_builtins(episode)
    # Last, because they are long.
    turns = row.pop("turns")
    return {"schema": SCHEMA, **row, "turns": turns}


def episode_from_json(row: Mapping[str, Any]) -> Episode:
    """Return the episode of a JSON object.

    Raises:
        ServerError: A field is malformed, or the record is of another schema.
    """
    try:
        if isinstance(row, Mapping) and row.get("schema", SCHEMA) != SCHEMA:
            raise ValueError(f"schema={row['schema']!r:.40}: this version reads {SCHEMA}")
        episode = read_struct(Episode, row)
        check_episode(episode)
    except ValueError as error:
        raise ServerError(
            f"episode: {error}; check that both sides run the same version of hanabi_grpo"
        ) from None
    return episode


def check_episode(episode: Episode, *, needs_logprobs: bool = False) -> None:
    """Reject an episode whose parts are inconsistent, or whose numbers are not finite.

    Types have already been checked; these are the other constraints.

    Args:
        episode: Episode as `read_struct` returned it.
        needs_logprobs: Whether each reply id needs a logprob; records may have none at all.

    Raises:
        ValueError: The message has the turn, the problem, and what is allowed.
    """
    num_players = episode.num_players
    has_seats = len(episode.seats) in (0, num_players)
    if not 1 <= num_players <= MAX_PLAYERS or not has_seats:
        raise ValueError(
            f"num_players={num_players}, seats={episode.seats}; allowed: 1 to {MAX_PLAYERS} "
            "players, and one seat per player or no seats at all"
        )
    for name, value in episode.result.items():
        if not math.isfinite(value):
            raise ValueError(f"result.{name}={value}: a result must be finite")
    for index, turn in enumerate(episode.turns):
        if not 0 <= turn.player < num_players or len(turn.rewards) != num_players:
            raise ValueError(
                f"turns.{index}: player={turn.player} with {len(turn.rewards)} rewards, but "
                f"num_players={num_players}; allowed: players 0 to {num_players - 1}, and rewards "
                "for each of them"
            )
        check_logprob_count(turn.logprobs, turn.reply_ids, f"turns.{index}", needs_logprobs)
        if turn.lesson is not None:
            where = f"turns.{index}.lesson"
            check_logprob_count(turn.lesson.logprobs, turn.reply_ids, where, needs_logprobs=False)
            _check_replies(turn.lesson.replies, where)
        if not _has_finite_numbers(turn):
            raise ValueError(f"turns.{index}: a logprob or a reward is not finite")


def _check_replies(replies: Sequence[WeightedReply], where: str) -> None:
    """Raise a ValueError if a teacher's chances are not a probability distribution."""
    if not replies:
        return
    chances = [reply.chance for reply in replies]
    is_whole = math.isclose(math.fsum(chances), 1, abs_tol=CHANCES_TOLERANCE)
    if len(replies) > MAX_WEIGHTED_REPLIES or not is_whole or min(chances) <= 0:
        raise ValueError(
            f"{where}.replies: {len(replies)} replies with chances from {min(chances):g} to "
            f"{max(chances):g} and sum {math.fsum(chances):g}; allowed: up to "
            f"{MAX_WEIGHTED_REPLIES} replies, each above 0, with sum 1"
        )


def check_logprob_count(
    logprobs: tuple[float, ...],
    reply_ids: tuple[int, ...],
    where: str,
    needs_logprobs: bool,
) -> None:
    """Raise a ValueError if a reply does not have one logprob for each of its ids.

    Args:
        logprobs: Log-probability of each id, in nats.
        reply_ids: Sampled ids.
        where: Beginning of the error message, e.g. "turns.3".
        needs_logprobs: Whether a reply without any logprobs is rejected as well.
    """
    if len(logprobs) == len(reply_ids) or (not logprobs and not needs_logprobs):
        return
    allowed = "one each" if needs_logprobs else "one each, or none at all"
    raise ValueError(
        f"{where}: {len(logprobs)} logprobs for {len(reply_ids)} reply ids; allowed: {allowed}"
    )


def _has_finite_numbers(turn: Turn) -> bool:
    if not all(map(math.isfinite, turn.logprobs)):
        return False
    if turn.lesson is not None and not all(map(math.isfinite, turn.lesson.logprobs)):
        return False
    return all(map(_are_finite, turn.rewards))


def _are_finite(rewards: Mapping[str, float]) -> bool:
    return all(map(math.isfinite, rewards.values()))
