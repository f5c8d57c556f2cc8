"""The trainer's link to one rollout server, in the place where ms-swift keeps its `VLLMClient`.

A server that dies is waited for, recognised by its new instance id, given the run's adapters again
and asked for the same games again. Games reach the trainer only as the whole answer to one request,
so none is consumed twice."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from peft import PeftModel

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.heartbeat import Heartbeat
from hanabi_grpo.client.profiles import exploited
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.client.waiting import wait_for_server
from hanabi_grpo.errors import HanabiGrpoError, ServerError, ServerGoneError, VersionError
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.rollout.datasets import played_setups, training_rows
from hanabi_grpo.runs.history import IncidentLog
from hanabi_grpo.runs.run_folder import public_run, run_identity, run_secret
from hanabi_grpo.runs.saved_adapters import SAME_FACTS
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import own_seats
from hanabi_grpo.training.model.adapters import adapter_names, export_adapter
from hanabi_grpo.training.partner_seats import PartnerSeats
from hanabi_grpo.training.tasks import check_stamps

logger = logging.getLogger(__name__)

TRIES_ON_ONE_SERVER = 3
"""How often a call that got no answer is repeated while the same server process says that it is
healthy.
"""
_SAY_SECONDS = 60.0
Adapters = Mapping[str, tuple[bytes, Mapping[str, Any]]]
"""Per adapter its safetensors bytes and PEFT configuration."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class GamesRequest:
    """One step's games as they are asked for."""

    tasks: list[dict[str, Any]]
    """With "seats" where a partner plays."""
    own: tuple[str, ...]
    """Words of the run's own players, e.g. ("player_0@7", "player_1@7")."""
    version: int
    instance_id: str
    """Of the server process; empty where there are several."""
    parts: tuple["GamesRequest", ...] = ()
    """What each of several servers is asked for."""


class ServerLink:
    """Handshake, pushes and games of one server. Every rank holds one; only the main process
    connects.
    """

    def __init__(self, settings: Settings, run_folder: Path, *, name: str = "") -> None:
        """Prepare; where there are several servers, `name` stands in their common records."""
        self.settings, self.run_folder = settings, run_folder
        self.incidents = IncidentLog(run_folder)
        self.identity: dict[str, Any] = {}
        """What the server says of itself; empty before `connect`."""
        self.instance_id = ""
        self.spec_hashes: list[str] = []
        self.server_facts: dict[str, Any] = {}
        """What a checkpoint says of the base model that its adapters belong to; empty before
        `connect`.
        """
        self.dtype: torch.dtype = getattr(torch, settings.dtype)
        self._log_seen = 0
        self._version = 0
        self._adapters: Adapters = {}
        self._said_by = f"[{name}] " if name else ""
        self.client = RolloutClient.from_settings(settings)
        self.partners = PartnerSeats(settings, run_folder, self.client.upload_guest)
        self.partner_names = self.partners.names
        self._heartbeat: Heartbeat | None = None

    def connect(self, version: int) -> None:
        """Introduce this run to the server, with the first version that will be pushed; above 0 for
        a resumed run.

        Raises:
            ServerError: No server, one that works for another trainer, or one that does not fit.
            SettingsError: A partner that cannot be seated.
        """
        self._version = version
        self._introduce()
        self._heartbeat = Heartbeat.from_client(self.client)
        self._heartbeat.start()
        try:
            self.partners.load(self.server_facts, self.instance_id, self.identity.get("partners"))
        except HanabiGrpoError:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Release the server for the next trainer; it goes on serving the last adapters."""
        if self._heartbeat is None:
            return
        self._heartbeat.stop()
        self._heartbeat = None
        try:
            self.client.release()
        except ServerError as error:
            logger.info("the server was not released (%s); it frees itself after a while", error)

    def push(self, model: PeftModel, names: tuple[str, ...], version: int) -> None:
        """Upload and commit every adapter; the receipts are checked."""
        self.push_exported(
            {name: export_adapter(model, name, self.dtype) for name in names}, version
        )

    def push_exported(self, exported: Adapters, version: int) -> None:
        """Do what `push` does, with adapters in the server's number format."""
        self._version, self._adapters = version, exported
        self._reliably(self._send, f"the weight sync of version {version}")

    def play(self, tasks: list[TaskRow], names: tuple[str, ...], version: int) -> RolloutResult:
        """Return the games of one step's tasks with exactly the pushed version, checked, see
        `accept`.
        """

        def ask() -> tuple[GamesRequest, RolloutResult]:
            request = self.prepare(tasks, names, version)
            return request, self.fetch(request)

        return self.accept(
            *self._reliably(
                lambda: self.partners.lend_again(ask), f"the games of version {version}"
            )
        )

    def prepare(self, tasks: list[TaskRow], names: tuple[str, ...], version: int) -> GamesRequest:
        """Seat the partners of a step's tasks and lend the server what they need."""
        own = own_seats(self.settings.players, names, version, self.settings.swap_every)
        seated = self.partners.seat(tasks, own, version, self.instance_id)
        return GamesRequest(tasks=seated, own=own, version=version, instance_id=self.instance_id)

    def fetch(self, request: GamesRequest, num_games: int | None = None) -> RolloutResult:
        """Ask once, and change nothing of this object: it may run beside other calls, in a thread
        of its own.
        """
        return self.client.play(
            request.tasks,
            num_games=num_games or self.settings.num_generations,
            max_tokens=self.settings.max_completion_length,
            temperature=self.settings.temperature,
            seats=request.own,
        )

    def accept(self, request: GamesRequest, result: RolloutResult) -> RolloutResult:
        """Check every stamp against what was asked for; a ServerError where games are by others."""
        for task, group in zip(request.tasks, result.groups, strict=True):
            check_stamps(group, task.get("seats", request.own), request.instance_id)
        self.spec_hashes = sorted(
            {*self.spec_hashes, *(group[0].spec_hash for group in result.groups if group)}
        )
        return result

    def validated(
        self, tasks: list[dict[str, Any]], names: tuple[str, ...], version: int
    ) -> RolloutResult:
        """Return one game of each task by the pushed version in its own seats."""
        own = own_seats(self.settings.players, names, version)

        def ask() -> RolloutResult:
            return self.fetch(
                GamesRequest(tasks=tasks, own=own, version=version, instance_id=self.instance_id), 1
            )

        return self._reliably(ask, f"the validation of version {version}")

    def exploited(self, names: tuple[str, ...], version: int) -> dict[str, float]:
        """Return what a best responder wins against the pushed version, as metrics."""
        seats = own_seats(self.settings.players, names, version, self.settings.swap_every)
        return self._reliably(
            lambda: exploited(self.settings.setup(), seats, self.client), "the exploitability"
        )

    def copy_log(self) -> None:
        """Append the server's new log lines to `server.log` in the run folder; a lost server loses
        them only.
        """
        try:
            self._log_seen, lines = self.client.log(self._log_seen)
        except ServerGoneError as error:
            logger.info("no log lines from the server this time: %s", error)
            return
        with (self.run_folder / "server.log").open("a", encoding="utf-8") as file:
            file.writelines(f"{self._said_by}{line}\n" for line in lines)

    def _introduce(self) -> None:
        settings, run_id = self.settings, run_identity(self.run_folder)
        identity = self.client.identity()
        own = identity["versions"] if identity.get("run") == public_run(run_id) else {}
        if newer := {name: held for name, held in own.items() if held > self._version}:
            self.incidents.record(
                "versions_replaced",
                f"{self._said_by}the server holds "
                f"{', '.join(f'{name}@{held}' for name, held in newer.items())} of "
                f"this run, the trainer goes on from version {self._version}: the steps in "
                "between were not saved and "
                "are made again; the server is told to drop them",
                versions=newer,
            )
        self.identity = self.client.introduce(
            settings,
            run_id=run_id,
            adapters=adapter_names(settings.players, settings.adapters),
            lora_rank=settings.lora_rank,
            setups=played_setups(training_rows(settings)),
            secret=run_secret(self.run_folder),
            version=self._version,
            replaces=newer or None,
        )
        self.instance_id = self.identity["instance_id"]
        self.server_facts = {
            name: self.identity[name] for name in (*SAME_FACTS, "dtype") if name in self.identity
        }
        self._log_seen, _ = self.client.log(0)

    def _send(self) -> None:
        answer = self.client.push(self._version, self._adapters)
        if answer["instance_id"] != self.instance_id:
            raise ServerError(
                f"{self.client.url}: the receipt is from instance {answer['instance_id']}."
            )

    def _reliably(self, call: Callable[[], _Answer], what: str) -> _Answer:
        """Make a call; when the server is gone, wait for one, hand it the adapters, and make the
        call again.
        """
        tries = 0
        while True:
            if self._heartbeat is not None and self._heartbeat.lost:
                raise VersionError(
                    f"{self._heartbeat.lost} This trainer stops; its checkpoints are complete."
                )
            try:
                with says_so(f"{what} from {self.client.url}"):
                    return call()
            except ServerError as error:
                before, reason = self.instance_id, error
                if not isinstance(error, ServerGoneError) and not self._was_replaced():
                    raise
            tries += 1
            if tries > 2 * TRIES_ON_ONE_SERVER:
                raise ServerError(
                    f"{what}: {tries} tries on several servers failed, the last with: {reason}"
                )
            self.incidents.record(
                "server_gone", f"{what}: {reason}", version=self._version, instance=before
            )
            start = "bash tools/rollout/rollout_hanabi_gym.sh"
            health = wait_for_server(self.settings, logger.warning, server_command=start)
            try:
                self._return_to(health["instance_id"], what)
            except ServerGoneError as error:
                logger.warning("the server was lost again (%s)", error)
                continue
            if self.instance_id == before and tries >= TRIES_ON_ONE_SERVER:
                raise reason
            time.sleep(min(tries, 5))

    def _was_replaced(self) -> bool:
        try:
            return bool(self.client.identity()["instance_id"] != self.instance_id)
        except ServerGoneError:
            return True

    def _return_to(self, instance_id: str, what: str) -> None:
        if instance_id == (before := self.instance_id):
            logger.warning(
                "%sthe same server (instance %s) is back; asked for %s again",
                self._said_by,
                before,
                what,
            )
            return
        self._introduce()
        if self._adapters:
            self._send()
        self.incidents.record(
            "server_replaced",
            f"{self._said_by}instance {self.instance_id} took the place of {before}; it was given "
            "version "
            f"{self._version} and is asked for {what} again",
            version=self._version,
            instance=self.instance_id,
        )


@contextmanager
def says_so(what: str) -> Iterator[None]:
    """Log once a minute for what the trainer waits."""
    done = threading.Event()

    def remind() -> None:
        seconds = 0.0
        while not done.wait(_SAY_SECONDS):
            seconds += _SAY_SECONDS
            logger.info("waiting for %s since %.0f s", what, seconds)

    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
