"""Seats partners at a run's tasks, and lends the server the frozen adapters that this takes."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hanabi_grpo.errors import ServerError, ServerGoneError, SettingsError
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.runs.manifest import checkpoints_of
from hanabi_grpo.runs.saved_adapters import SavedAdapters, check_same_base, read_adapters
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import (
    MAX_GUEST_ADAPTERS,
    Draw,
    Partner,
    always_partner,
    choose_step,
    describe_pool,
    draw,
    read_pool,
)
from hanabi_grpo.settings.refs import NOT_HELD, Place, UrlRef, unknown_url
from hanabi_grpo.tracking.used_checkpoints import read_used
from hanabi_grpo.types import SHARED_ADAPTER, player_name

logger = logging.getLogger(__name__)

TRIES = 4
Lend = Callable[[int, bytes, Mapping[str, Any]], str]
"""(version, safetensors bytes, PEFT configuration) -> the word of the seat, e.g.
"frozen_0123456789abcdef@50".
"""
_Answer = TypeVar("_Answer")


class PartnerSeats:
    """The pool of one run: its checkpoints, its draws, and what one server process was lent."""

    def __init__(self, settings: Settings, run_folder: Path, lend: Lend) -> None:
        """Read HANABI_PARTNERS; `load` reads the checkpoints."""
        self._settings, self._run_folder, self._lend = settings, run_folder, lend
        self.pool = read_pool(settings)
        self.names: dict[str, str] = {}
        """In metrics, by the word of the seat, for every word that was drawn."""
        self._saved: dict[Place, SavedAdapters] = {}
        self._lent: dict[tuple[Place, str], str] = {}
        self._instance_id = ""
        self._damaged: set[Path] = set()

    def load(
        self, facts: Mapping[str, Any], instance_id: str, urls: Mapping[str, str] | None = None
    ) -> None:
        """Read every checkpoint that the pool names and lend it once, so that one that does not fit
        stops the start.

        Raises: SettingsError: A URL that the server does not know (it knows `urls`), or a
            checkpoint that is missing or damaged, has no adapter for a seat, or was trained on
            another base model, tokenizer or chat format than the server's (`facts`). ServerError:
            The server refuses an adapter.
        """
        if not self.pool:
            return
        self._instance_id = instance_id
        logger.info("%s", describe_pool(self.pool, self._settings.partner_share))
        for partner in self.pool:
            if isinstance(partner.ref, UrlRef):
                if partner.spec not in (known := urls or {}):
                    raise unknown_url(partner.ref, known, "HANABI_PARTNERS=")
                # The name is the server's, and may mean another model after a resume.
                logger.info("partner %s: %s", partner.spec, known[partner.spec])
            if partner.place is None:
                continue
            if partner.place not in self._saved:
                self._saved[partner.place] = _read(partner, partner.place, self._run_folder, facts)
            try:
                for seat in (
                    range(self._settings.players) if partner.seat is None else (partner.seat,)
                ):
                    self._word(Draw(partner=partner, seat=seat), 0, 0)
            except ServerGoneError:
                raise
            except ServerError as error:
                raise ServerError(f"HANABI_PARTNERS={partner.spec}: {error}") from error
        name = always_partner(self.pool, self._settings.partner_share)
        if name is not None and self._settings.adapters != SHARED_ADAPTER:
            logger.warning(
                "%s: HANABI_PARTNER_SHARE=1 and every partner takes its seat; it does not move",
                name,
            )

    def seat(
        self, tasks: Sequence[TaskRow], own: Sequence[str], version: int, instance_id: str
    ) -> list[dict[str, Any]]:
        """Return what is asked for each task, with "seats" where a partner plays.

        The server process is lent what it was not lent yet.
        """
        if instance_id != self._instance_id:
            self._lent.clear()
            self._instance_id = instance_id
        settings = self._settings
        requests = []
        for task in tasks:
            request = task.request()
            requests.append(request)
            if not self.pool:
                continue
            found = draw(
                self.pool,
                task.number,
                share=settings.partner_share,
                seed=settings.seed,
                num_players=settings.players,
            )
            if found is not None and (word := self._word(found, version, task.number)) is not None:
                self.names.setdefault(word, found.partner.name)
                request["seats"] = [
                    word if seat == found.seat else name for seat, name in enumerate(own)
                ]
        return requests

    def lend_again(self, ask: Callable[[], _Answer]) -> _Answer:
        """Make a request that `seat` prepares; anew where the server dropped an adapter for another
        client's.
        """
        tries = 1
        while True:
            try:
                return ask()
            except ServerError as error:
                if NOT_HELD not in str(error) or not self.pool or tries >= TRIES:
                    raise
                logger.info("a partner is uploaded again: %s", error)
            self._lent.clear()
            time.sleep(tries)
            tries += 1

    def _word(self, found: Draw, version: int, task: int) -> str | None:
        partner = found.partner
        if partner.is_earlier:
            return self._earlier_word(found.seat, version, task)
        if partner.place is None:
            return partner.spec
        saved = self._saved[partner.place]
        try:
            adapter = saved.choose(player_name(found.seat), partner.adapter)
        except SettingsError as error:
            raise SettingsError(
                f"HANABI_PARTNERS={partner.spec}: {error} Or fix the seat (player_0= before it)."
            ) from error
        return self._lent_word(partner.place, adapter, saved)

    def _earlier_word(self, seat: int, version: int, task: int) -> str | None:
        adapter = SHARED_ADAPTER if self._settings.adapters == SHARED_ADAPTER else player_name(seat)
        there = checkpoints_of(self._run_folder)
        # Only the regular ones: what an interrupt saved besides must not change what a resumed run
        # draws.
        regular = [
            step for step in there if step < version and step % self._settings.save_steps == 0
        ]
        while steps := [step for step in regular if there[step] not in self._damaged]:
            folder = there[choose_step(steps, task, seed=self._settings.seed)]
            saved = None
            if (folder, adapter) not in self._lent:
                try:
                    # Read for each lending: adapters of several versions are too large to be kept
                    # in memory.
                    saved = read_adapters(folder)
                except (OSError, SettingsError) as error:
                    logger.warning("%s cannot be a partner: %s", folder.name, error)
                    self._damaged.add(folder)
                    continue
            return self._lent_word(folder, adapter, saved)
        return None

    def _lent_word(self, place: Place, adapter: str, saved: SavedAdapters | None) -> str:
        key = (place, adapter)
        if saved is not None and key not in self._lent:
            self._lent[key] = self._lend(saved.step, *saved.adapters[adapter])
        # The server drops the adapter that was not used for longest; this list is in the same
        # order.
        word = self._lent[key] = self._lent.pop(key)
        while len(self._lent) > MAX_GUEST_ADAPTERS:
            del self._lent[next(iter(self._lent))]
        return word


def _read(
    partner: Partner, place: Place, run_folder: Path, facts: Mapping[str, Any]
) -> SavedAdapters:
    try:
        folder, saved = read_used(place, run_folder)
        is_said = check_same_base(folder, saved, facts)
    except (OSError, SettingsError) as error:
        raise SettingsError(f"HANABI_PARTNERS={partner.spec}: {error}") from error
    logger.info(
        "partner %s: %s at step %d, adapters %s%s",
        partner.spec,
        folder,
        saved.step,
        ", ".join(saved.adapters),
        "" if is_said else "; nothing says on which base model it was trained",
    )
    return saved
