"""Who sits where, on the real engine: bots, swapped seats, more lent adapters than it has room for,
single replies.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from conftest_e2e import Server
from hanabi_grpo.agents.remote_server import RemotePlayer
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import ServerError
from hanabi_grpo.server.frozen_adapters import MAX_FROZEN
from hanabi_grpo.training.model.adapters import add_adapters, export_adapter
from hanabi_grpo.types import Episode
from made_games import play_episodes_sync

pytestmark = pytest.mark.e2e
CONFIG = EnvConfig(preset="laptop", observation="compact", legal_moves=False)
SEEDS = range(6)


@pytest.fixture
def client(server: Server) -> Iterator[RolloutClient]:
    with RolloutClient(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def adapter(server: Server) -> tuple[bytes, dict[str, Any]]:
    """An adapter of the base model that changes what it says."""
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(server.model, dtype=torch.float32)
    model = add_adapters(base, ("player_0",), rank=8, alpha=16, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3, generator=generator)
    return export_adapter(model, "player_0", torch.float32)


def _scaled(adapter: tuple[bytes, dict[str, Any]], factor: float) -> bytes:
    tensors = load(adapter[0])
    return save(
        {name: tensor * factor if "lora_B" in name else tensor for name, tensor in tensors.items()}
    )


def _greedy(client: RolloutClient, *seats: str) -> list[Episode]:
    row = CONFIG.model_dump(mode="json")
    tasks = [
        {"env_config": row, "suite": "eval", "seed": seed, "seats": list(seats)} for seed in SEEDS
    ]
    result = client.play(tasks, num_games=1, max_tokens=4, temperature=0.0)
    assert not result.dropped
    return [group[0] for group in result.groups]


def _said(episodes: list[Episode]) -> list[Any]:
    return [
        [(turn.player, turn.prompt_ids, turn.reply_ids, turn.action) for turn in one.turns]
        for one in episodes
    ]


def test_more_adapters_than_the_engine_has_room_for_play_on_and_say_the_same(
    client: RolloutClient, adapter: tuple[bytes, dict[str, Any]]
) -> None:
    weights, config = adapter
    first = client.upload_guest(1, weights, config)
    before = _said(_greedy(client, first, first))
    others = [
        client.upload_guest(1, _scaled(adapter, 1 + 0.2 * number), config)
        for number in range(1, MAX_FROZEN + 3)
    ]
    assert len({first, *others}) == MAX_FROZEN + 3
    assert len(client.identity()["frozen"]) == MAX_FROZEN
    for one, two in zip(others[-8:], others[-7:], strict=False):
        assert _greedy(client, one, two)[0].seats == (one, two)
    played = client.health()["games_played"]
    with pytest.raises(ServerError, match="upload it again"):
        _greedy(client, first, "hint-bot")
    assert client.health()["games_played"] == played
    assert client.upload_guest(1, weights, config) == first
    assert _said(_greedy(client, first, first)) == before, (
        "the same adapter says something else after it came back"
    )
    assert _said(_greedy(client, "base", "base")) != before


def test_a_lent_adapter_stays_while_a_trainer_pushes_its_own(
    server: Server, client: RolloutClient, adapter: tuple[bytes, dict[str, Any]]
) -> None:
    from test_server import _adapters, _open

    word = client.upload_guest(5, *adapter)
    before = _said(_greedy(client, word, word))
    with RolloutClient(server.url) as trainer:
        _open(trainer, server, "beside")
        trainer.push(1, _adapters(server, 0.5))
        assert _said(_greedy(client, word, word)) == before
        mixed = _greedy(client, word, "player_1@1")
        assert {turn.version for one in mixed for turn in one.turns if turn.player == 1} == {1}
        swapped = _greedy(client, "player_1@1", "player_0@1")
        assert _said(swapped) != _said(_greedy(client, "player_0@1", "player_1@1"))


def test_a_game_played_reply_by_reply_is_the_game_that_the_server_plays(
    client: RolloutClient, adapter: tuple[bytes, dict[str, Any]]
) -> None:
    word = client.upload_guest(1, *adapter)
    policies = [
        RemotePlayer(client=client, name=name, max_tokens=4, temperature=0.0)
        for name in (word, "base")
    ]
    remote = play_episodes_sync(Setup(HANABI, CONFIG), policies, "eval", SEEDS)
    assert _said(remote) == _said(_greedy(client, word, "base"))
