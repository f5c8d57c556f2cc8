"""Ten thousand wrong uploads and rollout requests to the real server: it plays on as before, to the last bit."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from running import memory

from conftest_e2e import Server
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.rollout.handshake import game_claims, tokenizer_hash
from hanabi_grpo.types import player_names
from mutations import mutate_rollout, mutate_upload

pytestmark = pytest.mark.e2e

Drills = Callable[..., Any]

PLAYERS = player_names(2)
CONFIG = EnvConfig(preset="laptop", observation="compact", legal_moves=False)
VERSION = 5
WANTED = [f"{player}@{VERSION}" for player in PLAYERS]
CONNECTIONS = 4
WARM_UP = 300
"""Requests of the same kind before the memory is looked at; they do not count."""
GROWTH = 100 << 20
CHECK_EVERY = 500


@dataclass
class Fuzzed:
    """The server under fire, and what it must stay."""

    server: Server
    client: RolloutClient
    adapters: dict[str, tuple[bytes, dict[str, Any]]]
    connections: list[httpx.Client]
    before: tuple[Any, ...] = ()

    def send(self, number: int, method: str, path: str, **request: Any) -> int:
        """Send one request over one of the connections; it must be answered, and not by a fault of the server."""
        answer = self.connections[number % CONNECTIONS].request(method, path, **request)
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
        if answer.status_code != 200:
            assert answer.json()["detail"]
        return answer.status_code

    def plays(self) -> tuple[Any, ...]:
        """Return the greedy replies and logprobs of eight deals, one game after the other and from an empty cache.

        So each forward pass has the same shape every time, and the same weights give the same bits.
        """
        reset = self.connections[0].post("/reset_prefix_cache/")
        assert reset.json() == {"reset": True}, "blocks are in use, though no game is played"
        played = []
        for seed in range(8):
            deal = {"env_config": CONFIG.model_dump(mode="json"), "suite": "eval", "seed": seed}
            result = self.client.play([deal], num_games=1, max_tokens=4, temperature=0.0, seats=WANTED)
            assert not result.dropped
            played += [(turn.player, turn.version, turn.reply_ids, turn.logprobs) for turn in result.groups[0][0].turns]
        assert {version for _, version, _, _ in played} == {VERSION}
        return tuple(played)

    def check(self) -> None:
        """The same policy, the same versions, a healthy server that plays nobody's games and logged no traceback."""
        health = self.client.health()
        assert (health["status"], health["games_in_flight"]) == ("ok", 0)
        assert health["versions"] == dict.fromkeys(PLAYERS, VERSION)
        # Also a sign of life: rollout requests that name no run are none.
        beat = self.client._call(dict, "heartbeat", "POST", "/session/heartbeat")
        assert beat["versions"] == dict.fromkeys(PLAYERS, VERSION)
        assert self.plays() == self.before, "another policy is served, or its numbers changed"
        assert "Traceback" not in self.server.log.read_text(errors="replace")


@pytest.fixture(scope="module")
def fuzzed(server: Server) -> Iterator[Fuzzed]:
    from transformers import AutoTokenizer

    from hanabi_grpo.rollout.chat import ChatFormat
    from hanabi_grpo.runs.fingerprint import model_fingerprint

    tokenizer = AutoTokenizer.from_pretrained(server.model)
    assert "Traceback" not in server.log.read_text(errors="replace"), "an earlier test left one"
    with ExitStack() as stack:
        client = stack.enter_context(RolloutClient(server.url))
        client.open_session(
            run_id="outputs/fuzzed",
            adapters=PLAYERS,
            lora_rank=8,
            model_fingerprint=model_fingerprint(server.model),
            tokenizer_hash=tokenizer_hash(tokenizer),
            chat_hash=ChatFormat.from_tokenizer(tokenizer).hash,
            dtype="float32",
            games=game_claims([Setup(HANABI, CONFIG)]),
        )
        adapters = _adapters(server)
        client.push(VERSION, adapters)
        connections = [
            stack.enter_context(httpx.Client(base_url=server.url, trust_env=False, timeout=120.0))
            for _ in range(CONNECTIONS)
        ]
        one = Fuzzed(server, client, adapters, connections)
        one.before = one.plays()
        assert one.plays() == one.before, "the comparison itself must be repeatable"
        yield one


def _adapters(server: Server) -> dict[str, tuple[bytes, dict[str, Any]]]:
    """Adapters that make the players reply otherwise than the base model does."""
    import torch
    from transformers import AutoModelForCausalLM

    from hanabi_grpo.training.model.adapters import add_adapters, export_adapter

    base = AutoModelForCausalLM.from_pretrained(server.model, dtype=torch.float32)
    model = add_adapters(base, PLAYERS, rank=8, alpha=16, seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3, generator=generator)
    return {name: export_adapter(model, name, torch.float32) for name in PLAYERS}


def _counts(statuses: Counter[int]) -> str:
    return ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))


def test_mutated_uploads_leave_the_served_policy_bit_identical(fuzzed: Fuzzed, drill: Drills) -> None:
    row = drill("mutated adapter uploads to the real server", short=200, long=10_000)

    def send(number: int) -> int:
        adapter = PLAYERS[number % 2]
        body, headers = mutate_upload(row.rng, *fuzzed.adapters[adapter])
        # Mostly the next version, whose checks go all the way; what passes them is staged and never committed.
        version = row.rng.choice((VERSION + 1, VERSION + 1, VERSION + 1, VERSION, VERSION - 1))
        raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        raw += [(name.encode(), value.encode()) for name, value in fuzzed.client.headers.items()]
        return fuzzed.send(
            number, "PUT", f"/adapters/{adapter}", params={"version": version}, content=body, headers=raw
        )

    _fire(fuzzed, row, send)


def test_mutated_rollouts_leave_the_served_policy_bit_identical(fuzzed: Fuzzed, drill: Drills) -> None:
    row = drill("mutated rollout bodies to the real server", short=200, long=10_000)
    # One game of one deal: what is still valid after its mutation is played.
    deal = {"env_config": CONFIG.model_dump(mode="json"), "suite": "train", "seed": 17}
    valid = json.dumps({"tasks": [deal], "num_games": 1, "max_tokens": 4, "temperature": 1.0, "seats": WANTED}).encode()

    def send(number: int) -> int:
        return fuzzed.send(
            number,
            "POST",
            "/rollout/",
            content=mutate_rollout(row.rng, valid),
            headers={"content-type": "application/json"},
        )

    _fire(fuzzed, row, send)


def _fire(fuzzed: Fuzzed, row: Any, send: Callable[[int], int]) -> None:
    for number in range(WARM_UP):
        send(number)
    fuzzed.check()
    start, statuses = memory(fuzzed.server), Counter[int]()
    for number in row:
        statuses[send(number)] += 1
        if number % CHECK_EVERY == CHECK_EVERY - 1 or number == row.times - 1:
            fuzzed.check()
    growth = memory(fuzzed.server) - start
    assert statuses[422] > row.times / 10, f"the checks behind the door were not reached: {statuses}"
    assert growth < GROWTH, f"{growth / 2**20:.0f} MiB more memory after {row.times} requests"
    row.lost = (
        f"the refused ones: {_counts(statuses)}; greedy replies and logprobs of 8 deals bit-identical, "
        f"{growth / 2**20:+.0f} MiB of memory"
    )
