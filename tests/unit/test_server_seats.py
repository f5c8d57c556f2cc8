"""Policies in the seats of served games: scripts, the session's adapters, guests, the base model.

In any environment: one player, several in turn, and several who act at the same time.
"""

import asyncio
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from fake_engine import CHAT, LAPTOP, task
from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Observation, Setup, Task
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.types import Episode, Reply, Turn
from server_app import (
    PEFT_CONFIG,
    RunningApp,
    adapter_bytes,
    lora_of,
    push_to,
    rollout_body,
    running_app,
    word_reply,
)
from toy_environments import DILEMMA, GUESS
from toy_kuhn import KUHN

SWAPPED = ("player_1@1", "player_0@1")
BOARD = Setup(HANABI, LAPTOP)
POKER = Setup(KUHN, KUHN.presets["kuhn"])
ALONE = Setup(GUESS, GUESS.presets["toy"])
"""One player."""
AT_ONCE = Setup(DILEMMA, DILEMMA.presets["toy"])
"""Three players who answer at the same time."""


@pytest.fixture(scope="module")
def app() -> Iterator[RunningApp]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("guess", "dilemma"):
            patch.setitem(registry.OWN, name, f"toy_environments:{name.upper()}")
        with running_app(max_model_len=20000, max_players=3) as running:
            yield running


@pytest.fixture(scope="module")
def bodies(app: RunningApp) -> dict[str, bytes]:
    """What is served: version 1 of each player's adapter."""
    with RolloutClient(app.url) as client:
        return push_to(client, app)


@pytest.fixture
def client(app: RunningApp, bodies: dict[str, bytes]) -> Iterator[RolloutClient]:
    with RolloutClient(app.url) as client:
        yield client


def play(
    client: RolloutClient,
    *seatings: Sequence[str],
    seed: int = 3,
    setup: Setup[Any] = BOARD,
    num_games: int = 2,
) -> RolloutResult:
    start = {**setup.row(), "suite": "train", "seed": seed}
    tasks = [{**start, "seats": list(seats)} for seats in seatings]
    return client.play(tasks, num_games=num_games, max_tokens=4, temperature=1.0)


def check_sampled(episode: Episode, player: int, lora: str | None, version: int | None) -> None:
    """Each reply of a player is what this adapter replies to the player's conversation so far."""
    ids: list[int] = []
    for turn in episode.trajectory(player):
        ids += turn.prompt_ids
        expected = word_reply(lora, ids)
        assert turn.reply_ids == expected.ids
        assert turn.logprobs == expected.logprobs
        assert turn.version == version
        ids += turn.reply_ids


@dataclasses.dataclass
class Recorded:
    """Replies as in a recorded game, and keeps what it is shown now."""

    turns: Iterator[Turn]
    name: str = "recorded"
    shown: list[tuple[int, str]] = dataclasses.field(default_factory=list)

    def seat(self, player: int, *, task: Task[Any], game: int) -> "Recorded":
        return self

    async def reply(self, seen: Observation) -> Reply:
        self.shown.append((seen.player, seen.message()))
        return Reply(text=next(self.turns).reply)


def test_scripts_alone_play_on_the_server_the_games_that_they_play_locally(
    client: RolloutClient, app: RunningApp
) -> None:
    before = app.engine.num_samples
    for setup, script in (
        (BOARD, "iggi"),
        (BOARD, "random"),
        (POKER, "random"),
        (ALONE, "random"),
        (AT_ONCE, "taker"),
    ):
        num_players = setup.spec.num_players
        seats = (script,) * num_players
        policies = {}
        for player in range(num_players):
            policies[player] = setup.environment.policies[script]()
        for episode in play(client, seats, setup=setup, num_games=3).groups[0]:
            local = play_scripts(setup.task("train", 3), policies, number=episode.game)
            assert episode == dataclasses.replace(local, seats=seats, instance_id="test-instance")
    assert app.engine.num_samples == before


def test_a_script_beside_an_adapter_plays_what_it_plays_locally_against_the_same_replies(
    client: RolloutClient, bodies: dict[str, bytes]
) -> None:
    for setup, script in ((BOARD, "iggi"), (BOARD, "hint-bot"), (POKER, "random")):
        for seats, served in ((("player_0@1", script), 0), ((script, "player_0@1"), 1)):
            for seed in range(4):
                (episode,) = play(client, seats, seed=seed, setup=setup, num_games=1).groups[0]
                players: list[Any] = [make_script(setup, script), make_script(setup, script)]
                players[served] = Recorded(iter(episode.trajectory(served)))
                local = asyncio.run(play_episode(setup.task("train", seed), players))
                for here, there in zip(local.turns, episode.turns, strict=True):
                    assert here.player == there.player
                    assert here.action == there.action
                    assert here.reply == there.reply
                    assert here.rewards == there.rewards
                assert (local.result, local.status) == (episode.result, episode.status)
                for turn in episode.trajectory(1 - served):
                    assert (turn.prompt_ids, turn.reply_ids, turn.logprobs) == ((), (), ())
                    assert turn.version is None
                check_sampled(episode, served, lora_of(bodies["player_0"]), 1)


def test_a_swapped_adapter_samples_in_the_other_seat_and_is_shown_that_seats_prompts(
    client: RolloutClient, bodies: dict[str, bytes]
) -> None:
    for seed in range(4):
        for episode in play(client, SWAPPED, seed=seed).groups[0]:
            assert episode.seats == SWAPPED and episode.trajectory(0)
            check_sampled(episode, 0, lora_of(bodies["player_1"]), 1)
            check_sampled(episode, 1, lora_of(bodies["player_0"]), 1)
            recorded = Recorded(iter(episode.turns))
            asyncio.run(
                play_episode(BOARD.task("train", seed), [recorded, recorded], game=episode.game)
            )
            assert recorded.shown == [(turn.player, turn.prompt) for turn in episode.turns]
    full = Setup(HANABI, EnvConfig(preset="full", players=2, observation="full", max_turns=4))
    (episode,) = play(client, SWAPPED, setup=full, num_games=1).groups[0]
    for player in range(2):
        first = episode.trajectory(player)[0]
        system = HANABI.system(full.config, player)
        assert first.prompt_ids == tuple(Conversation(CHAT, system).ask(first.prompt))
        assert first.prompt_ids != tuple(Conversation(CHAT, "").ask(first.prompt))


def test_players_who_answer_at_the_same_time_have_conversations_and_adapters_of_their_own(
    client: RolloutClient, bodies: dict[str, bytes]
) -> None:
    guest = adapter_bytes(7.0)
    seats = ("player_1@1", client.upload_guest(50, guest, PEFT_CONFIG), "base")
    (episode,) = play(client, seats, setup=AT_ONCE, num_games=1).groups[0]
    assert [(turn.step, turn.player) for turn in episode.turns[:3]] == [(0, 0), (0, 1), (0, 2)]
    check_sampled(episode, 0, lora_of(bodies["player_1"]), 1)
    check_sampled(episode, 1, lora_of(guest), 50)
    check_sampled(episode, 2, None, None)
    (alone,) = play(client, ["player_1@1"], setup=ALONE, num_games=1).groups[0]
    check_sampled(alone, 0, lora_of(bodies["player_1"]), 1)
    assert [turn.step for turn in alone.turns] == [0, 1, 2, 3]


def test_tasks_with_and_without_seats_and_of_two_environments_go_in_one_request(
    client: RolloutClient,
) -> None:
    poker = {**POKER.row(), "suite": "train", "seed": 5}
    tasks = [task(3), {**task(4), "seats": ["iggi", "base"]}, poker]
    result = client.play(
        tasks, num_games=1, max_tokens=4, temperature=1.0, seats=["player_1@1", "base"]
    )
    expected = ("player_1@1", "base")
    assert [group[0].seats for group in result.groups] == [expected, ("iggi", "base"), expected]
    assert [group[0].env for group in result.groups] == ["hanabi", "hanabi", "kuhn"]


@pytest.mark.parametrize(
    ("seats", "status", "message"),
    [
        (
            ["player_0@1", "igi"],
            422,
            "'igi': the environment hanabi has no such script; its scripts: .*iggi",
        ),
        (["player_0@1", "player_1"], 422, "seat 'player_1': allowed are adapter@version"),
        (["player_0@1"], 422, "give a list of 2 seats"),
        (
            ["player_0@1", "player_0@2"],
            409,
            "player_0 is requested as @1 and @2; a request must use one version",
        ),
        (
            ["player_0@2", "iggi"],
            409,
            "player_0@2 is required, but this server holds player_0@1; push it first",
        ),
        (
            ["player_4@1", "iggi"],
            409,
            "player_4@1 is required, but this server holds no version of it",
        ),
        (
            ["frozen_0123456789abcdef@1", "iggi"],
            409,
            "frozen_0123456789abcdef@1 is required, .*upload it again",
        ),
    ],
)
def test_seats_that_cannot_be_filled_are_refused_before_anything_is_sampled(
    app: RunningApp, client: RolloutClient, seats: list[str], status: int, message: str
) -> None:
    before = (app.engine.num_samples, app.scheduler.games_played)
    good = {**task(3), "seats": ["base", "base"]}
    bad = {**task(4), "seats": seats}
    body = {**rollout_body(), "tasks": [good, bad]}
    answer = httpx.post(f"{app.url}/rollout/", json=body, trust_env=False)
    assert answer.status_code == status, answer.text
    assert re.search(message, answer.json()["detail"]), answer.text
    # What needs no server to be refused is refused by the client.
    with pytest.raises((ServerError, SettingsError), match=message):
        client.play([bad], num_games=1, max_tokens=4, temperature=1.0)
    assert (app.engine.num_samples, app.scheduler.games_played) == before


def test_with_memory_of_some_turns_each_turn_begins_with_those_before_it(
    client: RolloutClient,
) -> None:
    setup = Setup(HANABI, EnvConfig(preset="laptop", observation="compact", memory=2))
    task = {"env_config": setup.config.model_dump(), "suite": "eval", "seed": 3}
    played = client.play([task], num_games=1, max_tokens=4, temperature=1.0, seats=("base", "base"))
    [[game]] = played.groups
    sizes = [len(turn.prompt_ids) for turn in game.turns]
    assert played.prompt_tokens == sum(sizes)
    assert played.cached_tokens == sum(size // 2 for size in sizes)
    for player in (0, 1):
        turns = game.trajectory(player)
        assert len(turns) > 2
        assert all(turn.fresh for turn in turns)
        for number, turn in enumerate(turns):
            conversation = Conversation(CHAT, "")
            for earlier in turns[max(0, number - 1) : number]:
                conversation.ask(earlier.prompt)
                conversation.answer(list(earlier.reply_ids))
            conversation.ask(turn.prompt)
            assert list(turn.prompt_ids) == conversation.ids


def test_with_memory_of_a_turn_each_message_is_the_whole_state_in_a_conversation_of_its_own(
    client: RolloutClient,
) -> None:
    setup = Setup(KUHN, KUHN.presets["kuhn"].model_copy(update={"memory": "turn"}))
    episodes: list[Episode] = []
    for seed in range(6):
        episodes += play(client, SWAPPED, seed=seed, setup=setup).groups[0]
    assert max(len(episode.turns) for episode in episodes) == 3
    for episode in episodes:
        game = setup.environment.reset(setup.config, split=episode.suite, seed=episode.seed)
        for turn in episode.turns:
            assert turn.fresh
            assert turn.prompt == game.state_message(turn.player)
            system = setup.environment.system(setup.config, turn.player)
            assert list(turn.prompt_ids) == CHAT.open(system, turn.prompt)
            game.step({turn.player: turn.action})
