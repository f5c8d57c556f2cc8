"""Seats partners and teachers in a run's tasks, and uploads the guest adapters they need."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hanabi_grpo.errors import ServerError, ServerGoneError, SettingsError
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.runs.manifest import checkpoints_of
from hanabi_grpo.runs.saved_adapters import (
    BASES,
    SavedAdapters,
    check_same_base,
    facts_of_base,
    read_adapters,
)
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import (
    MAX_GUEST_ADAPTERS,
    Draw,
    Partner,
    choose_step,
    describe_pool,
    draw,
    read_pool,
    replaced_player,
)
from hanabi_grpo.settings.refs import NOT_HELD, CheckpointRef, Place, UrlRef, unknown_url
from hanabi_grpo.settings.teachers import (
    SeatTeacher,
    label_kinds,
    parse_teachers,
    seat_teachers,
)
from hanabi_grpo.tracking.used_checkpoints import read_used
from hanabi_grpo.training.matchmaking import PartnerRecord
from hanabi_grpo.types import player_name

logger = logging.getLogger(__name__)

UPLOAD_TRIES = 4
"""How often a request is tried if the server drops this run's guests to load another client's."""
Upload = Callable[..., str]
"""(version, safetensors bytes, PEFT configuration) -> the seat, "frozen_0123456789abcdef@50"; with
several base models also base=, the fingerprint of the adapter's base model."""
_Answer = TypeVar("_Answer")


class PartnerSeats:
    """The partners of one run: their checkpoints, their tasks, and the guests on the server."""

    def __init__(self, settings: Settings, run_folder: Path, upload: Upload) -> None:
        """Read HANABI_PARTNERS; `load` reads the checkpoints.

        Args:
            settings: The run's settings.
            run_folder: Where the run's own earlier versions are.
            upload: Uploads a guest adapter to the server.
        """
        self._settings = settings
        self._run_folder = run_folder
        self._upload = upload
        self.pool = read_pool(settings)
        self.names: dict[str, str] = {}
        """The name of each partner that was drawn in metrics, by its seat."""
        self.record = PartnerRecord()
        """Record of earlier games that the next draws use with HANABI_PARTNER_DRAW=worst."""
        self._checkpoints: dict[Place, SavedAdapters] = {}
        self._guests: dict[tuple[Place, str], str] = {}
        """Seats of the guests on the server by checkpoint and adapter, least recently used first.
        """
        self._loaded: dict[tuple[str, int], str] = {}
        """The partner that was loaded first, by guest and seat."""
        self._instance_id = ""
        self._has_several_bases = False
        self._damaged: set[Path] = set()

    def load(
        self, facts: Mapping[str, Any], instance_id: str, urls: Mapping[str, str] | None = None
    ) -> None:
        """Read every checkpoint of the pool and upload it once, so that problems show at the start.

        Args:
            facts: The server's base model, tokenizer and chat format.
            instance_id: Instance id of the server process.
            urls: Model of each URL that the server knows, e.g. {"url:big": "its model"}.

        Raises:
            SettingsError: The server does not know a URL; a checkpoint is missing or damaged, has
                no adapter for a seat, or was trained on another base model, tokenizer or chat
                format; or two checkpoints are the same with HANABI_PARTNER_DRAW=worst.
            ServerError: The server refuses an adapter.
        """
        self._instance_id = instance_id
        self._has_several_bases = bool(facts.get(BASES))
        self._load_teachers(facts)
        if not self.pool:
            return
        by_score = self._settings.partner_draw == "worst"
        share = self._settings.partner_share
        logger.info("%s", describe_pool(self.pool, share, by_score=by_score))
        for partner in self.pool:
            if isinstance(partner.ref, UrlRef):
                known = urls or {}
                if partner.spec not in known:
                    raise unknown_url(partner.ref, known, "HANABI_PARTNERS=")
                # The server defines the name, which may mean another model after a resume.
                logger.info("partner %s: %s", partner.spec, known[partner.spec])
            elif partner.place is not None:
                self._load_checkpoint(partner, partner.place, facts)
        name = replaced_player(self._settings)
        if name is not None:
            logger.warning(
                "%s is not trained: HANABI_PARTNER_SHARE=1 and every partner takes its seat",
                name,
            )

    def seat(
        self, tasks: Sequence[TaskRow], own: Sequence[str], version: int, instance_id: str
    ) -> list[dict[str, Any]]:
        """Return the request for each task, with "seats" if a partner plays.

        Guest adapters that the server process does not hold yet are uploaded.

        Args:
            tasks: A step's tasks.
            own: Per seat, the run's own adapter, e.g. "player_0@7".
            version: Version of those adapters.
            instance_id: Instance id of the server process.
        """
        if instance_id != self._instance_id:
            self._guests.clear()
            self._instance_id = instance_id
        pool = self._pool_at(version)
        return [self._request(task, own, version, pool) for task in tasks]

    def teachers(self, version: int) -> tuple[SeatTeacher | None, ...]:
        """Return the teacher of each seat; call it after `seat`. Adapters are uploaded as there.

        Args:
            version: Version of the run's own adapters.
        """
        return seat_teachers(self._settings, version, self._teacher_seat)

    def _teacher_seat(self, teacher: CheckpointRef, player: str) -> str:
        checkpoint = self._checkpoints[teacher.place]
        try:
            adapter = checkpoint.choose(player, teacher.adapter)
        except SettingsError as error:
            raise SettingsError(f"HANABI_TEACHER={teacher}: {error}") from error
        return self._guest(teacher.place, adapter, checkpoint)

    def _load_teachers(self, facts: Mapping[str, Any]) -> None:
        """Read the teachers' checkpoints and upload them."""
        kinds = label_kinds(self._settings)
        for player, teacher in parse_teachers(self._settings).items():
            logger.info("%s is taught by %s; labels: %s", player, teacher, kinds[player])
            if self._settings.entropy_bonus and not self._settings.reward_weight_of(player):
                logger.warning(
                    "HANABI_ENTROPY_BONUS=%g with HANABI_REWARD_WEIGHT=%s: %s learns only from its "
                    "teacher, and the bonus pulls it away from the teacher's policy; set "
                    "HANABI_ENTROPY_BONUS=0",
                    self._settings.entropy_bonus,
                    self._settings.reward_weight,
                    player,
                )
            if not isinstance(teacher, CheckpointRef):
                continue
            what = f"HANABI_TEACHER={teacher}"
            if teacher.place not in self._checkpoints:
                self._checkpoints[teacher.place] = _read(
                    what, teacher.place, self._run_folder, facts
                )
            try:
                self._teacher_seat(teacher, player)
            except ServerGoneError:
                raise
            except ServerError as error:
                raise ServerError(f"{what}: {error}") from error

    def reupload_dropped(self, ask: Callable[[], _Answer]) -> _Answer:
        """Make a request that uses `seat`; repeat it if the server has dropped a guest.

        The server drops guests to load those of another client.
        """
        if not self._checkpoints and not self.pool:
            return ask()
        return retry_dropped(ask, self._guests.clear)

    def _request(
        self, task: TaskRow, own: Sequence[str], version: int, pool: Sequence[Partner]
    ) -> dict[str, Any]:
        """Return the request for one task; `pool` has the partners of this version."""
        if not pool:
            return task.request()
        settings = self._settings
        chances = None
        if settings.partner_draw == "worst":
            chances = self.record.chances(pool, settings.players, settings.partner_power)
        drawn = draw(
            pool,
            task.number,
            share=settings.partner_share,
            seed=settings.seed,
            num_players=settings.players,
            chances=chances,
        )
        partner_seat = None
        if drawn is not None:
            partner_seat = self._seat_of(drawn, own[drawn.seat], version, task.number)
        if drawn is None or partner_seat is None:
            return task.request()
        self.names.setdefault(partner_seat, drawn.partner.name)
        seats = list(own)
        seats[drawn.seat] = partner_seat
        return task.request(seats)

    def _pool_at(self, version: int) -> Sequence[Partner]:
        """Return the partners that exist at a version: without "earlier" while there is none.

        "earlier" alone stays, and its tasks are self-play until the first checkpoint.
        """
        others = [partner for partner in self.pool if not partner.is_earlier]
        if not others or len(others) == len(self.pool) or self._earlier_steps(version):
            return self.pool
        return others

    def _earlier_steps(self, version: int) -> list[int]:
        """Return the steps of the checkpoints that may be partners of a version.

        Only regular checkpoints count: one that was saved on an interrupt must not change the draws
        of a resumed run.
        """
        steps = []
        for step, folder in checkpoints_of(self._run_folder).items():
            is_regular = step < version and step % self._settings.save_steps == 0
            if is_regular and folder not in self._damaged:
                steps.append(step)
        return steps

    def _seat_of(self, drawn: Draw, own: str, version: int, task: int) -> str | None:
        """Return a partner's seat in wire format; None if no earlier version is left.

        Args:
            drawn: The partner, and the seat that it takes.
            own: The run's own adapter in that seat, e.g. "player_0@7".
            version: Version of the run's adapters.
            task: Number of the task.
        """
        partner = drawn.partner
        if partner.is_earlier:
            # With HANABI_SWAP_EVERY, another player may hold the seat at this version.
            adapter, _, _ = own.partition("@")
            return self._earlier_version(adapter, version, task)
        if partner.place is None:
            return partner.spec
        checkpoint = self._checkpoints[partner.place]
        try:
            adapter = checkpoint.choose(player_name(drawn.seat), partner.adapter)
        except SettingsError as error:
            raise SettingsError(
                f"HANABI_PARTNERS={partner.spec}: {error} Or fix the seat (player_0= before it)."
            ) from error
        return self._guest(partner.place, adapter, checkpoint)

    def _earlier_version(self, adapter: str, version: int, task: int) -> str | None:
        """Return the seat of an earlier version of an adapter; None if there is no checkpoint."""
        checkpoints = checkpoints_of(self._run_folder)
        while True:
            steps = self._earlier_steps(version)
            if not steps:
                return None
            folder = checkpoints[choose_step(steps, task, seed=self._settings.seed)]
            checkpoint = None
            if (folder, adapter) not in self._guests:
                try:
                    # Read for each upload: the adapters of several versions are too large to keep
                    # in memory.
                    checkpoint = read_adapters(folder)
                except (OSError, SettingsError) as error:
                    logger.warning("%s cannot be a partner: %s", folder.name, error)
                    self._damaged.add(folder)
                    continue
            return self._guest(folder, adapter, checkpoint)

    def _guest(self, place: Place, adapter: str, checkpoint: SavedAdapters | None) -> str:
        """Return the seat of a guest; it is uploaded if the server does not hold it."""
        key = (place, adapter)
        if key not in self._guests and checkpoint is not None:
            weights, config = checkpoint.adapters[adapter]
            named_base = {}
            if self._has_several_bases:
                facts = facts_of_base(checkpoint.facts, adapter)
                named_base["base"] = facts.get("model_fingerprint")
            self._guests[key] = self._upload(checkpoint.step, weights, config, **named_base)
        # The server drops the least recently used adapter; this dict has the same order.
        seat = self._guests.pop(key)
        self._guests[key] = seat
        while len(self._guests) > MAX_GUEST_ADAPTERS:
            least_recently_used = next(iter(self._guests))
            del self._guests[least_recently_used]
        return seat

    def _load_checkpoint(self, partner: Partner, place: Place, facts: Mapping[str, Any]) -> None:
        """Read a partner's checkpoint and upload it for every seat that it may take."""
        if place not in self._checkpoints:
            what = f"HANABI_PARTNERS={partner.spec}"
            self._checkpoints[place] = _read(what, place, self._run_folder, facts)
        seats = [partner.seat] if partner.seat is not None else range(self._settings.players)
        try:
            for seat in seats:
                found = self._seat_of(Draw(partner=partner, seat=seat), own="", version=0, task=0)
                if found is not None:
                    self._refuse_twice(partner, found, seat)
        except ServerGoneError:
            raise
        except ServerError as error:
            raise ServerError(f"HANABI_PARTNERS={partner.spec}: {error}") from error

    def _refuse_twice(self, partner: Partner, guest: str, seat: int) -> None:
        """Refuse two partners that are the same adapter, where draws depend on their scores.

        Their games could be credited to only one of them, and the other would be drawn forever.
        """
        first = self._loaded.setdefault((guest, seat), partner.spec)
        if first != partner.spec and self._settings.partner_draw == "worst":
            raise SettingsError(
                f"HANABI_PARTNERS: {first} and {partner.spec} are the same adapter in seat {seat}; "
                f"with HANABI_PARTNER_DRAW=worst name it once, with a weight: {first}*2."
            )


def retry_dropped(ask: Callable[[], _Answer], forget: Callable[[], None] = lambda: None) -> _Answer:
    """Make a request; repeat it if the server has dropped an adapter to load another client's.

    Args:
        ask: Uploads the adapters that the server does not hold, and makes the request.
        forget: Makes the next call upload everything.
    """
    num_tries = 0
    while True:
        num_tries += 1
        try:
            return ask()
        except ServerError as error:
            if NOT_HELD not in str(error) or num_tries >= UPLOAD_TRIES:
                raise
            logger.info("uploading a guest adapter again: %s", error)
        forget()
        time.sleep(num_tries)


def _read(what: str, place: Place, run_folder: Path, facts: Mapping[str, Any]) -> SavedAdapters:
    try:
        folder, saved = read_used(place, run_folder)
        is_base_known = check_same_base(folder, saved, facts)
    except (OSError, SettingsError) as error:
        raise SettingsError(f"{what}: {error}") from error
    logger.info(
        "%s: %s at step %d, adapters %s%s",
        what,
        folder,
        saved.step,
        ", ".join(saved.adapters),
        "" if is_base_known else "; there is no record of the base model that it was trained on",
    )
    return saved
