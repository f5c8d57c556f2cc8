import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.client.lineups import SeatResolver, read_player_ref
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.runs.saved_adapters import newest_checkpoint
from hanabi_grpo.settings import Settings

CONFIG = {"peft_type": "LORA", "r": 8, "base_model_name_or_path": "/models/tiny"}


def seats_of(resolver: SeatResolver, *words: str) -> tuple[str, ...]:
    """Seat references as people type them."""
    return resolver.seats([read_player_ref(word, word) for word in words])


def seat_of(resolver: SeatResolver, word: str, player: int) -> str:
    return resolver.seat(read_player_ref(word, word), player)


class Desk:
    """A server's answers, and what it was lent."""

    def __init__(self, versions: Mapping[str, int] | None = None, **identity: str) -> None:
        self.lent: list[tuple[int, bytes]] = []
        self.looks = 0
        self._identity = {
            "model": "tiny",
            "model_fingerprint": "right",
            "tokenizer_hash": "right",
            "chat_hash": "right",
            "versions": dict(versions or {}),
            **identity,
        }

    def identity(self) -> dict[str, Any]:
        self.looks += 1
        return self._identity

    def lend(self, version: int, weights: bytes, config: Mapping[str, Any]) -> str:
        self.lent.append((version, weights))
        return f"frozen_{len(self.lent):016x}@{version}"


def checkpoint(run: Path, step: int, *players: str, **facts: object) -> Path:
    def fill(partial: Path) -> None:
        for player in players:
            (partial / player).mkdir()
            (partial / player / "adapter_config.json").write_text(json.dumps(CONFIG))
            (partial / player / "adapter_model.safetensors").write_bytes(f"{player}@{step}".encode())

    run.mkdir(exist_ok=True)
    known = {"model_fingerprint": "right", "tokenizer_hash": "right", "chat_hash": "right", **facts}
    return write_checkpoint(run, step, fill, known, needed_bytes=1000)


def test_served_is_the_adapter_of_the_seat_and_a_named_one_sits_anywhere() -> None:
    assert seats_of(SeatResolver(None, Settings()), "iggi", "base") == ("iggi", "base")
    desk = Desk({"player_0": 7, "player_1": 7})
    resolver = SeatResolver(desk, Settings())
    assert seats_of(resolver, "served", "served") == ("player_0@7", "player_1@7")
    assert seats_of(resolver, "player_1", "player_0@latest") == ("player_1@7", "player_0@7")
    assert seats_of(resolver, "player_0@7", "iggi") == ("player_0@7", "iggi")
    assert desk.looks == 1, "a version must not change between two seats"
    assert seats_of(SeatResolver(Desk({"shared": 3}), Settings()), "served", "served") == ("shared@3", "shared@3")


def test_what_the_server_does_not_hold_is_refused() -> None:
    for word, message in (
        ("served", "serves no adapter for player_0"),
        ("player_1@3", "keeps no other version"),
        ("shared", "held: pl"),
    ):
        with pytest.raises(ServerError, match=message):
            seat_of(SeatResolver(Desk({"player_1": 7}), Settings()), word, 0)


def test_a_checkpoint_sits_with_its_own_adapter_of_the_seat_and_is_lent_once(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "run", 50, "player_0", "player_1")
    desk = Desk()
    resolver = SeatResolver(desk, Settings())
    first, second = seats_of(resolver, str(folder), str(folder))
    assert desk.lent == [(50, b"player_0@50"), (50, b"player_1@50")]
    assert seats_of(resolver, f"{folder}:player_1", f"{folder}:player_0") == (second, first)
    assert len(desk.lent) == 2
    resolver.lend_again()
    seat_of(resolver, str(folder), 0)
    assert len(desk.lent) == 3


def test_a_run_stands_for_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    old = checkpoint(run, 9, "shared")
    torn = checkpoint(run, 10, "shared")
    (torn / "shared" / "adapter_model.safetensors").write_bytes(b"torn")
    assert newest_checkpoint(run) == old
    assert newest_checkpoint(torn) == torn, "one that was named is taken at its word, and its hashes are checked then"
    with pytest.raises(SettingsError, match="sha256"):
        seat_of(SeatResolver(Desk(), Settings()), str(torn), 0)


def test_a_run_stays_what_it_was_at_the_first_look(tmp_path: Path) -> None:
    run = tmp_path / "run"
    checkpoint(run, 9, "shared")
    desk = Desk()
    resolver = SeatResolver(desk, Settings())
    first = seat_of(resolver, str(run), 0)
    checkpoint(run, 10, "shared")
    assert seat_of(resolver, str(run), 1) == first
    resolver.lend_again()
    seat_of(resolver, str(run), 0)
    assert [version for version, _ in desk.lent] == [9, 9], "a training that goes on must not change who plays"


def test_an_adapter_that_a_checkpoint_lacks_is_refused_with_those_it_has(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "run", 50, "player_0", "player_1")
    with pytest.raises(SettingsError, match=r"no adapter player_2 in it; it has player_0, player_1\. .*:player_0"):
        seat_of(SeatResolver(Desk(), Settings()), str(folder), 2)
    with pytest.raises(SettingsError, match="no adapter shared"):
        seat_of(SeatResolver(Desk(), Settings()), f"{folder}:shared", 0)


def test_a_checkpoint_of_another_base_model_is_not_lent(tmp_path: Path) -> None:
    for what in ("model_fingerprint", "tokenizer_hash", "chat_hash"):
        folder, desk = checkpoint(tmp_path / what, 50, "shared", **{what: "other"}), Desk()
        with pytest.raises(SettingsError, match=r"another .*: other, the server has right"):
            seat_of(SeatResolver(desk, Settings()), str(folder), 0)
        assert desk.lent == []


def test_a_checkpoint_that_says_nothing_is_compared_by_the_settings_model(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5" / "player_0"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG))
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"base")
    with pytest.raises(SettingsError, match="another base model"):
        seat_of(SeatResolver(Desk(), Settings(model=str(model))), str(folder.parent), 0)


def test_without_a_server_models_are_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "run", 50, "shared")
    for word in ("served", "player_0", str(folder)):
        with pytest.raises(SettingsError, match="needs a rollout server"):
            seat_of(SeatResolver(None, Settings()), word, 0)
