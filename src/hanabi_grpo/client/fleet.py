"""Where the rollout servers are, which of several plays which tasks, and calls to all of them side
by side.

What one server does and what happens when it dies is `training.link`; here is only what is between
them."""

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hanabi_grpo.envs.registry import setup
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.values import split_address

logger = logging.getLogger(__name__)

SAME_ON_ALL = {
    "protocol": "version of hanabi_grpo",
    "model_fingerprint": "base model",
    "tokenizer_hash": "tokenizer",
    "chat_hash": "chat format",
    "dtype": "number format",
    "max_model_len": "length of a conversation",
}
"""What servers say of themselves that must not differ between them, and what it is of."""
_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")


def server_url(settings: Settings) -> str:
    """Return the address of the server, or of the first of several, e.g.
    "http://127.0.0.1:8000".
    """
    return f"http://{server_name(each_server(settings)[0])}"


def server_name(settings: Settings) -> str:
    """Return the host and port of settings that name one server, e.g. "gpu7:8000"."""
    host = (
        f"[{settings.vllm_server_host}]"
        if ":" in settings.vllm_server_host
        else settings.vllm_server_host
    )
    return f"{host}:{settings.vllm_server_port}"


def each_server(settings: Settings) -> tuple[Settings, ...]:
    """Return the settings once for each server of VLLM_SERVER_HOST, each with one host and its
    port.
    """
    found = []
    try:
        for word in settings.vllm_server_host.split(","):
            host, port = split_address(word)
            one = {"vllm_server_host": host, "vllm_server_port": port or settings.vllm_server_port}
            found.append(settings.model_copy(update=one))
    except ValueError as error:
        raise SettingsError(f"VLLM_SERVER_HOST={settings.vllm_server_host!r}: {error}.") from error
    names = [server_name(one) for one in found]
    if len(set(names)) < len(names):
        raise SettingsError(
            f"VLLM_SERVER_HOST={settings.vllm_server_host!r} means {', '.join(names)}: name each "
            "server once."
        )
    return tuple(found)


def share_tasks(tasks: Sequence[Mapping[str, Any]], num_servers: int) -> list[list[int]]:
    """Choose the server of each task; a task's whole group stays on one, and so does a task that is
    named twice.

    Servers get equal work as far as whole tasks allow: the task of the longest game goes first,
    each to the server that has the least so far. A game counts as long as its board's bound on
    turns.

    Returns: Per server the positions of its tasks in ascending order; none for a server that is not
        needed.
    """
    places: dict[str, list[int]] = {}
    turns: dict[str, int] = {}
    for place, task in enumerate(tasks):
        name = json.dumps(
            [task.get("env"), task["env_config"], task["suite"], task["seed"]], sort_keys=True
        )
        places.setdefault(name, []).append(place)
        turns[name] = (
            turns.get(name, 0) + setup(task.get("env", "hanabi"), task["env_config"]).spec.max_turns
        )
    shares: list[list[int]] = [[] for _ in range(num_servers)]
    load = [0] * num_servers
    for name in sorted(places, key=lambda name: -turns[name]):
        server = load.index(min(load))
        load[server] += turns[name]
        shares[server] += places[name]
    return [sorted(share) for share in shares]


def merge_shares(shares: Sequence[Sequence[int]], parts: Sequence[Sequence[_Item]]) -> list[_Item]:
    """Return what each server made of its share, in the order of the request."""
    shared = zip(shares, parts, strict=True)
    placed = {
        place: item for places, items in shared for place, item in zip(places, items, strict=True)
    }
    return [placed[place] for place in sorted(placed)]


def side_by_side(calls: Mapping[str, Callable[[], _Answer]]) -> list[_Answer]:
    """Make calls at the same time, each in a thread of its own, and return their answers in order.

    All have ended before this returns, so that a server is never asked two things at once. A thread
    ends with the process: Ctrl-C waits for none. The error of the first call that failed is raised;
    the others' are in the log."""
    answers: dict[str, _Answer] = {}
    errors: dict[str, BaseException] = {}

    def make(name: str, call: Callable[[], _Answer]) -> None:
        try:
            answers[name] = call()
        except BaseException as error:
            logger.warning("%s: %s: %s", name, type(error).__name__, error)
            errors[name] = error

    threads = [
        threading.Thread(target=make, args=one, name=f"server {one[0]}", daemon=True)
        for one in calls.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed := [name for name in calls if name in errors]:
        raise errors[failed[0]]
    return [answers[name] for name in calls]


def check_alike(identities: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse servers that would play different games, and one that has two names, by a
    ServerError.
    """
    (first, reference), *others = identities.items()
    for name, identity in others:
        for field, what in SAME_ON_ALL.items():
            if identity.get(field) != reference.get(field):
                raise ServerError(
                    f"the servers of VLLM_SERVER_HOST differ in {what}: {first} has "
                    f"{reference.get(field)}, {name} has "
                    f"{identity.get(field)}. Start all of them with the same MODEL, HANABI_DTYPE, "
                    "HANABI_THINKING and "
                    "HANABI_MAX_MODEL_LEN, from the same version of hanabi_grpo, or leave one off "
                    "the list."
                )
    by_instance: dict[Any, str] = {}
    for name, identity in identities.items():
        other = by_instance.setdefault(identity.get("instance_id"), name)
        if other != name:
            raise ServerError(
                f"VLLM_SERVER_HOST: {other} and {name} are one server (instance "
                f"{identity.get('instance_id')}); name "
                "it once."
            )
