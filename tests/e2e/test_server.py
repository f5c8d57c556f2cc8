"""The rollout server's routes, on the running server."""

import hashlib
import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save
from transformers import AutoModelForCausalLM, AutoTokenizer

from conftest_e2e import ROOT, Server, clean_environment, death_signals
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.kuhn import KUHN
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.handshake import game_claims, tokenizer_hash
from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.training.model.adapters import add_adapters, export_adapter
from hanabi_grpo.types import player_names

pytestmark = pytest.mark.e2e
PLAYERS, BASE = player_names(2), ("base", "base")
CONFIG = EnvConfig(preset="laptop", observation="compact", legal_moves=False)
DEALS = [{"env_config": CONFIG.model_dump(), "suite": "eval", "seed": seed} for seed in range(4)]
ASKED = {"tasks": DEALS, "num_games": 1, "max_tokens": 4, "temperature": 1.0}


@pytest.fixture
def client(server: Server) -> Iterator[RolloutClient]:
    with RolloutClient(server.url) as client:
        yield client


def _open(client: RolloutClient, server: Server, run_id: str, **other: Any) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(server.model)
    given = {
        "run_id": run_id,
        "secret": "5" * 64,
        "adapters": PLAYERS,
        "lora_rank": 8,
        "model_fingerprint": model_fingerprint(server.model),
        "dtype": "float32",
        "tokenizer_hash": tokenizer_hash(tokenizer),
        "chat_hash": ChatFormat.from_tokenizer(tokenizer).hash,
        "games": game_claims([Setup(HANABI, CONFIG)]),
    }
    return client.open_session(**{**given, **other})


def _adapters(server: Server, scale: float, seed: int = 0) -> dict[str, tuple[bytes, dict[str, Any]]]:
    base = AutoModelForCausalLM.from_pretrained(server.model, dtype=torch.float32)
    model = add_adapters(base, PLAYERS, rank=8, alpha=16, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=scale, generator=generator)
    return {name: export_adapter(model, name, torch.float32) for name in PLAYERS}


def _play(client: RolloutClient, seats: Sequence[str], num_games: int = 2) -> Any:
    return client.play(DEALS, num_games=num_games, max_tokens=4, temperature=1.0, seats=seats).groups


def test_games_of_the_base_model_carry_aligned_tokens_and_logprobs(client: RolloutClient) -> None:
    groups = _play(client, BASE)
    assert [len(group) for group in groups] == [2, 2, 2, 2]
    for episode in (episode for group in groups for episode in group):
        assert episode.turns
        for turn in episode.turns:
            assert len(turn.reply_ids) == len(turn.logprobs) > 0
            assert turn.version is None
            assert all(value <= 0 for value in turn.logprobs)


def test_a_zero_sum_game_is_played_beside_it(client: RolloutClient) -> None:
    poker = Setup(KUHN, KUHN.presets["kuhn"])
    seated = [{**poker.row(), "suite": "eval", "seed": seed, "seats": ["base", "random"]} for seed in range(4)]
    groups = client.play([DEALS[0], *seated], num_games=2, max_tokens=4, temperature=1.0, seats=BASE).groups
    assert [group[0].env for group in groups] == ["hanabi", *["kuhn"] * 4]
    for episode in (episode for group in groups[1:] for episode in group):
        assert episode.trajectory(0) and all(turn.reply_ids for turn in episode.trajectory(0))
        assert episode.reward(0, "chips") == -episode.reward(1, "chips") != 0


def test_a_version_that_is_not_served_is_answered_409_and_nothing_is_sampled(
    client: RolloutClient, server: Server
) -> None:
    _open(client, server, "versions")
    client.push(3, _adapters(server, 0.01))
    assert _play(client, [f"{player}@3" for player in PLAYERS])[0][0].turns[0].version == 3
    played = client.health()["games_played"]
    with pytest.raises(ServerError, match=r"409: player_0@2 is required, but this server holds player_0@3"):
        _play(client, ["player_0@2", "player_1@2"])
    with pytest.raises(ServerError, match=r"409: .*player_1@4"):
        _play(client, ["player_0@3", "player_1@4"])
    assert client.health()["games_played"] == played


def test_a_refused_upload_leaves_the_old_policy_served(client: RolloutClient, server: Server) -> None:
    _open(client, server, "refusals")
    good = _adapters(server, 0.5)
    client.push(1, good)
    body, config = good["player_0"]
    other_shape = save(
        {
            "base_model.model.lm_head.lora_A.weight": torch.zeros(8, 3),
            "base_model.model.lm_head.lora_B.weight": torch.zeros(3, 8),
        }
    )
    for wrong, problem in ((b"garbage", "not a safetensors file"), (body[:-100], "safetensors")):
        with pytest.raises(ServerError, match=f"422: .*{problem}"):
            client.push(2, {"player_0": (wrong, config), "player_1": good["player_1"]})
    with pytest.raises(ServerError, match=r"422: player_0@2: 2 tensors, the base model needs 42; missing"):
        client.push(2, {"player_0": (other_shape, config), "player_1": good["player_1"]})
    with pytest.raises(ServerError, match=r"409: run x is not the one that this server works for \(refusals\)"):
        client._http.headers["x-run-id"] = "x"
        client.push(2, good)
    client._http.headers["x-run-id"] = "refusals"
    assert client.identity()["versions"] == {"player_0": 1, "player_1": 1}
    _play(client, [f"{player}@1" for player in PLAYERS])
    with pytest.raises(ServerError, match=r"409: player_0@0 is older than the served version 1"):
        client.push(0, good)
    assert client.health()["status"] == "ok"


def test_players_with_different_adapters_play_differently(client: RolloutClient, server: Server) -> None:
    """Greedy sampling makes replies a function of prompt and adapter: only the seat's own adapter may matter."""
    _open(client, server, "adapters")
    adapters = _adapters(server, 0.3)
    client.push(1, adapters)

    def first_replies() -> list[tuple[str, ...]]:
        wanted = [f"{player}@{client.identity()['versions'][player]}" for player in PLAYERS]
        groups = client.play(DEALS, num_games=1, max_tokens=4, temperature=0.0, seats=wanted).groups
        return [tuple(turn.reply for turn in group[0].turns[:1]) for group in groups]

    before = first_replies()
    client.push(2, {"player_0": adapters["player_0"], "player_1": _adapters(server, 0.3, seed=9)["player_1"]})
    assert first_replies() == before, "player 0's first replies changed with player 1's adapter"
    client.push(3, {"player_0": _adapters(server, 3.0, seed=5)["player_0"], "player_1": adapters["player_1"]})
    assert first_replies() != before


def test_another_base_model_chat_format_rank_or_player_count_is_refused_with_both_values(
    client: RolloutClient, server: Server
) -> None:
    ours = client.identity()["model_fingerprint"]
    with pytest.raises(ServerError, match=rf"base model differs: server {ours} .*trainer 0000"):
        _open(client, server, "x", model_fingerprint="0000")
    with pytest.raises(ServerError, match=r"tokenizer differs: server .*trainer 0000"):
        _open(client, server, "x", tokenizer_hash="0000")
    with pytest.raises(ServerError, match=r"prompts \(hanabi laptop, 2 players\) differs: server .*trainer 0000"):
        _open(client, server, "x", games=[{**game_claims([Setup(HANABI, CONFIG)])[0], "prompt_hash": "0000"}])
    with pytest.raises(ServerError, match=r"chat format differs: .*HANABI_THINKING"):
        _open(client, server, "x", chat_hash="0000")
    with pytest.raises(ServerError, match=r"number format differs: server float32 .*trainer bfloat16; .*HANABI_DTYPE"):
        _open(client, server, "x", dtype="bfloat16")
    with pytest.raises(ServerError, match=r"LORA_RANK=64: this server was started with LORA_RANK=8"):
        _open(client, server, "x", lora_rank=64)
    with pytest.raises(ServerError, match=r"restart it with HANABI_PLAYERS=3"):
        _open(client, server, "x", adapters=player_names(3))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"\xff\x00", "rollout request"),
        (b"{}", "tasks: this field is missing"),
        (json.dumps({"tasks": [{}]}).encode(), "tasks.0.env_config: this field is missing"),
        (json.dumps({**ASKED, "seats": ["base"]}).encode(), "2 players, but seats=.* names 1"),
        (json.dumps({**ASKED, "top_k": 5}).encode(), "top_k=5: no such field"),
    ],
)
def test_a_request_that_cannot_be_played_says_why(server: Server, body: bytes, problem: str) -> None:
    answer = httpx.post(
        f"{server.url}/rollout/",
        content=body,
        headers={"content-type": "application/json"},
        timeout=30.0,
        trust_env=False,
    )
    assert answer.status_code == 422
    assert re.search(problem, answer.json()["detail"]), answer.text


def test_health_answers_while_games_are_played(server: Server) -> None:
    import threading

    answers: list[int] = []
    player = threading.Thread(target=lambda: _play(RolloutClient(server.url), BASE, num_games=64))
    player.start()
    in_flight = 0
    while player.is_alive():
        state = RolloutClient(server.url).health()
        answers.append(1)
        in_flight = max(in_flight, state["games_in_flight"])
    player.join()
    assert in_flight > 0
    assert len(answers) >= 3


def test_every_process_of_the_engine_dies_with_the_one_above_it(server: Server) -> None:
    told = death_signals(server)
    assert any("EngineCore" in title for title in told) and set(told.values()) == {signal.SIGKILL}, told


def test_a_port_in_use_is_an_error_and_never_another_port(server: Server) -> None:
    environment = {**clean_environment(), "MODEL": str(server.model), "PORT": str(server.port)}
    done = subprocess.run(
        ["bash", str(ROOT / "tools/rollout/rollout_hanabi_gym.sh")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert f"PORT={server.port}: cannot listen" in done.stdout + done.stderr


def test_a_half_open_client_does_not_stop_the_others(server: Server, client: RolloutClient) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as idle:
        head = b"POST /rollout/ HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        idle.sendall(head + b"content-length: 1000\r\n\r\n{")
        assert client.health()["status"] == "ok"
        assert _play(client, BASE, num_games=1)


def test_the_digest_in_a_receipt_is_that_of_the_pushed_bytes(client: RolloutClient, server: Server) -> None:
    _open(client, server, "receipts")
    pushed = _adapters(server, 0.1)
    answer = client.push(1, pushed)
    assert {name: receipt["sha256"] for name, receipt in answer["receipts"].items()} == {
        name: hashlib.sha256(body).hexdigest() for name, (body, _) in pushed.items()
    }
    assert Path("/dev/shm").is_dir()


def test_a_second_trainer_is_refused_until_the_first_has_left_and_lost_steps_must_be_named(
    client: RolloutClient, server: Server
) -> None:
    adapters = _adapters(server, 0.1)
    with RolloutClient(server.url) as first:
        _open(first, server, "first come")
        first.push(7, adapters)
        with pytest.raises(ServerError, match="409: this server works for run first come, heard"):
            _open(client, server, "second")
    with pytest.raises(ServerError, match=r"409: this server holds player_0@7, player_1@7 of this run; the trainer re"):
        _open(client, server, "first come", version=5)
    answer = _open(client, server, "first come", version=5, replaces=dict.fromkeys(PLAYERS, 7))
    assert answer["versions"] == {}
    client.push(7, _adapters(server, 0.2))
    wanted = [f"{player}@7" for player in PLAYERS]
    assert _play(client, wanted)[0][0].turns[0].version == 7
