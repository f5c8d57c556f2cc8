"""Lineups as people type them, resolved against a server; models of a server in games here."""

import asyncio
import functools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fake_engine import LAPTOP
from hanabi_grpo.agents.remote_server import RemotePlayer
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.client.lineups import SeatResolver, parse_lineup
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Observation, Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.prompts import system_prompt
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.rollout.messages import EarlierTurn, ReplyRequest
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.runs.saved_adapters import newest_checkpoint
from hanabi_grpo.runs.validation import FILE, Validated, write_validations
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import AdapterRef, Role, ScriptRef
from hanabi_grpo.types import Episode, EpisodeStatus, Reply
from server_app import PEFT_CONFIG, PLAYERS, RunningApp, adapter_bytes, push_to, running_app

CONFIG = {"peft_type": "LORA", "r": 8, "base_model_name_or_path": "/models/tiny"}


def test_one_spec_fills_every_seat_and_a_list_is_rotated_through_its_seat_orders() -> None:
    iggi = ScriptRef(name="iggi")
    served = Role.SERVED
    assert parse_lineup("served", 3).refs == (served,) * 3
    assert parse_lineup("served", 3).orders() == [(served,) * 3]
    assert parse_lineup("iggi, served", 2).orders() == [(iggi, served), (served, iggi)]
    assert len(parse_lineup("iggi,iggi,served", 3).orders()) == 3
    assert len(parse_lineup("iggi,served,iggi,served", 4).orders()) == 2
    assert parse_lineup("iggi,served", 2).orders(rotate=False) == [(iggi, served)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("igi", "Did you mean 'iggi'"),
        ("iggi,iggi,iggi", "3 policy specs for 2 players"),
        ("iggi,", "'' is unknown"),
        ("human,iggi", "hanabi-grpo play"),
        ("outputs/no-such-run", "no such folder"),
    ],
)
def test_other_lineups_are_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_lineup(text, 2)


def seats_of(
    server: "FakeServer | SeatResolver | None", *specs: str, model: str = ""
) -> tuple[str, ...]:
    """The seats of a lineup on a server."""
    if isinstance(server, SeatResolver):
        resolver = server
    else:
        client: Any = server
        resolver = SeatResolver(client, Settings(model=model) if model else Settings())
    return resolver.seats(parse_lineup(",".join(specs), len(specs)).refs)


class FakeServer:
    """A server's answers, and the guest adapters that were uploaded."""

    def __init__(self, versions: Mapping[str, int] | None = None) -> None:
        self.uploads: list[tuple[int, bytes]] = []
        self.looks = 0
        facts = dict.fromkeys(("model_fingerprint", "tokenizer_hash", "chat_hash"), "right")
        self._identity = {"model": "tiny", **facts, "versions": dict(versions or {})}

    def identity(self) -> dict[str, Any]:
        self.looks += 1
        return self._identity

    def upload_guest(self, version: int, weights: bytes, config: Mapping[str, Any]) -> str:
        self.uploads.append((version, weights))
        return f"frozen_{len(self.uploads):016x}@{version}"


def resolver_of(server: Any) -> SeatResolver:
    return SeatResolver(server, Settings())


def validations(scores: Sequence[float]) -> list[Validated]:
    """Validations every ten steps, from the start on."""
    rows = []
    for number, score in enumerate(scores):
        rows.append(Validated(step=10 * number, score=score, se=0.1))
    return rows


def checkpoint(run: Path, step: int, *players: str, **facts: object) -> Path:
    def fill(partial: Path) -> None:
        for player in players:
            (partial / player).mkdir()
            (partial / player / "adapter_config.json").write_text(json.dumps(CONFIG))
            (partial / player / "adapter_model.safetensors").write_bytes(
                f"{player}@{step}".encode()
            )

    run.mkdir(exist_ok=True)
    known = {"model_fingerprint": "right", "tokenizer_hash": "right", "chat_hash": "right", **facts}
    return write_checkpoint(run, step, fill, known, needed_bytes=1000)


def test_served_is_the_adapter_of_the_seat_and_a_named_one_sits_anywhere() -> None:
    assert seats_of(None, "iggi", "base") == ("iggi", "base")
    server = FakeServer({"player_0": 7, "player_1": 7})
    resolver = resolver_of(server)
    assert seats_of(resolver, "served", "served") == ("player_0@7", "player_1@7")
    assert seats_of(resolver, "player_1", "player_0@latest") == ("player_1@7", "player_0@7")
    assert seats_of(resolver, "player_0@7", "iggi") == ("player_0@7", "iggi")
    assert server.looks == 1, "a version must not change between two seats"
    assert seats_of(FakeServer({"shared": 3}), "served", "served") == ("shared@3", "shared@3")


def test_players_who_learned_by_other_messages_are_warned_about_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = checkpoint(tmp_path / "run", 50, "player_0")
    recorded = {
        "HANABI_ENV": "hanabi",
        "HANABI_PRESET": "laptop",
        "HANABI_DEDUCTIONS": "counted",
        "HANABI_REWARD_SCORE": 2,
    }
    (tmp_path / "run/settings.json").write_text(json.dumps({"settings": recorded}))
    refs = parse_lineup(f"{folder},iggi", 2).refs
    other_preset = {"preset": "marshal-mini"}
    as_learned = {"preset": "laptop", "players": 2, "deductions": "counted"}
    otherwise = {"preset": "laptop"}
    for configs in ([other_preset], [as_learned], [otherwise, otherwise]):
        resolver = resolver_of(FakeServer())
        resolver.seats(refs)
        for config in configs:
            resolver.compare_messages(refs, Setup(HANABI, EnvConfig.model_validate(config)))
    # Other tests may have lowered the level of the package's logger.
    [warning] = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    learned = "HANABI_DEDUCTIONS=counted"
    assert warning.endswith(
        f"trained with {learned}; here: possible. To play as in training: export {learned}"
    )


def test_what_the_server_does_not_hold_is_refused() -> None:
    for spec, message in (
        ("served", "serves no adapter for player_0"),
        ("player_1@3", "keeps no other version"),
        ("shared", "available: pl"),
    ):
        with pytest.raises(ServerError, match=message):
            seats_of(FakeServer({"player_1": 7}), spec)


def test_a_checkpoint_sits_with_its_own_adapter_of_the_seat_and_is_uploaded_once(
    tmp_path: Path,
) -> None:
    folder = str(checkpoint(tmp_path / "run", 50, "player_0", "player_1"))
    server = FakeServer()
    resolver = resolver_of(server)
    first, second = seats_of(resolver, folder, folder)
    assert server.uploads == [(50, b"player_0@50"), (50, b"player_1@50")]
    assert seats_of(resolver, f"{folder}:player_1", f"{folder}:player_0") == (second, first)
    assert len(server.uploads) == 2
    resolver.forget_guests()
    seats_of(resolver, folder)
    assert len(server.uploads) == 3


def test_a_run_stands_for_its_newest_whole_checkpoint_at_the_first_look(tmp_path: Path) -> None:
    run = tmp_path / "run"
    old = checkpoint(run, 9, "shared")
    torn = checkpoint(run, 10, "shared")
    (torn / "shared" / "adapter_model.safetensors").write_bytes(b"torn")
    assert newest_checkpoint(run) == old
    assert newest_checkpoint(torn) == torn, (
        "one that was named is taken at its word, and its hashes are checked then"
    )
    with pytest.raises(SettingsError, match="sha256"):
        seats_of(FakeServer(), str(torn))
    server = FakeServer()
    resolver = resolver_of(server)
    first = seats_of(resolver, str(run))
    checkpoint(run, 11, "shared")
    assert seats_of(resolver, str(run)) == first
    resolver.forget_guests()
    seats_of(resolver, str(run))
    assert [version for version, _ in server.uploads] == [9, 9], (
        "a training that goes on must not change who plays"
    )


def test_the_best_of_a_run_is_the_checkpoint_that_validation_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    run = Path("demo/train")
    for step in (10, 20, 30):
        checkpoint(run, step, "player_0", "player_1")

    def validate(*scores: float) -> None:
        write_validations(run, validations(scores))

    validate(1.0, 2.0, 3.0, 3.0)
    lineup = parse_lineup("demo@best,./demo/train@best:player_1", 2)
    server = FakeServer()
    assert lineup.specs == ("demo/train/checkpoint-20", "demo/train/checkpoint-20:player_1")
    assert lineup.label == "demo@best,demo/train@best:player_1"
    resolver_of(server).seats(lineup.refs)
    assert server.uploads == [(20, b"player_0@20"), (20, b"player_1@20")]
    Path("demo@best").mkdir()
    assert parse_lineup("demo@best", 2).specs == ("./demo@best",) * 2, (
        "a folder of that name is itself"
    )


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (
            None,
            r"run@best: validation chooses the best version, but this run had none "
            r"\(HANABI_EVAL_STEPS\)",
        ),
        (
            (3.0, 1.0),
            r"the best version \(3.000 ± 0.100 at step 0\) is the start of training, not a "
            r"checkpoint",
        ),
        (
            (1.0, 2.0, 3.0),
            r"best version \(3.000 ± 0.100 at step 20\) is missing. Name .*run for its newest "
            r"checkpoint",
        ),
    ],
)
def test_a_run_that_has_no_best_checkpoint_says_why(
    tmp_path: Path, scores: tuple[float, ...] | None, message: str
) -> None:
    checkpoint(tmp_path / "run", 10, "player_0", "player_1")
    if scores is not None:
        write_validations(tmp_path / "run", validations(scores))
    with pytest.raises(SettingsError, match=message):
        parse_lineup(f"{tmp_path}/run@best", 2)


def test_the_best_of_no_run_and_of_a_damaged_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such folder; give a run"):
        parse_lineup(f"{tmp_path}/none@best", 2)
    (tmp_path / FILE).write_text('[{"step": 1')
    with pytest.raises(SettingsError, match=f"{FILE}: not written by a run"):
        parse_lineup(f"{tmp_path}@best", 2)


def test_an_adapter_that_a_checkpoint_lacks_is_refused_with_those_it_has(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "run", 50, "player_0", "player_1")
    with pytest.raises(
        SettingsError, match=r"no adapter player_2 in it; it has player_0, player_1\. .*:player_0"
    ):
        seats_of(FakeServer(), "iggi", "iggi", str(folder))
    with pytest.raises(SettingsError, match="no adapter shared"):
        seats_of(FakeServer(), f"{folder}:shared")


def test_a_checkpoint_of_another_base_model_is_not_uploaded(tmp_path: Path) -> None:
    for what in ("model_fingerprint", "tokenizer_hash", "chat_hash"):
        folder = checkpoint(tmp_path / what, 50, "shared", **{what: "other"})
        server = FakeServer()
        with pytest.raises(SettingsError, match=r"another .*: other, the server has right"):
            seats_of(server, str(folder))
        assert server.uploads == []
    # One that says nothing is compared by MODEL.
    silent = tmp_path / "checkpoint-5" / "player_0"
    silent.mkdir(parents=True)
    (silent / "adapter_config.json").write_text(json.dumps(CONFIG))
    (silent / "adapter_model.safetensors").write_bytes(b"weights")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"base")
    (model / "tokenizer.json").write_text("{}")
    with pytest.raises(SettingsError, match="another base model"):
        seats_of(FakeServer(), str(silent.parent), model=str(model))


def test_without_a_server_models_are_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "run", 50, "shared")
    for spec in ("served", "player_0", str(folder)):
        with pytest.raises(SettingsError, match="needs a rollout server"):
            seats_of(None, spec)


@dataclass
class Answers:
    """Answers with fixed replies and keeps what it was asked."""

    replies: list[Reply]
    asked: list[ReplyRequest] = field(default_factory=list)

    def reply(self, asked: ReplyRequest) -> Reply:
        self.asked.append(asked)
        return replace(self.replies[len(self.asked) - 1], prompt=asked.prompt)


def play(client: Any, seat: str = "player_1@7", *, config: EnvConfig = LAPTOP) -> Episode:
    """A game of a script here with a model of a server."""
    setup = Setup(HANABI, config)
    script = make_script(setup, "hint-bot")
    model = RemotePlayer(client=client, name=seat, max_tokens=4, temperature=0.5)
    return asyncio.run(play_episode(setup.task("human", 3), [script, model]))


@pytest.fixture
def app() -> Iterator[RunningApp]:
    with running_app() as running:
        yield running


def test_a_game_goes_on_with_the_version_that_a_trainer_pushes_meanwhile(app: RunningApp) -> None:
    trainer = RolloutClient(app.url)
    push_to(trainer, app, version=1)
    client = RolloutClient(app.url)
    resolver = SeatResolver(client, Settings())
    setup = Setup(HANABI, LAPTOP)

    def push(version: int) -> None:
        bodies = {name: (adapter_bytes(float(version)), PEFT_CONFIG) for name in PLAYERS}
        trainer.push(version, bodies)

    class Pusher:
        """Plays seat 0 at random; before its second move the trainer pushes."""

        name = "pusher"

        def seat(self, player: int, *, task: Any, game: int) -> Any:
            inner = make_script(setup, "random").seat(player, task=task, game=game)
            turns = iter(range(100))

            class Seat:
                async def reply(self, seen: Observation) -> Reply:
                    if next(turns) == 1:
                        push(2)
                    return await inner.reply(seen)

            return Seat()

    ref = AdapterRef(adapter="player_1")
    model = RemotePlayer(
        client=client,
        name=resolver.seat(ref, 1),
        max_tokens=4,
        temperature=1.0,
        renew=functools.partial(resolver.renewed, ref, 1),
    )
    episode = asyncio.run(play_episode(setup.task("human", 3), [Pusher(), model]))
    versions = [turn.version for turn in episode.trajectory(1)]
    assert versions[0] == 1 and versions[-1] == 2
    # Without it the game ends where the server no longer has the version.
    push(3)
    fixed = replace(model, name="player_1@2", renew=None)
    with pytest.raises(ServerError, match="player_1@2 is required"):
        asyncio.run(play_episode(setup.task("human", 3), [Pusher(), fixed]))


@pytest.mark.parametrize(("memory", "kept"), [("game", 20), (2, 1)])
def test_every_request_carries_the_system_message_and_the_conversation_that_is_remembered(
    memory: Any, kept: int
) -> None:
    config = EnvConfig(preset="marshal-mini", observation="full", bomb_rule="keep", memory=memory)
    client = Answers(
        [Reply(text="Hint player_0 1", reply_ids=(5, number), version=7) for number in range(20)]
    )
    episode = play(client, config=config)
    turns = episode.trajectory(1)
    assert len(turns) >= 2
    for number, asked in enumerate(client.asked):
        before = [
            EarlierTurn(prompt=turn.prompt, reply_ids=(5, index))
            for index, turn in enumerate(turns[:number])
        ]
        assert asked == ReplyRequest(
            seat="player_1@7",
            system=system_prompt(config.spec(), "full", 1, bomb_rule="keep"),
            turns=tuple(before)[-kept:],
            fresh=memory == 2,
            prompt=turns[number].prompt,
            max_tokens=4,
            temperature=0.5,
        )
    assert [turn.version for turn in turns] == [7] * len(turns)
    assert episode.seats == ("hint-bot", "player_1@7")
    full = play(Answers([Reply(text="", out_of_tokens=True)]))
    assert full.status is EpisodeStatus.TRUNCATED_TOKENS


def test_a_real_server_samples_every_reply_and_one_without_the_adapter_ends_the_game() -> None:
    with running_app() as app, RolloutClient(app.url) as client:
        turns = play(client, "base").trajectory(1)
        with pytest.raises(ServerError, match="player_1"):
            play(client)
    assert turns
    for turn in turns:
        assert turn.prompt_ids and turn.reply_ids
        assert len(turn.logprobs) == len(turn.reply_ids)
        assert turn.version is None
