"""Several rollout servers used as one: each has its own link, and every step goes to all of them.

A version counts as pushed when all servers have it. Each task of a step goes to one server, and the
results are merged in the order of the request. If a server dies, its own link waits for it, and the
games of the others are kept. With HANABI_OVERLAP, losing any server loses all prefetched games,
because all games of a step must have the same version.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from peft import PeftModel

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.curves import Curve
from hanabi_grpo.client.fleet import (
    check_alike,
    each_server,
    merge_results,
    merge_shares,
    server_name,
    share_tasks,
    side_by_side,
)
from hanabi_grpo.client.rollout_client import weights_digest
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.runs.history import IncidentLog
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import own_seats
from hanabi_grpo.training.link import (
    Adapters,
    GamesRequest,
    ProbedReplica,
    ServerLink,
    training_seed,
)
from hanabi_grpo.training.matchmaking import PartnerRecord
from hanabi_grpo.training.model.adapters import export_adapter

Shares = Mapping[str, list[int]]
"""Per server, the positions of its tasks in the request; servers without a task are left out."""
_Answer = TypeVar("_Answer")


class FleetLink:
    """The same interface as `ServerLink`, for several servers."""

    def __init__(self, settings: Settings, run_folder: Path) -> None:
        """Prepare a link to each server; nothing is sent before `connect`."""
        self.settings = settings
        self.run_folder = run_folder
        self.incidents = IncidentLog(run_folder)
        self.links: dict[str, ServerLink] = {}
        """Links by host and port."""
        for server in each_server(settings):
            name = server_name(server)
            self.links[name] = ServerLink(server, run_folder, name=name)

    @property
    def server_facts(self) -> dict[str, Any]:
        """Facts about the base model, the same on all servers."""
        return self._first_link.server_facts

    @property
    def spec_hashes(self) -> list[str]:
        """Hashes of the boards that were played, sorted."""
        hashes: set[str] = set()
        for link in self.links.values():
            hashes.update(link.spec_hashes)
        return sorted(hashes)

    @property
    def partner_names(self) -> dict[str, str]:
        """The name of each partner in metrics, by its seat."""
        names: dict[str, str] = {}
        for link in self.links.values():
            names |= link.partner_names
        return names

    def use_partner_record(self, record: PartnerRecord) -> None:
        """Use this record for all further partner draws, see `matchmaking`."""
        for link in self.links.values():
            link.use_partner_record(record)

    def connect(self, version: int) -> None:
        """Check that all servers are alike, then introduce this run to each of them."""
        identities = {name: link.client.identity() for name, link in self.links.items()}
        check_alike(identities)
        try:
            # Sequentially, because each link reads the tokenizer and the partners' checkpoints.
            for link in self.links.values():
                link.connect(version)
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Release every server for the next trainer."""
        side_by_side({name: link.disconnect for name, link in self.links.items()})

    def push(self, model: PeftModel, names: tuple[str, ...], version: int) -> None:
        """Upload and commit every adapter to all servers; afterwards they serve the version.

        Args:
            model: The model with the adapters.
            names: Names of the adapters.
            version: Their version on the servers.
        """
        dtype = self._first_link.dtype
        exported = {name: export_adapter(model, name, dtype) for name in names}
        self.push_exported(exported, version)

    def push_exported(self, exported: Adapters, version: int) -> None:
        """Do what `push` does, with adapters that are already in the servers' number format."""
        # Computed once for all servers: with many servers it would dominate this process's work.
        digests = {name: weights_digest(weights) for name, (weights, _) in exported.items()}
        calls = {}
        for server, link in self.links.items():
            calls[server] = partial(link.push_exported, exported, version, digests)
        side_by_side(calls)
        self._check_alike()

    @property
    def instances(self) -> tuple[str, ...]:
        """The server processes that play for this run; empty before `connect`."""
        instances: list[str] = []
        for link in self.links.values():
            instances += link.instances
        return tuple(instances)

    def probe(
        self,
        adapter: str,
        weights: bytes,
        config: Mapping[str, Any],
        sequences: Sequence[Sequence[int]],
    ) -> list[ProbedReplica]:
        """Return how an adapter changes logprobs on each replica of each server.

        The adapter is not served.

        Args:
            adapter: Name of the run's adapter that the probe stands in for.
            weights: safetensors bytes.
            config: PEFT configuration.
            sequences: Token ids.
        """
        calls = {}
        for server, link in self.links.items():
            calls[server] = partial(link.probe, adapter, weights, config, sequences)
        return list(itertools.chain(*side_by_side(calls)))

    def play(self, tasks: list[TaskRow], names: tuple[str, ...], version: int) -> RolloutResult:
        """Play one step's tasks on all servers with exactly the pushed version.

        Args:
            tasks: The step's tasks.
            names: The run's adapters.
            version: The version that was pushed.
        """

        def play_share(link: ServerLink, share: list[TaskRow]) -> RolloutResult:
            return link.play(share, names, version)

        shares = self._share([task.request() for task in tasks])
        result = merge_results(list(shares.values()), self._on_each(shares, play_share, tasks))
        self._check_alike()
        return result

    def prepare(self, tasks: list[TaskRow], names: tuple[str, ...], version: int) -> GamesRequest:
        """Seat the partners of a step's tasks and upload the adapters that the servers need.

        Args:
            tasks: The step's tasks.
            names: The run's adapters.
            version: The version that was pushed.
        """

        def prepare_share(link: ServerLink, share: list[TaskRow]) -> GamesRequest:
            return link.prepare(share, names, version)

        shares = self._share([task.request() for task in tasks])
        parts = self._on_each(shares, prepare_share, tasks)
        requests = [part.tasks for part in parts]
        return GamesRequest(
            tasks=merge_shares(list(shares.values()), requests),
            own=own_seats(self.settings.players, names, version, self.settings.swap_every),
            version=version,
            instance_id="",
            sampling_seed=training_seed(self.settings, tasks),
            parts=tuple(parts),
        )

    def fetch(self, request: GamesRequest) -> list[RolloutResult]:
        """Send the request to every server once; this changes nothing in the object.

        Returns:
            The servers' answers, for `accept`.
        """
        shares = self._share(request.tasks)
        calls = {}
        for server, part in zip(shares, request.parts, strict=True):
            calls[server] = partial(self.links[server].fetch, part)
        return side_by_side(calls)

    def accept(self, request: GamesRequest, results: list[RolloutResult]) -> RolloutResult:
        """Check the stamps of every game against the server that was asked.

        Args:
            request: Returned by `prepare`.
            results: Returned by `fetch`.
        """
        shares = self._share(request.tasks)
        accepted = []
        for server, part, result in zip(shares, request.parts, results, strict=True):
            accepted.append(self.links[server].accept(part, result))
        return merge_results(list(shares.values()), accepted)

    @property
    def curves(self) -> tuple[Curve, ...]:
        """The curves that the run is validated on."""
        return self._first_link.curves

    def validated(
        self, curves: Sequence[Curve], names: tuple[str, ...], version: int
    ) -> dict[str, RolloutResult]:
        """Return the pushed version's games on each curve; only one server is asked.

        Args:
            curves: The curves to validate on.
            names: The run's adapters.
            version: The version that was pushed.
        """
        return self._first_link.validated(curves, names, version)

    def exploited(self, names: tuple[str, ...], version: int) -> dict[str, float]:
        """Return what a best response wins against the pushed version; only one server is asked."""
        return self._first_link.exploited(names, version)

    def believed(self, names: tuple[str, ...], version: int) -> dict[str, float]:
        """Return what players of the pushed version believe; only one server is asked."""
        return self._first_link.believed(names, version)

    def copy_log(self) -> None:
        """Append every server's new log lines to `server.log`, each with the server's name."""
        for link in self.links.values():
            link.copy_log()

    @property
    def _first_link(self) -> ServerLink:
        return next(iter(self.links.values()))

    def _share(self, tasks: Sequence[dict[str, Any]]) -> Shares:
        # A task's share does not depend on its seats, so a request need not carry the shares.
        shares = {}
        for server, positions in zip(self.links, share_tasks(tasks, len(self.links)), strict=True):
            if positions:
                shares[server] = positions
        return shares

    def _on_each(
        self,
        shares: Shares,
        call: Callable[[ServerLink, list[TaskRow]], _Answer],
        tasks: list[TaskRow],
    ) -> list[_Answer]:
        """Call every server that has a share with its tasks, in parallel."""
        calls = {}
        for server, positions in shares.items():
            share = [tasks[position] for position in positions]
            calls[server] = partial(call, self.links[server], share)
        return side_by_side(calls)

    def _check_alike(self) -> None:
        # A server that replaced another may differ from the rest.
        check_alike({name: link.identity for name, link in self.links.items()})


Link = ServerLink | FleetLink


def make_link(settings: Settings, run_folder: Path) -> Link:
    """Return the link to the server, or to all of them."""
    servers = each_server(settings)
    if len(servers) > 1:
        return FleetLink(settings, run_folder)
    return ServerLink(servers[0], run_folder)
