"""Several rollout servers as one: each has a link of its own, and every step goes to all of them.

A version counts as pushed when all servers have it. A step's tasks are shared out whole and put
together again in the order of the request. A server that dies is waited for by its own link; the
games of the others are kept. With HANABI_OVERLAP=1 all games that were asked for ahead are lost
with any server: a step's games have one version."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from peft import PeftModel

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.fleet import (
    check_alike,
    each_server,
    merge_shares,
    server_name,
    share_tasks,
    side_by_side,
)
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.runs.history import IncidentLog
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import own_seats
from hanabi_grpo.training.link import GamesRequest, ServerLink
from hanabi_grpo.training.model.adapters import export_adapter

_Answer = TypeVar("_Answer")


class FleetLink:
    """What a `ServerLink` does, by the same names, with several servers."""

    def __init__(self, settings: Settings, run_folder: Path) -> None:
        """Prepare a link to each server; `connect` does the talking."""
        self.settings, self.run_folder = settings, run_folder
        self.incidents = IncidentLog(run_folder)
        servers = each_server(settings)
        self.links = {
            server_name(one): ServerLink(one, run_folder, name=server_name(one)) for one in servers
        }

    @property
    def server_facts(self) -> dict[str, Any]:
        """The same on all servers."""
        return next(iter(self.links.values())).server_facts

    @property
    def spec_hashes(self) -> list[str]:
        """Of the boards that were played."""
        return sorted({spec_hash for link in self.links.values() for spec_hash in link.spec_hashes})

    @property
    def partner_names(self) -> dict[str, str]:
        """What the partner behind a seat's word is called in metrics."""
        return {
            word: name for link in self.links.values() for word, name in link.partner_names.items()
        }

    def connect(self, version: int) -> None:
        """Introduce this run to every server, once all of them are found alike."""
        check_alike({name: link.client.identity() for name, link in self.links.items()})
        try:
            # One after the other: each reads the tokenizer and the partners' checkpoints.
            for link in self.links.values():
                link.connect(version)
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Release every server for the next trainer."""
        side_by_side({name: link.disconnect for name, link in self.links.items()})

    def push(self, model: PeftModel, names: tuple[str, ...], version: int) -> None:
        """Upload and commit every adapter to all servers; when this returns, all of them serve the
        version.
        """
        dtype = next(iter(self.links.values())).dtype
        exported = {name: export_adapter(model, name, dtype) for name in names}
        side_by_side(
            {
                name: partial(link.push_exported, exported, version)
                for name, link in self.links.items()
            }
        )
        self._check_alike()

    def play(self, tasks: list[TaskRow], names: tuple[str, ...], version: int) -> RolloutResult:
        """Play one step's tasks on all servers with exactly the pushed version."""
        shares = self._share([task.request() for task in tasks])
        result = _merged(
            shares, self._on_each(shares, lambda link, own: link.play(own, names, version), tasks)
        )
        self._check_alike()
        return result

    def prepare(self, tasks: list[TaskRow], names: tuple[str, ...], version: int) -> GamesRequest:
        """Seat the partners of a step's tasks and lend the servers what they need."""
        shares = self._share([task.request() for task in tasks])
        parts = self._on_each(shares, lambda link, own: link.prepare(own, names, version), tasks)
        return GamesRequest(
            tasks=merge_shares([*shares.values()], [part.tasks for part in parts]),
            own=own_seats(self.settings.players, names, version, self.settings.swap_every),
            version=version,
            instance_id="",
            parts=tuple(parts),
        )

    def fetch(self, request: GamesRequest) -> list[RolloutResult]:
        """Ask every server once, and change nothing of this object; returns the answers for
        `accept`.
        """
        parts = zip(self._share(request.tasks), request.parts, strict=True)
        return side_by_side({name: partial(self.links[name].fetch, part) for name, part in parts})

    def accept(self, request: GamesRequest, results: list[RolloutResult]) -> RolloutResult:
        """Check every stamp against the server that was asked."""
        shares = self._share(request.tasks)
        answers = zip(shares, request.parts, results, strict=True)
        return _merged(
            shares, [self.links[name].accept(part, result) for name, part, result in answers]
        )

    def validated(
        self, tasks: list[dict[str, Any]], names: tuple[str, ...], version: int
    ) -> RolloutResult:
        """Return one game of each task by the pushed version; one server is asked."""
        return next(iter(self.links.values())).validated(tasks, names, version)

    def exploited(self, names: tuple[str, ...], version: int) -> dict[str, float]:
        """Return what a best responder wins against the pushed version; one server is asked."""
        return next(iter(self.links.values())).exploited(names, version)

    def copy_log(self) -> None:
        """Append every server's new log lines to `server.log`, each with the server's name before
        it.
        """
        for link in self.links.values():
            link.copy_log()

    def _share(self, tasks: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
        # The same for a task with seats and without, so that a request need not carry it.
        shares = zip(self.links, share_tasks(tasks, len(self.links)), strict=True)
        return {name: places for name, places in shares if places}

    def _on_each(
        self,
        shares: Mapping[str, list[int]],
        call: Callable[[ServerLink, list[TaskRow]], _Answer],
        tasks: list[TaskRow],
    ) -> list[_Answer]:
        return side_by_side(
            {
                name: partial(call, self.links[name], [tasks[one] for one in places])
                for name, places in shares.items()
            }
        )

    def _check_alike(self) -> None:
        # A server that took the place of another one may differ from the rest.
        check_alike({name: link.identity for name, link in self.links.items()})


Link = ServerLink | FleetLink


def make_link(settings: Settings, run_folder: Path) -> Link:
    """Return the link to the server, or to all of them."""
    servers = each_server(settings)
    return (
        FleetLink(settings, run_folder) if len(servers) > 1 else ServerLink(servers[0], run_folder)
    )


def _merged(shares: Mapping[str, list[int]], results: Sequence[RolloutResult]) -> RolloutResult:
    return RolloutResult(
        groups=merge_shares([*shares.values()], [result.groups for result in results]),
        dropped=tuple(game for result in results for game in result.dropped),
        prompt_tokens=sum(result.prompt_tokens for result in results),
        cached_tokens=sum(result.cached_tokens for result in results),
    )
