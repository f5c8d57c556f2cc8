"""Seat assignments on the real engine.

Bots, swapped seats, more guest adapters than the engine has room for, single replies.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from safetensors.torch import load, save
from server_calls import CONFIG, make_adapters, open_session

from conftest_e2e import Server
from hanabi_grpo.agents.remote_server import RemotePlayer
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import ServerError
from hanabi_grpo.server.frozen_adapters import MAX_FROZEN
from hanabi_grpo.types import Episode
from made_games import play_episodes_sync

pytestmark = pytest.mark.e2e
SEEDS = range(6)
MAX_TOKENS = 4


@pytest.fixture
def client(server: Server) -> Iterator[RolloutClient]:
    with RolloutClient(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def adapter(server: Server) -> tuple[bytes, dict[str, Any]]:
    """An adapter of the base model that changes its replies: weights and PEFT configuration."""
    return make_adapters(server, 0.3, noise_seed=1, names=("player_0",))["player_0"]


def scale_lora_b(weights: bytes, factor: float) -> bytes:
    tensors = load(weights)
    for name in tensors:
        if "lora_B" in name:
            tensors[name] = tensors[name] * factor
    return save(tensors)


def play_greedily(client: RolloutClient, *seats: str) -> list[Episode]:
    """Return one episode of each seed, played without chance by what is in these seats."""
    config = CONFIG.model_dump(mode="json")
    tasks = []
    for seed in SEEDS:
        tasks.append({"env_config": config, "suite": "eval", "seed": seed, "seats": list(seats)})
    result = client.play(tasks, num_games=1, max_tokens=MAX_TOKENS, temperature=0.0)
    assert not result.dropped
    return [group[0] for group in result.groups]


def turns_of(episodes: list[Episode]) -> list[list[Any]]:
    """Return what was asked and answered in each episode, turn by turn."""
    turns = []
    for episode in episodes:
        turns.append(
            [(turn.player, turn.prompt_ids, turn.reply_ids, turn.action) for turn in episode.turns]
        )
    return turns


def test_more_adapters_than_the_engine_has_room_for_play_on_and_give_the_same_replies(
    client: RolloutClient, adapter: tuple[bytes, dict[str, Any]]
) -> None:
    weights, config = adapter
    first = client.upload_guest(1, weights, config)
    before = turns_of(play_greedily(client, first, first))
    others = []
    for number in range(1, MAX_FROZEN + 3):
        others.append(client.upload_guest(1, scale_lora_b(weights, 1 + 0.2 * number), config))
    assert len({first, *others}) == MAX_FROZEN + 3
    assert len(client.identity()["frozen"]) == MAX_FROZEN
    newest = others[-8:]
    for seat_0, seat_1 in pairwise(newest):
        assert play_greedily(client, seat_0, seat_1)[0].seats == (seat_0, seat_1)
    games_played = client.health()["games_played"]
    with pytest.raises(ServerError, match="upload it again"):
        play_greedily(client, first, "hint-bot")
    assert client.health()["games_played"] == games_played
    assert client.upload_guest(1, weights, config) == first
    assert turns_of(play_greedily(client, first, first)) == before, (
        "the same adapter gives other replies after its re-upload"
    )
    assert turns_of(play_greedily(client, "base", "base")) != before


def test_a_guest_adapter_stays_while_a_trainer_pushes_its_own(
    server: Server, client: RolloutClient, adapter: tuple[bytes, dict[str, Any]]
) -> None:
    guest = client.upload_guest(5, *adapter)
    before = turns_of(play_greedily(client, guest, guest))
    with RolloutClient(server.url) as trainer:
        open_session(trainer, server, "beside")
        trainer.push(1, make_adapters(server, 0.5))
        assert turns_of(play_greedily(client, guest, guest)) == before
        versions = set()
        for episode in play_greedily(client, guest, "player_1@1"):
            versions |= {turn.version for turn in episode.turns if turn.player == 1}
        assert versions == {1}
        in_order = turns_of(play_greedily(client, "player_0@1", "player_1@1"))
        swapped = turns_of(play_greedily(client, "player_1@1", "player_0@1"))
        assert swapped != in_order


def test_a_game_played_reply_by_reply_is_the_game_that_the_server_plays(
    client: RolloutClient, adapter: tuple[bytes, dict[str, Any]]
) -> None:
    guest = client.upload_guest(1, *adapter)
    policies = []
    for name in (guest, "base"):
        policies.append(
            RemotePlayer(client=client, name=name, max_tokens=MAX_TOKENS, temperature=0.0)
        )
    episodes = play_episodes_sync(Setup(HANABI, CONFIG), policies, "eval", SEEDS)
    assert turns_of(episodes) == turns_of(play_greedily(client, guest, "base"))
