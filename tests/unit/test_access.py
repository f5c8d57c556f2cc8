"""What a request may name: what the server was started with, and no path or address of its own."""

import hashlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.access import GameAccess
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.workflows import problem_files
from hanabi_grpo.envs.workflows import problems as problem_sources
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.handshake import game_claims
from hanabi_grpo.server.assembly import read_setups
from hanabi_grpo.settings import load_settings
from local_service import LocalService, QuietHandler, served
from ports import closed_port
from server_app import RunningApp, open_session, rollout_body, running_app, session_body

SECONDS = 3.0
"""A server that stands still for so long is held up; an answer takes some milliseconds."""


def write_problems(path: Path, secret: str = "4120") -> Path:
    """Write a file of problems whose every answer begins with `secret`."""
    rows = []
    for number in range(200):
        rows.append(json.dumps({"question": f"Number {number}?", "answer": f"{secret}{number}"}))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows))
    return path


def vote(problems: object, **fields: Any) -> dict[str, Any]:
    """A vote of one player as a request names it."""
    config = {"preset": "vote", "players": 1, "style": "full", "problems": str(problems), **fields}
    return {"env": "vote", "env_config": config}


def ask_rollout(app: RunningApp, game: dict[str, Any], seat: str = "solver") -> httpx.Response:
    """Ask for one episode of a game, as a guest."""
    task = {**game, "suite": "eval", "seed": 1, "seats": [seat]}
    body = rollout_body(tasks=[task])
    return httpx.post(f"{app.url}/rollout/", json=body, timeout=20, trust_env=False)


def claim(game: dict[str, Any], spec_hash: str = "0" * 12) -> dict[str, Any]:
    """A claim of a game by somebody who does not know the digest of its prompts."""
    return {
        **game,
        "distribution": "hanabi-grpo",
        "version": registry.origin("vote").version,
        "spec_hash": spec_hash,
        "prompt_hash": "0" * 16,
    }


def ask_session(app: RunningApp, *claims: dict[str, Any]) -> httpx.Response:
    """Ask for a session, as anybody may."""
    body = session_body(app.identity, games=list(claims), adapters=["shared"])
    return httpx.post(f"{app.url}/session/", json=body, timeout=20, trust_env=False)


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    """The file of problems that the server was started with."""
    return write_problems(tmp_path / "server" / "own.jsonl")


@pytest.fixture
def app(own_file: Path) -> Iterator[RunningApp]:
    started_with = registry.setup(**vote(own_file))
    with running_app(access=GameAccess.of([started_with])) as running:
        yield running


def test_no_request_reads_a_file_that_the_server_was_not_started_with_or_tells_what_exists(
    app: RunningApp, tmp_path: Path
) -> None:
    private = write_problems(tmp_path / "private.jsonl")
    private.chmod(0o600)
    not_there = tmp_path / "missing" / "x.jsonl"
    no_json = tmp_path / "notes.jsonl"
    no_json.write_text("secret notes")
    for ask in (ask_rollout, lambda app, game: ask_session(app, claim(game))):
        details = set()
        for path in (private, not_there, no_json, private / "below.jsonl"):
            answer = ask(app, vote(path))
            assert answer.status_code == 422, answer.text
            detail = answer.json()["detail"]
            assert "a request may name only what the server was started with" in detail
            assert "own.jsonl (sha256:" in detail
            assert "Start the server, in terminal 1, with the same HANABI_PROBLEMS" in detail
            for secret in ("4120", "Number", "notes are", str(app.store.folder.path)):
                assert secret not in detail
            details.add(re.sub(r"HANABI_PROBLEMS='[^:]*:", "", detail))
        assert len(details) == 1, "what exists, or can be read, cannot be told from the answers"


@pytest.mark.parametrize("env", ["tic_tac_toe", "leduc_poker", "openspiel:breakthrough"])
@pytest.mark.parametrize(
    "preset",
    ["chess", "nope", "", "efg_game(filename=FILE)", "hex(num_cols=100000,num_rows=100000)"],
)
def test_a_preset_of_a_request_never_makes_openspiel_load_another_game_or_a_file(
    app: RunningApp, tmp_path: Path, env: str, preset: str
) -> None:
    file = tmp_path / "file.txt"
    file.write_text("secret")
    named = preset.replace("FILE", str(file))
    game = {"env": env, "env_config": {"preset": named}}
    answer = ask_rollout(app, game, "random")
    assert answer.status_code == 422, answer.text
    name = env.removeprefix("openspiel:")
    assert f"{env} has no such preset; allowed are {name}." in answer.json()["detail"]
    assert "secret" not in answer.text
    # The environment's own preset is played.
    game["env_config"] = {"preset": name}
    seats = ["random", "random"]
    body = rollout_body(tasks=[{**game, "suite": "eval", "seed": 1, "seats": seats}])
    played = httpx.post(f"{app.url}/rollout/", json=body, timeout=20, trust_env=False)
    assert played.status_code == 200, played.text


def test_a_request_names_a_file_of_the_server_by_value_name_or_digest(
    app: RunningApp, own_file: Path, tmp_path: Path
) -> None:
    digest = hashlib.sha256(own_file.read_bytes()).hexdigest()
    spec_hash = registry.setup(**vote(own_file)).spec.hash
    for name in (own_file, "own.jsonl", "/elsewhere/own.jsonl", f"sha256:{digest}"):
        answer = ask_rollout(app, vote(name))
        assert answer.status_code == 200, answer.text
        [episode] = answer.json()["episodes"]
        assert episode["spec_hash"] == spec_hash
        assert episode["turns"][0]["reply"].startswith("Answer: 4120")


def test_a_trainer_and_an_evaluation_with_the_same_file_at_another_path_fit(
    app: RunningApp, own_file: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "trainer" / "own.jsonl"
    copied.parent.mkdir()
    copied.write_bytes(own_file.read_bytes())
    setup = registry.setup(**vote(copied))
    answer = ask_session(app, *game_claims([setup]))
    assert answer.status_code == 200, answer.text
    with RolloutClient(app.url) as client:
        row = {**setup.row(), "suite": "eval", "seed": 1, "seats": ["solver"]}
        [[episode]] = client.play([row], num_games=1, max_tokens=4, temperature=1.0).groups
    assert episode.spec_hash == setup.spec.hash


def test_another_file_of_the_same_name_is_noticed_by_both(app: RunningApp, tmp_path: Path) -> None:
    other = registry.setup(**vote(write_problems(tmp_path / "trainer" / "own.jsonl", "77")))
    answer = ask_session(app, *game_claims([other]))
    assert answer.status_code == 422
    assert "rules (vote vote, 1 players) differs" in answer.json()["detail"]
    row = {**other.row(), "suite": "eval", "seed": 1, "seats": ["solver"]}
    with RolloutClient(app.url) as client, pytest.raises(ServerError, match="rules"):
        client.play([row], num_games=1, max_tokens=4, temperature=1.0)


def test_two_files_of_one_name_are_told_apart_by_path_or_digest(tmp_path: Path) -> None:
    first = write_problems(tmp_path / "a" / "own.jsonl")
    second = write_problems(tmp_path / "b" / "own.jsonl", "77")
    access = GameAccess.of([registry.setup(**vote(first)), registry.setup(**vote(second))])
    digest = hashlib.sha256(second.read_bytes()).hexdigest()
    for name, expected in ((first, first), (second, second), (f"sha256:{digest}", second)):
        assert access.setup(**vote(name)).config.problems == str(expected)
    wanted = "if two files share a name, refer to one by its digest"
    with pytest.raises(SettingsError, match=wanted):
        access.setup(**vote("own.jsonl"))


def test_a_file_is_read_at_the_start_and_never_again(app: RunningApp, own_file: Path) -> None:
    own_file.unlink()
    for terms in range(2, 20):
        # Other fields, so that nothing that is kept for equal games helps.
        assert ask_rollout(app, vote("own.jsonl", chain_terms=terms)).status_code == 200
        assert ask_rollout(app, vote("chain_sum", chain_terms=terms)).status_code == 200


def opens_in_time(ask: Callable[[], httpx.Response], app: RunningApp) -> httpx.Response:
    """Ask, and look meanwhile how long the server's health takes to be answered."""
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(ask()))
    asking.start()
    slowest = 0.0
    while asking.is_alive():
        start = time.monotonic()
        httpx.get(f"{app.url}/health/", timeout=20, trust_env=False)
        slowest = max(slowest, time.monotonic() - start)
    asking.join()
    assert slowest < SECONDS
    return answers[0]


def test_a_pipe_in_a_request_holds_up_nothing(app: RunningApp, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    start = time.monotonic()
    for _ in range(8):
        assert opens_in_time(lambda: ask_rollout(app, vote(pipe)), app).status_code == 422
    assert opens_in_time(lambda: ask_session(app, claim(vote(pipe))), app).status_code == 422
    assert ask_rollout(app, vote("own.jsonl")).status_code == 200
    assert time.monotonic() - start < 10


def test_the_users_own_pipe_device_folder_or_huge_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    device = tmp_path / "device.jsonl"
    device.symlink_to("/dev/zero")
    folder = tmp_path / "folder.jsonl"
    folder.mkdir()
    for path in (pipe, device, folder):
        with pytest.raises(SettingsError, match="not a regular file; give a file of JSON lines"):
            registry.setup(**vote(path))
    with pytest.raises(SettingsError, match="a file name must not contain NUL"):
        registry.setup(**vote("a\0.jsonl"))
    monkeypatch.setattr(problem_files, "MAX_FILE_BYTES", 100)
    with pytest.raises(SettingsError, match=r"bytes; the maximum is 100\. Remove some"):
        registry.setup(**vote(write_problems(tmp_path / "long.jsonl")))


class Port(LocalService):
    """A service that counts who asks it."""

    def __init__(self) -> None:
        super().__init__(PortHandler)
        self.num_requests = 0


class PortHandler(QuietHandler):
    server: Port

    def do_GET(self) -> None:
        self.server.num_requests += 1
        self.give_json({})


def test_no_request_has_the_server_connect_anywhere(app: RunningApp) -> None:
    with served(Port()) as port:
        address = port.url.removeprefix("http://").replace("127.0.0.1", "localhost")
        game = {"env": f"openenv:{address}", "env_config": {"preset": address}}
        for answer in (ask_rollout(app, game), ask_session(app, claim(game))):
            assert answer.status_code == 422
            detail = answer.json()["detail"]
            assert "that the server was started with: none" in detail
            assert f"HANABI_ENV='openenv:{address}'" in detail
        assert port.num_requests == 0
    with closed_port() as port:
        closed = {"env": f"openenv:localhost:{port}", "env_config": {"preset": "x"}}
        assert "started with: none" in ask_rollout(app, closed).json()["detail"]
    word_lists = {"env": "textarena:Wordle-v0", "env_config": {"preset": "Wordle-v0"}}
    assert "started with: none" in ask_rollout(app, word_lists).json()["detail"]


def test_a_server_may_be_asked_for_what_its_settings_and_its_dataset_name(
    tmp_path: Path, own_file: Path
) -> None:
    other = write_problems(tmp_path / "other.jsonl", "5")
    dataset = tmp_path / "rows.jsonl"
    rows = []
    for path in (own_file, other):
        config = {"preset": "vote", "problems": str(path)}
        row = {"messages": [{"role": "user", "content": "?"}], "env": "vote", "env_config": config}
        rows.append(json.dumps(row))
    dataset.write_text("\n".join(rows))
    variables = {"HANABI_ENV": "vote", "HANABI_STYLE": "full"}
    settings = load_settings({**variables, "HANABI_PROBLEMS": str(own_file)}, tmp_path).settings
    assert names_of(GameAccess.of(read_setups(settings))) == ["own.jsonl"]
    settings = load_settings({**variables, "DATASET": str(dataset)}, tmp_path).settings
    assert names_of(GameAccess.of(read_setups(settings))) == ["other.jsonl", "own.jsonl"]
    validated = {**variables, "HANABI_EVAL_DATASET": str(dataset)}
    settings = load_settings(validated, tmp_path).settings
    assert names_of(GameAccess.of(read_setups(settings))) == ["other.jsonl", "own.jsonl"]
    elsewhere = load_settings({**variables, "DATASET": str(tmp_path / "no.jsonl")}, tmp_path)
    assert names_of(GameAccess.of(read_setups(elsewhere.settings))) == []
    other.write_text("no JSON")
    problem_sources._load_outside.cache_clear()
    with pytest.raises(SettingsError, match=r"other\.jsonl, line 1: not JSON"):
        GameAccess.of(read_setups(settings))


def names_of(access: GameAccess) -> list[str]:
    return sorted(thing.name for _, thing in access.outside)


class SlowProblems:
    """A generator of reasoning-gym that takes a while for a problem, and for a score."""

    seconds = 0.3
    threads: set[str]

    def __init__(self) -> None:
        self.threads = set()

    def __getitem__(self, number: int) -> dict[str, Any]:
        self.wait()
        return {"question": f"Say {number}.", "answer": str(number), "metadata": {}}

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        self.wait()
        return float(answer == entry["answer"])

    def wait(self) -> None:
        self.threads.add(threading.current_thread().name)
        time.sleep(self.seconds)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SlowProblems, Setup[Any]]]:
    """A slow data set of reasoning-gym, and a vote about it."""
    data_set = SlowProblems()
    factory = ModuleType("reasoning_gym.factory")
    factory.DATASETS = {"slow": SlowProblems}  # type: ignore[attr-defined]
    factory.create_dataset = lambda name, **fields: data_set  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reasoning_gym", ModuleType("reasoning_gym"))
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", factory)
    monkeypatch.setattr(problem_sources.metadata, "version", lambda name: "0.1.25")
    problem_sources._load_outside.cache_clear()
    yield data_set, registry.setup(**vote("reasoning-gym:slow"))
    problem_sources._load_outside.cache_clear()


def test_slow_problems_of_a_claim_are_made_beside_the_event_loop(
    slow: tuple[SlowProblems, Setup[Any]],
) -> None:
    data_set, setup = slow
    with running_app(access=GameAccess.of([setup])) as app:
        data_set.threads.clear()
        right = claim(setup.row(), setup.spec.hash)
        answer = opens_in_time(lambda: ask_session(app, right), app)
        assert "prompts (vote vote, 1 players) differs" in answer.json()["detail"]
        assert data_set.threads == {"sessions"}


def test_strangers_have_no_problems_made_for_their_claims(
    slow: tuple[SlowProblems, Setup[Any]],
) -> None:
    data_set, setup = slow
    data_set.seconds = 0.0
    with running_app(access=GameAccess.of([setup])) as app, RolloutClient(app.url) as trainer:
        games = game_claims([setup])
        open_session(trainer, app, games=games, adapters=["shared"], run_id="the first run")
        data_set.threads.clear()
        other = registry.setup(**vote("reasoning-gym:slow", memory="game"))
        answer = ask_session(app, claim(other.row(), other.spec.hash))
        assert answer.status_code == 409
        assert "this server serves run" in answer.json()["detail"]
        assert not data_set.threads
