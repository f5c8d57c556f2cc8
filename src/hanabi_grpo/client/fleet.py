"""Several rollout servers: their addresses, their shares of the tasks, and calls to all of them.

`training.link` handles a single server and its failures; this module handles only what involves
several servers.
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.envs.registry import setup
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.values import split_address
from hanabi_grpo.types import DroppedGame

logger = logging.getLogger(__name__)

SAME_ON_ALL = {
    "protocol": "version of hanabi_grpo",
    "model_fingerprint": "base model",
    "tokenizer_hash": "tokenizer",
    "chat_hash": "chat format",
    "bases": "base models of the players",
    "dtype": "number format",
    "max_model_len": "length of a conversation",
}
"""Fields of a server's identity that must be the same on all servers, with their names."""
REQUEST_GAMES = 4096
"""Maximum games of one request; more are split into several requests, with two in flight.

A server with 16 copies of a model and 256 replies each plays this many at once. The trainer reads
one answer while the games of the next are played, holds the text of at most two answers, and
HANABI_ROLLOUT_TIMEOUT applies to each of them.
"""
REQUESTS_AT_ONCE = 2
_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")


def server_url(settings: Settings) -> str:
    """Return the address of the server, or of the first one, e.g. "http://127.0.0.1:8000"."""
    return f"http://{server_name(each_server(settings)[0])}"


def server_name(settings: Settings) -> str:
    """Return the host and port of settings that name one server, e.g. "gpu7:8000"."""
    host = settings.vllm_server_host
    is_ipv6 = ":" in host
    if is_ipv6:
        host = f"[{host}]"
    return f"{host}:{settings.vllm_server_port}"


def each_server(settings: Settings) -> tuple[Settings, ...]:
    """Return the settings once for each server of VLLM_SERVER_HOST, each with one host and port.

    Raises:
        SettingsError: An entry is not an address, or a server is named twice.
    """
    servers = []
    try:
        for address in settings.vllm_server_host.split(","):
            host, port = split_address(address)
            update = {
                "vllm_server_host": host,
                "vllm_server_port": port or settings.vllm_server_port,
            }
            servers.append(settings.model_copy(update=update))
    except ValueError as error:
        raise SettingsError(f"VLLM_SERVER_HOST={settings.vllm_server_host!r}: {error}.") from error
    names = [server_name(server) for server in servers]
    if len(set(names)) < len(names):
        raise SettingsError(
            f"VLLM_SERVER_HOST={settings.vllm_server_host!r} means {', '.join(names)}: name each "
            "server once."
        )
    return tuple(servers)


def share_tasks(tasks: Sequence[Mapping[str, Any]], num_servers: int) -> list[list[int]]:
    """Choose the server of each task.

    A task's whole group stays on one server, and so does a task that is listed twice. The load is
    balanced in units of whole tasks: in descending order of the length of their games, each task
    goes to the server with the least load so far. The length of a game is its board's limit on
    turns.

    Args:
        tasks: Tasks as for `RolloutClient.play`.
        num_servers: Number of servers.

    Returns:
        The positions of each server's tasks in ascending order; empty for a server that is not
        needed.
    """
    positions: dict[str, list[int]] = {}
    turns: dict[str, int] = {}
    for position, task in enumerate(tasks):
        env = task.get("env", "hanabi")
        name = _task_name(task)
        positions.setdefault(name, []).append(position)
        max_turns = setup(env, task["env_config"]).spec.max_turns
        turns[name] = turns.get(name, 0) + max_turns
    shares: list[list[int]] = [[] for _ in range(num_servers)]
    load = [0] * num_servers
    for name in sorted(positions, key=lambda name: -turns[name]):
        server = load.index(min(load))
        load[server] += turns[name]
        shares[server].extend(positions[name])
    return [sorted(share) for share in shares]


def _task_name(task: Mapping[str, Any]) -> str:
    """Return a name that is the same for a task that is listed twice, whoever plays it."""
    key = [task.get("env"), task["env_config"], task["suite"], task["seed"]]
    return json.dumps(key, sort_keys=True)


def cut_request(
    tasks: Sequence[Mapping[str, Any]], num_games: int, *, most_games: int = REQUEST_GAMES
) -> list[list[int]]:
    """Split a request to one server into several of limited size.

    The first one is half as long as the others. Two are in flight, and the server plays them in
    turn, so one is always halfway when the other ends, and the last games of a request never have
    the engine to themselves.

    Args:
        tasks: Tasks as for `RolloutClient.play`; one that is listed twice is not split, because its
            games are numbered consecutively.
        num_games: Games per task.
        most_games: Maximum games of a request; a single task may have more.

    Returns:
        The positions of each request's tasks in ascending order; one request if all fit.
    """
    if len(tasks) * num_games <= most_games:
        return [list(range(len(tasks)))]
    positions: dict[str, list[int]] = {}
    for position, task in enumerate(tasks):
        positions.setdefault(_task_name(task), []).append(position)
    requests: list[list[int]] = [[]]
    room = most_games // 2
    for same in positions.values():
        needed = len(same) * num_games
        if needed > room and requests[-1]:
            requests.append([])
            room = most_games
        requests[-1].extend(same)
        room -= needed
    return [sorted(request) for request in requests]


def merge_shares(shares: Sequence[Sequence[int]], parts: Sequence[Sequence[_Item]]) -> list[_Item]:
    """Return the results of all servers in the order of the request.

    Args:
        shares: The positions of each server's tasks, see `share_tasks`.
        parts: Each server's results, one for each of its tasks.

    Example:
        merge_shares([[0, 2], [1]], [["a", "c"], ["b"]]) == ["a", "b", "c"]
    """
    items_by_position: dict[int, _Item] = {}
    for positions, items in zip(shares, parts, strict=True):
        items_by_position.update(zip(positions, items, strict=True))
    return [items_by_position[position] for position in sorted(items_by_position)]


def merge_results(
    shares: Sequence[Sequence[int]], results: Sequence[RolloutResult]
) -> RolloutResult:
    """Return several answers as one, groups in the order of the tasks.

    Args:
        shares: The positions of each answer's tasks.
        results: The answers.
    """
    dropped: list[DroppedGame] = []
    for result in results:
        dropped += result.dropped
    return RolloutResult(
        groups=merge_shares(shares, [result.groups for result in results]),
        dropped=tuple(dropped),
        prompt_tokens=sum(result.prompt_tokens for result in results),
        cached_tokens=sum(result.cached_tokens for result in results),
    )


def side_by_side(calls: Mapping[str, Callable[[], _Answer]]) -> list[_Answer]:
    """Make calls concurrently, each in its own thread, and return their answers in order.

    All calls have ended before this returns, so no server continues to play for a caller that has
    given up. The threads are daemons: Ctrl-C does not wait for them.

    Raises:
        BaseException: The exception of the first call that failed; each failure is logged.
    """
    answers: dict[str, _Answer] = {}
    errors: dict[str, BaseException] = {}

    def make_call(name: str, call: Callable[[], _Answer]) -> None:
        try:
            answers[name] = call()
        except BaseException as error:
            logger.warning("%s: %s: %s", name, type(error).__name__, error)
            errors[name] = error

    threads = []
    for name, call in calls.items():
        thread = threading.Thread(target=make_call, args=(name, call), name=name, daemon=True)
        threads.append(thread)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in calls:
        if name in errors:
            raise errors[name]
    return [answers[name] for name in calls]


def check_alike(identities: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse servers that would play different games, and one server under two names.

    Args:
        identities: The identity that each server reports, by its name.

    Raises:
        ServerError: Two servers differ; the message names them and the difference.
    """
    (first, reference), *others = identities.items()
    for name, identity in others:
        for field, what in SAME_ON_ALL.items():
            if identity.get(field) != reference.get(field):
                raise ServerError(
                    f"the servers of VLLM_SERVER_HOST differ in {what}: {first} has "
                    f"{reference.get(field)}, {name} has {identity.get(field)}. Start all of them "
                    "with the same MODEL, HANABI_DTYPE, HANABI_THINKING and "
                    "HANABI_MAX_MODEL_LEN, from the same version of hanabi_grpo, or leave one off "
                    "the list."
                )
    names: dict[Any, str] = {}
    """Name of each server by its process."""
    for name, identity in identities.items():
        instance_id = identity.get("instance_id")
        other = names.setdefault(instance_id, name)
        if other != name:
            raise ServerError(
                f"VLLM_SERVER_HOST: {other} and {name} are the same server (instance "
                f"{instance_id}); list it once."
            )
