"""Episodes as JSON, both ways: one object per episode (JSONL records), or one ms-swift output per player.

A game that was given up has outputs too, without tokens; `rollout_infos.dropped` says why. Reading trusts nothing: a
missing field, a wrong type, a number that is not finite or lists that do not fit together are a `ServerError` that
names the field.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from hanabi_grpo.errors import ServerError, shown
from hanabi_grpo.types import MAX_PLAYERS, DroppedGame, Episode, EpisodeStatus, ReplyKind, Turn

PROTOCOL = 4
"""Of the rollout server's routes; both sides name it when a run is introduced."""

_Str = Annotated[str, Field(strict=True)]
_Int = Annotated[int, Field(strict=True)]
_Count = Annotated[int, Field(strict=True, ge=0)]
_Float = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Ids = tuple[_Count, ...]


class _TurnText(BaseModel):
    player: _Count
    prompt: _Str
    reply: _Str
    action: _Str
    kind: ReplyKind
    rewards: dict[str, _Float]
    prompt_ids: _Ids
    version: _Int | None


class _FullTurn(_TurnText):
    reply_ids: _Ids
    logprobs: tuple[_Float, ...]


class _IndexedTurn(_TurnText):
    index: _Count


_NumPlayers = Annotated[int, Field(strict=True, ge=2, le=MAX_PLAYERS)]


class _Header(BaseModel):
    preset: _Str
    spec_hash: _Str
    num_players: _NumPlayers
    suite: _Str
    seed: _Int
    game: _Int
    status: EpisodeStatus
    score: _Int
    score_kept: _Int
    seats: Annotated[tuple[_Str, ...], Field(max_length=MAX_PLAYERS)] = ()
    instance_id: _Str


class _EpisodeRow(_Header):
    turns: tuple[_FullTurn, ...]


class _Infos(_Header):
    player: _Count
    turns: tuple[_IndexedTurn, ...]


class _Output(BaseModel):
    rollout_infos: _Infos
    response_token_ids: tuple[_Ids, ...]
    rollout_logprobs: tuple[tuple[_Float, ...], ...]


class _DroppedHeader(BaseModel):
    suite: _Str
    seed: _Int
    game: _Int
    num_players: _NumPlayers
    dropped: Annotated[str, Field(strict=True, min_length=1)]


class _DroppedInfos(_DroppedHeader):
    player: _Count


class _DroppedOutput(BaseModel):
    rollout_infos: _DroppedInfos


_Model = TypeVar("_Model", bound=BaseModel)
_AnyInfos = TypeVar("_AnyInfos", _Infos, _DroppedInfos)
_HEADER_FIELDS = tuple(_Header.model_fields)
_DROPPED_FIELDS = tuple(_DroppedHeader.model_fields)
_TEXT_FIELDS = tuple(_TurnText.model_fields)
_FULL_FIELDS = tuple(_FullTurn.model_fields)


def episode_to_json(episode: Episode) -> dict[str, Any]:
    """Return an episode as one JSON object, e.g. a line of `episodes/step_10.jsonl`."""
    return {**_fields(episode, _HEADER_FIELDS), "turns": [_fields(turn, _FULL_FIELDS) for turn in episode.turns]}


def episode_from_json(row: Mapping[str, Any]) -> Episode:
    """Return the episode of a JSON object; keys that are no field of an episode are left alone.

    Raises:
        ServerError: A field is missing or malformed.
    """
    checked = _validated(_EpisodeRow, row, "episode")
    turns = [Turn(**_values(turn, _FULL_FIELDS)) for turn in checked.turns]
    return _episode(checked, turns, "episode")


def episode_to_outputs(
    episode: Episode, *, model: str, system_prompts: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return one ms-swift `RolloutOutput` as a dict per player, in seat order.

    A player whose turn never came has empty token lists and a conversation of one empty reply.

    Args:
        episode: The game.
        model: Name that the response carries.
        system_prompts: Per player, the first message of its conversation; "" or None for none.
    """
    systems = system_prompts or [""] * episode.num_players
    return [_output(episode, player, model, systems[player]) for player in range(episode.num_players)]


def outputs_to_episode(outputs: Sequence[Mapping[str, Any]]) -> Episode:
    """Return the episode that `episode_to_outputs` took apart; the order of the outputs does not matter.

    Raises:
        ServerError: A field is missing or malformed, the outputs are not those of one game, or turns are missing.
    """
    checked = [_validated(_Output, output, f"output {number}") for number, output in enumerate(outputs)]
    header = _check_one_game([output.rollout_infos for output in checked], _HEADER_FIELDS)
    turns: dict[int, Turn] = {}
    for number, output in enumerate(checked):
        _collect(output, number, turns)
    if sorted(turns) != list(range(len(turns))):
        raise ServerError(f"rollout_infos.turns.index: got {sorted(turns)}; allowed is 0 to n-1, each once.")
    return _episode(header, [turns[index] for index in range(len(turns))], "outputs")


def dropped_to_outputs(dropped: DroppedGame, *, num_players: int, model: str) -> list[dict[str, Any]]:
    """Return the outputs of a game that was given up, one per player in seat order.

    They hold no tokens and, on purpose, no `total_reward`: a zero would be taken for a game that was played.

    Args:
        dropped: The game and why it was given up.
        num_players: Of its board.
        model: Name that the response carries.
    """
    infos = {
        "suite": dropped.suite,
        "seed": dropped.seed,
        "game": dropped.game,
        "num_players": num_players,
        "dropped": dropped.reason,
    }
    return [
        {
            "response": {
                "id": f"{dropped.suite}-{dropped.seed}-{dropped.game}-{player}",
                "model": model,
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": ""},
                        "finish_reason": None,
                        "token_ids": [],
                    }
                ],
                "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            },
            "messages": [{"role": "assistant", "content": ""}],
            "response_token_ids": [],
            "response_loss_mask": [],
            "rollout_logprobs": [],
            "rollout_infos": {**infos, "player": player},
        }
        for player in range(num_players)
    ]


def outputs_to_game(outputs: Sequence[Mapping[str, Any]]) -> Episode | DroppedGame:
    """Return the game that the outputs of all its players hold, played or given up.

    Raises:
        ServerError: As `outputs_to_episode`, and when a game is given up for some of its players only.
    """
    marked = [number for number, output in enumerate(outputs) if _is_dropped(output)]
    if not marked:
        return outputs_to_episode(outputs)
    if len(marked) != len(outputs):
        raise ServerError(
            f"rollout_infos.dropped: in outputs {marked} of {len(outputs)}; a game is dropped for all its players or "
            "for none."
        )
    checked = [_validated(_DroppedOutput, output, f"output {number}") for number, output in enumerate(outputs)]
    infos = _check_one_game([output.rollout_infos for output in checked], _DROPPED_FIELDS)
    return DroppedGame(suite=infos.suite, seed=infos.seed, game=infos.game, reason=infos.dropped)


def _is_dropped(output: Any) -> bool:
    infos = output.get("rollout_infos") if isinstance(output, Mapping) else None
    return isinstance(infos, Mapping) and "dropped" in infos


def _check_one_game(infos: Sequence[_AnyInfos], fields: Sequence[str]) -> _AnyInfos:
    """Return the first of the infos of one game's players; refuse those of several games."""
    if not infos:
        raise ServerError("outputs: the list is empty; a game has one output per player.")
    header = infos[0]
    players = sorted(one.player for one in infos)
    if players != list(range(header.num_players)):
        raise ServerError(
            f"rollout_infos.player: got {players}, a game of {header.num_players} players needs each of "
            f"{list(range(header.num_players))} once; keep a deal's rows in one batch."
        )
    for number, one in enumerate(infos):
        for field in fields:
            ours, theirs = getattr(one, field), getattr(header, field)
            if ours != theirs:
                raise ServerError(
                    f"output {number}: rollout_infos.{field}={ours!r}, but {theirs!r} in output 0; "
                    "pair the outputs of one game."
                )
    return header


def _output(episode: Episode, player: int, model: str, system: str) -> dict[str, Any]:
    indexed = [(index, turn) for index, turn in enumerate(episode.turns) if turn.player == player]
    turns = [turn for _, turn in indexed]
    last = turns[-1] if turns else None
    messages = [{"role": "system", "content": system}] if system else []
    for turn in turns:
        messages += [{"role": "user", "content": turn.prompt}, {"role": "assistant", "content": turn.reply}]
    if not turns:
        messages = [{"role": "assistant", "content": ""}]
    num_prompt = sum(len(turn.prompt_ids) for turn in turns)
    num_reply = sum(len(turn.reply_ids) for turn in turns)
    return {
        "response": {
            "id": f"{episode.suite}-{episode.seed}-{episode.game}-{player}",
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": last.reply if last else ""},
                    "finish_reason": "length" if episode.status.is_truncated else "stop",
                    "token_ids": list(last.reply_ids) if last else [],
                }
            ],
            "usage": {
                "prompt_tokens": num_prompt,
                "completion_tokens": num_reply,
                "total_tokens": num_prompt + num_reply,
            },
        },
        "messages": messages,
        "response_token_ids": [list(turn.reply_ids) for turn in turns],
        "response_loss_mask": [[1] * len(turn.reply_ids) for turn in turns],
        "rollout_logprobs": [list(turn.logprobs) for turn in turns],
        "rollout_infos": {
            **_fields(episode, _HEADER_FIELDS),
            "player": player,
            "num_turns": len(turns),
            "total_reward": episode.reward(player),
            "turns": [{"index": index, **_fields(turn, _TEXT_FIELDS)} for index, turn in indexed],
        },
    }


def _collect(output: _Output, number: int, turns: dict[int, Turn]) -> None:
    infos = output.rollout_infos
    for name, lists in (
        ("response_token_ids", output.response_token_ids),
        ("rollout_logprobs", output.rollout_logprobs),
    ):
        if len(lists) != len(infos.turns):
            raise ServerError(
                f"output {number}: {name} has {len(lists)} turns, rollout_infos.turns has {len(infos.turns)}."
            )
    for turn, reply_ids, logprobs in zip(infos.turns, output.response_token_ids, output.rollout_logprobs, strict=True):
        if turn.player != infos.player:
            raise ServerError(
                f"output {number}: rollout_infos.turns.player={turn.player}, but the output is player {infos.player}'s."
            )
        if turn.index in turns:
            raise ServerError(f"output {number}: rollout_infos.turns.index={turn.index} is there twice.")
        turns[turn.index] = Turn(**_values(turn, _TEXT_FIELDS), reply_ids=reply_ids, logprobs=logprobs)


def _episode(header: _Header, turns: Sequence[Turn], where: str) -> Episode:
    if len(header.seats) not in (0, header.num_players):
        raise ServerError(
            f"{where}: seats has {len(header.seats)} entries for num_players={header.num_players}; "
            "allowed: one each, or none at all."
        )
    for index, turn in enumerate(turns):
        if turn.player >= header.num_players:
            raise ServerError(
                f"{where}: turns.{index}.player={turn.player}, but num_players={header.num_players}; "
                f"allowed: 0 to {header.num_players - 1}."
            )
        if turn.logprobs and len(turn.logprobs) != len(turn.reply_ids):
            raise ServerError(
                f"{where}: turns.{index} has {len(turn.logprobs)} logprobs for {len(turn.reply_ids)} reply ids; "
                "allowed: one each, or none at all."
            )
    return Episode(**_values(header, _HEADER_FIELDS), turns=tuple(turns))


def _validated(model: type[_Model], data: Any, where: str) -> _Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "the whole object"
        value = "" if first["type"] == "missing" else f"={shown(first['input'])}"
        raise ServerError(
            f"{where}: {name}{value}: {first['msg']}; does the other side run this version of hanabi_grpo?"
        ) from error


def _fields(record: Episode | Turn, names: Sequence[str]) -> dict[str, Any]:
    return {name: _plain(getattr(record, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, (EpisodeStatus, ReplyKind)):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _values(model: BaseModel, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(model, name) for name in names}
