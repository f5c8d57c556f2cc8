"""The trainer's link to one rollout server; it takes the place of ms-swift's `VLLMClient`.

If the server dies, the link waits for it, recognizes the new process by its instance id, uploads
the run's adapters again and requests the same games again. The trainer receives games only once all
requested games have arrived, so no game is consumed twice.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from peft import PeftModel

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.beliefs import believed
from hanabi_grpo.client.curves import (
    Curve,
    CurveSeats,
    validation_curves,
    validation_setups,
)
from hanabi_grpo.client.heartbeat import Heartbeat
from hanabi_grpo.client.profiles import exploited
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.client.waiting import wait_for_server
from hanabi_grpo.errors import (
    HanabiGrpoError,
    ServerError,
    ServerGoneError,
    SettingsError,
    VersionError,
)
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.rollout.datasets import FURTHER_APART, REPLACEMENT, played_setups, training_rows
from hanabi_grpo.rollout.messages import check_script
from hanabi_grpo.rollout.seeds import request_seed
from hanabi_grpo.runs.history import IncidentLog
from hanabi_grpo.runs.run_folder import public_run, run_identity, run_secret
from hanabi_grpo.runs.saved_adapters import BASES, SAME_FACTS
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import own_seats
from hanabi_grpo.settings.refs import ScriptRef
from hanabi_grpo.settings.teachers import SeatTeacher, parse_teachers
from hanabi_grpo.training.matchmaking import PartnerRecord
from hanabi_grpo.training.model.adapters import adapter_names, export_adapter
from hanabi_grpo.training.partner_seats import PartnerSeats, retry_dropped
from hanabi_grpo.training.tasks import check_stamps

logger = logging.getLogger(__name__)

_PARTNER_RULE = (
    "A partner may be drawn for every training game; choose one that plays all games of DATASET."
)
_TEACHER_RULE = (
    "A teacher labels every training game; remove the rows of this environment from DATASET, or "
    "choose a script that all environments in it have."
)

TRIES_ON_ONE_SERVER = 3
"""How often an unanswered call is repeated while the same server process reports that it is
healthy."""
MAX_TRIES = 2 * TRIES_ON_ONE_SERVER
"""How often a call is made in total, over all server processes."""
_LONGEST_PAUSE = 5
"""Longest pause between two tries, in seconds."""
_REMINDER_SECONDS = 60.0
"""Seconds between two log lines that say what the trainer is waiting for."""
_START_COMMAND = "bash tools/rollout/rollout_hanabi_gym.sh"
Adapters = Mapping[str, tuple[bytes, Mapping[str, Any]]]
"""Safetensors bytes and PEFT configuration of each adapter, by name."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class GamesRequest:
    """A request for one step's games."""

    tasks: list[dict[str, Any]]
    """Tasks in wire format, with "seats" if a partner plays, see `TaskRow.request`."""
    own: tuple[str, ...]
    """Per seat, the run's own adapter, e.g. ("player_0@7", "player_1@7")."""
    version: int
    """Version of those adapters."""
    instance_id: str
    """Instance id of the server process; empty if there are several servers."""
    sampling_seed: int | None = None
    """Determines every sampled reply, see `rollout.seeds`; None: replies differ each time."""
    teachers: tuple[SeatTeacher | None, ...] = ()
    """Per seat, the teacher that labels its turns, or None; empty: no seat has a teacher."""
    parts: tuple["GamesRequest", ...] = ()
    """The request to each server, if there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedReplica:
    """One replica's logprobs of the token sequences of a probe."""

    where: str
    """Which replica it is, for messages; empty if it is the only one."""
    without: Sequence[float]
    """Logprobs of each id except the first of each sequence, under the base model."""
    under: Sequence[float]
    """The same logprobs under the adapter that was sent."""


class ServerLink:
    """Connects to one server, pushes adapters to it and requests games from it.

    Every rank has a link; only the main process connects.
    """

    def __init__(self, settings: Settings, run_folder: Path, *, name: str = "") -> None:
        """Prepare; nothing is sent yet.

        Args:
            settings: The run's settings, with the address of one server.
            run_folder: For incidents, the server's log, and partners.
            name: Name of the server in shared records, if there are several servers.
        """
        self.settings = settings
        self.run_folder = run_folder
        self.incidents = IncidentLog(run_folder)
        self.identity: dict[str, Any] = {}
        """The server's description of itself; empty before `connect`."""
        self.instance_id = ""
        """Instance id of the server process; empty before `connect`."""
        self.spec_hashes: list[str] = []
        """Hashes of the boards that were played, sorted."""
        self.server_facts: dict[str, Any] = {}
        """Facts about the base model of the adapters, for checkpoints; empty before `connect`."""
        self.dtype: torch.dtype = getattr(torch, settings.dtype)
        """The server's number format."""
        self._num_log_lines = 0
        self._version = 0
        self._adapters: Adapters = {}
        self._digests: Mapping[str, str] | None = None
        self._name = name
        self._prefix = f"[{name}] " if name else ""
        self.client = RolloutClient.from_settings(settings)
        self.partners = PartnerSeats(settings, run_folder, self.client.upload_guest)
        self.partner_names = self.partners.names
        self.curves = validation_curves(settings)
        self._curve_seats = CurveSeats(settings, self.client, self.curves)
        self._heartbeat: Heartbeat | None = None

    def use_partner_record(self, record: PartnerRecord) -> None:
        """Use this record for all further partner draws, see `matchmaking`."""
        self.partners.record = record

    def connect(self, version: int) -> None:
        """Introduce this run to the server.

        Args:
            version: The first version that will be pushed; above 0 for a resumed run.

        Raises:
            ServerError: There is no server, it works for another trainer, or it does not match the
                settings.
            SettingsError: A partner, or an opponent in validations, cannot be seated, or a game
                does not have a teacher or partner.
        """
        self._version = version
        self._check_scripts()
        self._introduce()
        self._heartbeat = Heartbeat.from_client(self.client)
        self._heartbeat.start()
        try:
            self.partners.load(self.server_facts, self.instance_id, self.identity.get("partners"))
            self._curve_seats.load()
        except HanabiGrpoError:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Release the server for the next trainer; it continues to serve the last adapters."""
        if self._heartbeat is None:
            return
        self._heartbeat.stop()
        self._heartbeat = None
        try:
            self.client.release()
        except ServerError as error:
            logger.info(
                "the server could not be released (%s); its session ends after a timeout", error
            )

    def push(self, model: PeftModel, names: tuple[str, ...], version: int) -> None:
        """Upload and commit every adapter; the receipts are checked.

        Args:
            model: The model with the adapters.
            names: Names of the adapters.
            version: Their version on the server.
        """
        exported = {name: export_adapter(model, name, self.dtype) for name in names}
        self.push_exported(exported, version)

    def push_exported(
        self, exported: Adapters, version: int, digests: Mapping[str, str] | None = None
    ) -> None:
        """Do what `push` does, with adapters that are already in the server's number format.

        Args:
            exported: The adapters.
            version: Their version on the server.
            digests: See `RolloutClient.push`.
        """
        self._version = version
        self._adapters = exported
        self._digests = digests
        self._reliably(self._send, f"the weight sync of version {version}")

    @property
    def instances(self) -> tuple[str, ...]:
        """The server processes that play for this run; empty before `connect`."""
        return (self.instance_id,) if self.instance_id else ()

    def probe(
        self,
        adapter: str,
        weights: bytes,
        config: Mapping[str, Any],
        sequences: Sequence[Sequence[int]],
    ) -> list[ProbedReplica]:
        """Return how an adapter changes logprobs on each replica of its base model.

        The adapter is not served.

        Args:
            adapter: Name of the run's adapter that the probe stands in for.
            weights: safetensors bytes.
            config: PEFT configuration.
            sequences: Token ids.
        """
        ask = partial(self.client.probe, adapter, weights, config, sequences)
        answer = self._reliably(ask, f"the probe of {adapter}")
        replicas = []
        for number, copy in enumerate(answer.copies, start=1):
            where = []
            if self._name:
                where.append(self._name)
            if len(answer.copies) > 1:
                where.append(f"replica {number} of {len(answer.copies)}")
            replica = ProbedReplica(
                where=", ".join(where),
                without=tuple(itertools.chain(*copy.without)),
                under=tuple(itertools.chain(*copy.under)),
            )
            replicas.append(replica)
        return replicas

    def play(self, tasks: list[TaskRow], names: tuple[str, ...], version: int) -> RolloutResult:
        """Return the games of one step's tasks, played with exactly the pushed version.

        Every game's stamps are checked.

        Args:
            tasks: The step's tasks.
            names: The run's adapters.
            version: The version that was pushed.
        """

        def ask() -> tuple[GamesRequest, RolloutResult]:
            request = self.prepare(tasks, names, version)
            return request, self.fetch(request)

        def ask_with_partners() -> tuple[GamesRequest, RolloutResult]:
            return self.partners.reupload_dropped(ask)

        request, result = self._reliably(ask_with_partners, f"the games of version {version}")
        return self.accept(request, result)

    def prepare(self, tasks: list[TaskRow], names: tuple[str, ...], version: int) -> GamesRequest:
        """Seat the partners of a step's tasks and upload the adapters that they need.

        Args:
            tasks: The step's tasks.
            names: The run's adapters.
            version: The version that was pushed.
        """
        own = own_seats(self.settings.players, names, version, self.settings.swap_every)
        requests = self.partners.seat(tasks, own, version, self.instance_id)
        return GamesRequest(
            tasks=requests,
            own=own,
            version=version,
            instance_id=self.instance_id,
            sampling_seed=training_seed(self.settings, tasks),
            teachers=self.partners.teachers(version),
        )

    def fetch(self, request: GamesRequest) -> RolloutResult:
        """Ask for a step's games once; this changes nothing here, so it may run in a thread."""
        # With HANABI_OVERLAP, the next version may be pushed while these games are played.
        return self._ask(
            request,
            num_games=self.settings.num_generations,
            in_one_request=self.settings.overlap > 0,
        )

    def _ask(
        self, request: GamesRequest, *, num_games: int, in_one_request: bool = False
    ) -> RolloutResult:
        """Send the request.

        Args:
            request: The request.
            num_games: Number of games for each task.
            in_one_request: See `RolloutClient.play`.
        """
        return self.client.play(
            request.tasks,
            num_games=num_games,
            max_tokens=self.settings.max_completion_length,
            temperature=self.settings.temperature,
            token_filter=self.settings.token_filter,
            sampling_seed=request.sampling_seed,
            seats=request.own,
            teachers=request.teachers or None,
            in_one_request=in_one_request,
        )

    def accept(self, request: GamesRequest, result: RolloutResult) -> RolloutResult:
        """Check the stamps of every game against the request.

        Raises:
            ServerError: A game was played by others than the requested players.
        """
        for task, group in zip(request.tasks, result.groups, strict=True):
            check_stamps(group, task.get("seats", request.own), request.instance_id)
        played = {group[0].spec_hash for group in result.groups if group}
        self.spec_hashes = sorted({*self.spec_hashes, *played})
        return result

    def validated(
        self, curves: Sequence[Curve], names: tuple[str, ...], version: int
    ) -> dict[str, RolloutResult]:
        """Return the pushed version's validation games, one for each task of each curve.

        If a lineup has several seat orders, there is one game for each order. Results are by the
        curve's name.

        Args:
            curves: The curves to validate on.
            names: The run's adapters.
            version: The version that was pushed.
        """
        own = own_seats(self.settings.players, names, version)
        results = {}
        for curve in curves:
            ask = partial(self._ask_validation, curve, own, version)
            purpose = f"the validation of version {version} ({curve.name})"
            results[curve.name] = self._reliably(partial(retry_dropped, ask), purpose)
        return results

    def _ask_validation(self, curve: Curve, own: tuple[str, ...], version: int) -> RolloutResult:
        # The first curve of a run gets the same replies as if it were the only one.
        number = (curve.number,) if curve.number else ()
        request = GamesRequest(
            tasks=self._curve_seats.requests(curve, own),
            own=own,
            version=version,
            instance_id=self.instance_id,
            sampling_seed=request_seed(self.settings.seed, "validation", version, *number),
        )
        return self._ask(request, num_games=1)

    def exploited(self, names: tuple[str, ...], version: int) -> dict[str, float]:
        """Return what a best response wins against the pushed version, as metrics."""
        seats = own_seats(self.settings.players, names, version, self.settings.swap_every)

        def ask() -> dict[str, float]:
            return exploited(self.settings.setup(), seats, self.client)

        return self._reliably(ask, "the exploitability")

    def believed(self, names: tuple[str, ...], version: int) -> dict[str, float]:
        """Return what players of the pushed version believe about hidden cards, as metrics."""
        seats = own_seats(self.settings.players, names, version, self.settings.swap_every)
        limit = self.settings.max_completion_length
        seed = request_seed(self.settings.seed, "beliefs", version)

        def ask() -> dict[str, float]:
            setup = self.settings.setup()
            return believed(setup, seats, self.client, max_tokens=limit, sampling_seed=seed)

        return self._reliably(ask, "the beliefs")

    def copy_log(self) -> None:
        """Append the server's new log lines to `server.log` in the run folder.

        If the server is gone, only these lines are lost.
        """
        try:
            self._num_log_lines, lines = self.client.log(self._num_log_lines)
        except ServerGoneError as error:
            logger.info("no log lines from the server this time: %s", error)
            return
        with (self.run_folder / "server.log").open("a", encoding="utf-8") as file:
            file.writelines(f"{self._prefix}{line}\n" for line in lines)

    def _check_scripts(self) -> None:
        """Raise a SettingsError if a game of the dataset lacks a teacher or partner."""
        settings = self.settings
        partners = f"HANABI_PARTNERS={','.join(settings.partners)}"
        needed = [(partners, partner.ref, _PARTNER_RULE) for partner in self.partners.pool]
        teachers = f"HANABI_TEACHER={','.join(settings.teacher)}"
        for teacher in parse_teachers(settings).values():
            needed.append((teachers, teacher, _TEACHER_RULE))
        for setup in played_setups(training_rows(settings)):
            for given, ref, rule in needed:
                if not isinstance(ref, ScriptRef):
                    continue
                try:
                    check_script(setup, ref.name)
                except SettingsError as error:
                    raise SettingsError(f"{given}: {error} {rule}") from error

    def _introduce(self) -> None:
        run_id = run_identity(self.run_folder)
        names = adapter_names(self.settings.players, self.settings.adapters)
        largest = self.settings.largest_rank
        smaller: dict[str, Any] = {}
        for name in names:
            if self.settings.rank_of(name) != largest:
                smaller[name] = self.settings.rank_of(name)
        replaced = self._newer_versions(run_id)
        self.identity = self.client.introduce(
            self.settings,
            run_id=run_id,
            adapters=names,
            lora_rank=largest,
            **({"lora_ranks": smaller} if smaller else {}),
            setups=[
                *played_setups(training_rows(self.settings)),
                *validation_setups(self.settings),
            ],
            secret=run_secret(self.run_folder),
            version=self._version,
            replaces=replaced or None,
        )
        self.instance_id = self.identity["instance_id"]
        self.server_facts = {
            name: self.identity[name] for name in (*SAME_FACTS, "dtype") if name in self.identity
        }
        if self.identity.get(BASES):
            self.server_facts[BASES] = self.identity[BASES]
        self._num_log_lines, _ = self.client.log(0)

    def _newer_versions(self, run_id: str) -> dict[str, int]:
        """Return this run's adapters that the server holds at a newer version than the run has.

        After a resume, the steps since the last checkpoint are repeated.
        """
        identity = self.client.identity()
        if identity.get("run") != public_run(run_id):
            return {}
        newer = {
            name: version
            for name, version in identity["versions"].items()
            if version > self._version
        }
        if newer:
            held = ", ".join(f"{name}@{version}" for name, version in newer.items())
            self.incidents.record(
                "versions_replaced",
                f"{self._prefix}the server holds {held} of this run, but the trainer continues "
                f"from version {self._version}: the steps in between were not saved and are "
                "repeated; the server is told to drop the newer versions",
                versions=newer,
            )
        return newer

    def _send(self) -> None:
        answer = self.client.push(self._version, self._adapters, self._digests)
        if answer["instance_id"] != self.instance_id:
            raise ServerError(
                f"{self.client.url}: the receipt is from instance {answer['instance_id']}."
            )

    def _reliably(self, call: Callable[[], _Answer], purpose: str) -> _Answer:
        """Make a call; if the server is gone, wait for a server and repeat the call.

        Args:
            call: The call.
            purpose: Its name in messages, e.g. "the games of version 7".

        Raises:
            VersionError: Another trainer has taken over the server.
            ServerError: The server refuses the call, or all tries failed.
        """
        num_tries = 0
        while True:
            if self._heartbeat is not None and self._heartbeat.lost:
                raise VersionError(
                    f"{self._heartbeat.lost} This trainer stops; its checkpoints are complete."
                )
            if self.settings.sleep:
                # torch caches freed memory, which the engine needs when it wakes up.
                torch.cuda.empty_cache()
            try:
                with remind_while_waiting(f"{purpose} from {self.client.url}"):
                    return call()
            except ServerError as error:
                is_gone = isinstance(error, ServerGoneError) or self._was_replaced()
                if not is_gone:
                    raise
                reason = error
            num_tries += 1
            if num_tries > MAX_TRIES:
                raise ServerError(
                    f"{purpose}: {num_tries} tries on several server processes failed; the last "
                    f"error: {reason}"
                )
            instance_before = self.instance_id
            self.incidents.record(
                "server_gone",
                f"{purpose}: {reason}",
                version=self._version,
                instance=instance_before,
            )
            if not self._wait_and_return(purpose):
                continue
            is_same_server = self.instance_id == instance_before
            if is_same_server and num_tries >= TRIES_ON_ONE_SERVER:
                raise reason
            time.sleep(min(num_tries, _LONGEST_PAUSE))

    def _wait_and_return(self, purpose: str) -> bool:
        """Wait for a healthy server and introduce the run; False if it was lost again."""
        health = wait_for_server(self.settings, logger.warning, server_command=_START_COMMAND)
        try:
            self._return_to(health["instance_id"], purpose)
        except ServerGoneError as error:
            logger.warning("the server is gone again (%s)", error)
            return False
        return True

    def _was_replaced(self) -> bool:
        try:
            return bool(self.client.identity()["instance_id"] != self.instance_id)
        except ServerGoneError:
            return True

    def _return_to(self, instance_id: str, purpose: str) -> None:
        """Introduce the run to the server process if it is new, and push the current adapters."""
        instance_before = self.instance_id
        if instance_id == instance_before:
            logger.warning(
                "%sthe same server (instance %s) is back; requesting %s again",
                self._prefix,
                instance_before,
                purpose,
            )
            return
        self._introduce()
        if self._adapters:
            self._send()
        self.incidents.record(
            "server_replaced",
            f"{self._prefix}instance {self.instance_id} replaced {instance_before}; version "
            f"{self._version} was pushed to it; requesting {purpose} again",
            version=self._version,
            instance=self.instance_id,
        )


def training_seed(settings: Settings, tasks: Sequence[TaskRow]) -> int:
    """Return the sampling seed for a step's games.

    It is the same for each server's share of a step's tasks. It differs between steps, and between
    rounds of further tasks (`datasets.further_task`).

    Args:
        settings: The run's settings.
        tasks: Tasks of one step and one round, at least one.
    """
    round_of_step, number = divmod(tasks[0].number, FURTHER_APART)
    if round_of_step == REPLACEMENT:
        # It stands in for a task of the first round, perhaps in this server's share alone.
        round_of_step = 0
    step = number // settings.tasks_per_step
    return request_seed(settings.seed, "training", step, round_of_step)


@contextmanager
def remind_while_waiting(purpose: str) -> Iterator[None]:
    """Log once a minute what the trainer is waiting for, until the block ends."""
    done = threading.Event()

    def remind() -> None:
        seconds = 0.0
        while not done.wait(_REMINDER_SECONDS):
            seconds += _REMINDER_SECONDS
            logger.info("still waiting for %s after %.0f s", purpose, seconds)

    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
