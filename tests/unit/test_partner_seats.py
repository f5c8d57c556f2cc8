"""Partners through the trainer's link: checkpoints are read and lent, tasks are seated, games come
back.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fake_engine import task_row
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.runs.adapter_config import frozen_name
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.server.frozen_adapters import MAX_FROZEN
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import choose_step, draw, own_seats, parse_pool
from hanabi_grpo.settings.refs import is_frozen
from hanabi_grpo.training.link import ServerLink
from hanabi_grpo.training.matchmaking import PartnerRecord
from hanabi_grpo.training.partner_seats import PartnerSeats
from server_app import (
    PEFT_CONFIG,
    PLAYERS,
    RunningApp,
    adapter_bytes,
    open_session,
    push_to,
    running_app,
)

OWN = own_seats(2, PLAYERS, 7)
DATASET = Path(__file__).parents[2] / "data/hanabi.laptop.jsonl"
TASKS = [task_row(number) for number in range(32)]


class Lender:
    """Takes what the client would send, and names it as a server does."""

    def __init__(self) -> None:
        self.given: list[tuple[int, bytes]] = []

    def __call__(self, version: int, weights: bytes, config: Mapping[str, Any]) -> str:
        self.given.append((version, weights))
        return word(version, weights, config)


def word(version: int, weights: bytes, config: Mapping[str, Any] = PEFT_CONFIG) -> str:
    return f"{frozen_name(hashlib.sha256(weights).hexdigest(), config)}@{version}"


def weights_of(step: int, name: str) -> bytes:
    return adapter_bytes(step + int(hashlib.sha256(name.encode()).hexdigest()[:2], 16) / 512)


def save(run: Path, step: int, *names: str, rank: int = 8, **facts: Any) -> Path:
    """Write a checkpoint as a trainer does."""
    run.mkdir(parents=True, exist_ok=True)

    def fill(folder: Path) -> None:
        for name in names or PLAYERS:
            (folder / name).mkdir()
            (folder / name / "adapter_config.json").write_text(
                json.dumps({**PEFT_CONFIG, "r": rank})
            )
            (folder / name / "adapter_model.safetensors").write_bytes(weights_of(step, name))

    return write_checkpoint(run, step, fill, facts, needed_bytes=0)


def make(tmp_path: Path, *entries: str, lender: Lender | None = None, **other: Any) -> PartnerSeats:
    given = {
        "partners": entries,
        "partner_share": 1.0,
        "save_steps": 10,
        "output_dir": tmp_path / "run",
    }
    return PartnerSeats(Settings(**{**given, **other}), tmp_path / "run", lender or Lender())


def seated(
    partners: PartnerSeats, version: int = 7, instance: str = "here", own: tuple[str, ...] = OWN
) -> list[list[str] | None]:
    return [one.get("seats") for one in partners.seat(TASKS, own, version, instance)]


def test_a_checkpoint_s_adapter_of_the_seat_is_lent_once(tmp_path: Path) -> None:
    folder = save(tmp_path / "other", 50)
    lender = Lender()
    partners = make(tmp_path, str(folder), lender=lender)
    partners.load({}, "here")
    words = [word(50, weights_of(50, name)) for name in PLAYERS]
    assert lender.given == [(50, weights_of(50, name)) for name in PLAYERS]
    expected = ([words[0], OWN[1]], [OWN[0], words[1]])
    assert all(seats in expected for seats in seated(partners))
    assert len(lender.given) == 2
    assert partners.names == dict.fromkeys(words, "checkpoint-50")
    # Another server process knows nothing of it, and a run that cleans up meanwhile takes nothing
    # away.
    shutil.rmtree(folder)
    seated(partners, instance="there")
    assert len(lender.given) == 4


def test_worst_partners_come_up_more_often_by_the_record_that_the_trainer_gives(
    tmp_path: Path,
) -> None:
    partners = make(tmp_path, "iggi", "piers", partner_draw="worst", partner_power=1.0)
    partners.load({}, "here")

    def share_of_iggi() -> float:
        plays = [seats for seats in seated(partners) if seats is not None]
        return sum("iggi" in seats for seats in plays) / len(plays)

    assert 0.2 < share_of_iggi() < 0.8
    bad = {f"iggi {player}": [(0, 0.0)] for player in PLAYERS}
    good = {f"piers {player}": [(0, 1.0)] for player in PLAYERS}
    partners.record = PartnerRecord(recent={**bad, **good})
    assert share_of_iggi() == 1.0
    # Drawn again for the same step, as after a server's restart, they are the same.
    assert seated(partners) == seated(partners, instance="there")


FACTS = {"model_fingerprint": "a", "tokenizer_hash": "b", "chat_hash": "c"}


def test_a_partner_that_cannot_be_seated_stops_the_start(tmp_path: Path) -> None:
    def refusal(entry: str, **other: Any) -> str:
        with pytest.raises(SettingsError) as caught:
            make(tmp_path, entry, **other).load(FACTS, "here")
        assert str(caught.value).startswith("HANABI_PARTNERS=")
        return str(caught.value)

    run = tmp_path / "other"
    assert "no such folder" in refusal(f"{run}/checkpoint-50")
    folder = save(run, 50, **FACTS)
    make(tmp_path, str(folder)).load(FACTS, "here")
    make(tmp_path, str(folder)).load({}, "here")
    assert "no adapter player_2 in it; it has player_0, player_1" in refusal(str(folder), players=3)
    assert "no adapter shared in it" in refusal(f"{folder}:shared")
    make(tmp_path, f"player_2={folder}:player_0", players=3).load(FACTS, "here")
    other = save(run, 51, **{**FACTS, "model_fingerprint": "x"})
    assert "another base model: x, the server has a" in refusal(str(other))


def test_earlier_versions_are_the_regular_checkpoints_before_the_one_that_plays(
    tmp_path: Path,
) -> None:
    lender = Lender()
    partners = make(tmp_path, "player_0=earlier", lender=lender)
    partners.load({}, "here")
    assert seated(partners, version=0) == [None] * len(TASKS)
    # An interrupt's checkpoint, this version's own and one that a resumed run has yet to make again
    # are no partners.
    for step in (10, 17, 20, 30, 40):
        save(tmp_path / "run", step)
    own = own_seats(2, PLAYERS, 30)
    words = {step: word(step, weights_of(step, "player_0")) for step in (10, 20)}
    expected = [
        [words[choose_step((10, 20), number, seed=42)], own[1]] for number in range(len(TASKS))
    ]
    assert seated(partners, version=30, own=own) == expected
    assert {version for version, _ in lender.given} == {10, 20} and len(lender.given) == 2
    assert partners.names == dict.fromkeys(words.values(), "earlier")
    assert seated(make(tmp_path, "player_0=earlier"), version=30, own=own) == expected
    assert seated(partners, version=10) == [None] * len(TASKS)


def test_an_earlier_version_is_that_of_the_player_who_holds_the_seat(tmp_path: Path) -> None:
    partners = make(tmp_path, "player_0=earlier", swap_every=5)
    save(tmp_path / "run", 10)
    swapped = ("player_1@15", "player_0@15")
    [seats] = {tuple(seats or ()) for seats in seated(partners, version=15, own=swapped)}
    assert seats == (word(10, weights_of(10, "player_1")), "player_0@15")


def test_one_adapter_under_two_names_is_refused_where_scores_decide_the_draw(
    tmp_path: Path,
) -> None:
    first = save(tmp_path / "other", 50)
    second = save(tmp_path / "copy", 50)
    make(tmp_path, str(first), str(second)).load({}, "here")
    partners = make(tmp_path, str(first), str(second), partner_draw="worst")
    with pytest.raises(SettingsError, match=r"other/checkpoint-50 and .*copy/.* are the same adap"):
        partners.load({}, "here")


def test_tasks_with_partners_have_some_before_there_is_an_earlier_version(tmp_path: Path) -> None:
    for way in ("uniform", "worst"):
        partners = make(tmp_path, "iggi", "earlier", partner_draw=way)
        assert all(seats is not None and "iggi" in seats for seats in seated(partners))
    # Nobody else could play: it is self-play until the first checkpoint.
    assert not any(seated(make(tmp_path, "earlier")))
    save(tmp_path / "run", 10)
    both = make(tmp_path, "iggi", "earlier")
    taken = [set(seats or ()) & {"iggi"} for seats in seated(both, version=17)]
    assert any(taken)
    assert not all(taken)


def test_a_damaged_earlier_version_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lender = Lender()
    partners = make(tmp_path, "player_0=earlier", lender=lender)
    for step in (10, 20):
        save(tmp_path / "run", step)
    (tmp_path / "run/checkpoint-20/manifest.json").write_text("{")
    assert seated(partners, version=30) == [[word(10, weights_of(10, "player_0")), OWN[1]]] * len(
        TASKS
    )
    assert caplog.text.count("checkpoint-20 cannot be a partner") == 1
    shutil.rmtree(tmp_path / "run/checkpoint-10")
    assert seated(partners, version=30) == [None] * len(TASKS)


@pytest.fixture
def app() -> Iterator[RunningApp]:
    with running_app() as running:
        yield running


def linked(app: RunningApp, folder: Path, *entries: str, **other: Any) -> ServerLink:
    """A trainer's link with a session on the server, whose players are served at version 7."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {"partners": entries, "partner_share": 0.5, "save_steps": 5, "num_generations": 2}
    link = ServerLink(Settings(**{**given, "vllm_server_port": app.port, **other}), folder)
    link.instance_id = app.identity.instance_id
    push_to(link.client, app, version=7)
    link.partners.load({}, link.instance_id)
    return link


def test_a_script_that_cannot_play_a_game_of_the_dataset_stops_the_start(tmp_path: Path) -> None:
    settings = Settings(partners=("iggi", "hat-bot"), dataset=str(DATASET), preset="laptop")
    link = ServerLink(settings, tmp_path)
    with pytest.raises(SettingsError, match=r"HANABI_PARTNERS=iggi,hat-bot: hat-bot on laptop wi"):
        link.connect(0)


def test_games_with_partners_come_back_from_a_server_as_they_were_seated(
    app: RunningApp, tmp_path: Path
) -> None:
    folder = save(tmp_path / "other", 50)
    save(tmp_path / "run", 5)
    entries = ("iggi", "earlier", str(folder))
    link = linked(app, tmp_path / "run", *entries)
    groups = link.play(TASKS, PLAYERS, 7).groups
    words = {
        "iggi": ["iggi", "iggi"],
        "earlier": [word(5, weights_of(5, name)) for name in PLAYERS],
        str(folder): [word(50, weights_of(50, name)) for name in PLAYERS],
    }
    for one, group in zip(TASKS, groups, strict=True):
        seats = list(OWN)
        if drawn := draw(parse_pool(entries, 2), one.number, share=0.5, seed=42, num_players=2):
            seats[drawn.seat] = words[drawn.partner.spec][drawn.seat]
        assert group[0].seats == tuple(seats)
    turns = [
        (episode.seats[turn.player], turn)
        for group in groups
        for episode in group
        for turn in episode.turns
    ]
    assert {turn.version for seat, turn in turns if is_frozen(seat)} == {5, 50}
    assert all(turn.reply_ids and turn.logprobs for seat, turn in turns if is_frozen(seat))
    assert all(turn.version == 7 for seat, turn in turns if seat in OWN)
    assert all(
        turn.version is None and not turn.reply_ids for seat, turn in turns if seat == "iggi"
    )
    assert sum(group[0].seats == OWN for group in groups) == 16
    link.client.close()


def test_an_adapter_that_the_server_dropped_meanwhile_is_lent_again(
    app: RunningApp, tmp_path: Path
) -> None:
    link = linked(app, tmp_path / "run", str(save(tmp_path / "other", 50)))
    seats = [group[0].seats for group in link.play(TASKS, PLAYERS, 7).groups]
    for number in range(MAX_FROZEN):
        link.client.upload_guest(1, adapter_bytes(1.0 + number / 64), PEFT_CONFIG)
    assert word(50, weights_of(50, "player_0")) not in app.store.frozen.names()
    assert [group[0].seats for group in link.play(TASKS, PLAYERS, 7).groups] == seats
    link.client.close()


def test_an_adapter_that_the_server_refuses_is_told_with_its_partner(
    app: RunningApp, tmp_path: Path
) -> None:
    folder = save(tmp_path / "other", 50, rank=4)
    with pytest.raises(ServerError, match=rf"HANABI_PARTNERS={folder}: .*the server answered 4"):
        linked(app, tmp_path / "run", str(folder))


def connectable(
    app: RunningApp, folder: Path, monkeypatch: pytest.MonkeyPatch, *entries: str
) -> ServerLink:
    """A link that has not connected yet; it claims to have the server's own model instead of
    hashing a folder.
    """
    folder.mkdir(exist_ok=True)
    settings = Settings(
        vllm_server_port=app.port, partners=entries, dataset=str(DATASET), preset="laptop"
    )
    link = ServerLink(settings, folder)

    def introduce(_: Settings, **claims: Any) -> dict[str, Any]:
        return open_session(link.client, app, run_id=claims["run_id"], secret=claims["secret"])

    monkeypatch.setattr(link.client, "introduce", introduce)
    return link


def test_a_partner_that_does_not_fit_leaves_the_server_free_for_the_next_trainer(
    app: RunningApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "other", 50, model_fingerprint="another")
    link = connectable(app, tmp_path / "run", monkeypatch, str(folder))
    with pytest.raises(
        SettingsError, match=r"was trained with another base model: another, the server has ffff"
    ):
        link.connect(0)
    assert link.client.session_timeout is None
    assert app.store.frozen.names() == []
    # The next one gets in at once.
    connectable(app, tmp_path / "next", monkeypatch).connect(0)
