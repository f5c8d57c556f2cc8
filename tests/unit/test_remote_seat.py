"""Models of a rollout server as partners: one private conversation, one request per reply."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from fake_engine import LAPTOP
from hanabi_grpo.client.lineups import RemotePolicy
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.prompts import system_prompt
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.loop import make_script, play_episode
from hanabi_grpo.types import Episode, EpisodeStatus, Reply
from server_app import running_app


@dataclass
class Answers:
    """Answers with fixed replies and keeps what it was asked."""

    replies: list[Reply]
    asked: list[dict[str, Any]] = field(default_factory=list)

    def reply(self, **call: Any) -> Reply:
        self.asked.append(call)
        return self.replies[len(self.asked) - 1]


def game(policy: RemotePolicy, *, config: EnvConfig = LAPTOP) -> Episode:
    setup = Setup(HANABI, config)
    players = [make_script(setup, "hint-bot"), policy]
    return asyncio.run(play_episode(setup.task("human", 3), players))


def remote(client: Any) -> RemotePolicy:
    return RemotePolicy(client=client, seat_word="player_1@7", max_tokens=4, temperature=0.5)


def test_every_request_carries_the_conversation_so_far_and_the_system_message_of_the_seat() -> None:
    config = EnvConfig(preset="marshal-mini", observation="full", bomb_rule="keep")
    client = Answers([Reply(text="Hint player_0 1", reply_ids=(5, number), version=7) for number in range(20)])
    episode = game(remote(client), config=config)
    turns = episode.trajectory(1)
    assert len(turns) >= 2
    for number, call in enumerate(client.asked):
        assert call == {
            "seat": "player_1@7",
            "system": system_prompt(config.spec(), "full", 1, bomb_rule="keep"),
            "turns": tuple((turn.prompt, (5, index)) for index, turn in enumerate(turns[:number])),
            "prompt": turns[number].prompt,
            "max_tokens": 4,
            "temperature": 0.5,
        }
    assert [turn.version for turn in turns] == [7] * len(turns)
    assert "You are player_1. Your move?" in turns[0].prompt
    assert episode.seats == ("hint-bot", "player_1@7")


def test_a_conversation_without_room_for_a_reply_ends_the_game() -> None:
    client = Answers([Reply(text="", out_of_tokens=True)])
    assert game(remote(client)).status is EpisodeStatus.TRUNCATED_TOKENS


def test_a_real_server_samples_every_reply_with_its_ids() -> None:
    with running_app() as app, RolloutClient(app.url) as client:
        policy = RemotePolicy(client=client, seat_word="base", max_tokens=4, temperature=1.0)
        turns = game(policy).trajectory(1)
    assert turns
    assert all(turn.prompt_ids and turn.reply_ids and len(turn.logprobs) == len(turn.reply_ids) for turn in turns)
    assert {turn.version for turn in turns} == {None}


def test_a_server_that_does_not_serve_the_adapter_ends_the_game_by_its_reason() -> None:
    with running_app() as app, RolloutClient(app.url) as client, pytest.raises(ServerError, match="player_1"):
        game(remote(client))
