"""Who sits where in a served game: scripts, swapped adapters, the base model and lent adapters, alone and together."""

import asyncio
import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest

from fake_engine import CHAT, LAPTOP, deal, tasks_of
from hanabi_grpo.client.rollout_client import RolloutClient, RolloutResult
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies import Policy, make_policy, play_scripted
from hanabi_grpo.envs.hanabi.prompts import system_prompt
from hanabi_grpo.envs.hanabi.rules import GameSpec, PlayerView
from hanabi_grpo.envs.hanabi.rules.actions import format_action
from hanabi_grpo.errors import ServerError, SettingsError, VersionError
from hanabi_grpo.rollout.chat import Conversation
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.runs.wire import episode_from_json, episode_to_json
from hanabi_grpo.server.tables import wanted_adapters
from hanabi_grpo.types import Episode, Reply, Turn
from server_app import PEFT_CONFIG, RunningApp, adapter_bytes, lora_of, push_to, rollout_body, running_app, word_reply

SWAPPED = ("player_1@1", "player_0@1")
THREE = EnvConfig(preset="full", players=3, observation="full", max_turns=12)


@pytest.fixture(scope="module")
def app() -> Iterator[RunningApp]:
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
    client: RolloutClient, *seatings: Sequence[str], seed: int = 3, config: EnvConfig = LAPTOP, num_games: int = 2
) -> RolloutResult:
    deals = [{**deal(seed, config), "seats": list(seats)} for seats in seatings]
    return client.play(deals, num_games=num_games, max_tokens=4, temperature=1.0)


def check_sampled(episode: Episode, player: int, lora: str | None, version: int | None) -> None:
    """Every reply of a player is what this adapter says to all that the player has seen and said."""
    seen: list[int] = []
    for turn in episode.trajectory(player):
        seen += turn.prompt_ids
        expected = word_reply(lora, seen)
        assert (turn.reply_ids, turn.logprobs, turn.version) == (expected.ids, expected.logprobs, version)
        seen += turn.reply_ids
    assert seen, "the player had a turn"


class Recorded:
    """Says what was said in a game, and keeps what it is shown now."""

    name = "recorded"

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.turns, self.shown = iter(turns), list[tuple[int, str]]()

    def seat(self, player: int, *, spec: GameSpec, suite: str, seed: int, game: int) -> "_RecordedSeat":
        return _RecordedSeat(self, player)


class _RecordedSeat:
    def __init__(self, recorded: Recorded, player: int) -> None:
        self.recorded, self.player = recorded, player

    async def reply(self, view: PlayerView, prompt: Callable[[], str]) -> Reply:
        self.recorded.shown.append((self.player, prompt()))
        return Reply(text=next(self.recorded.turns).reply)


@pytest.mark.parametrize("script", ["iggi", "hint-bot", "random", "simple-bot", "piers"])
@pytest.mark.parametrize("config", [LAPTOP, THREE], ids=["laptop", "full for three"])
def test_scripts_alone_play_on_the_server_the_moves_that_they_play_locally(
    client: RolloutClient, app: RunningApp, script: str, config: EnvConfig
) -> None:
    before = app.engine.num_samples
    result = play(client, [script] * config.players, config=config, num_games=3)
    policies = [make_policy(script) for _ in range(config.players)]
    for episode in result.groups[0]:
        local = play_scripted(config.spec(), policies, suite="train", seed=3, game=episode.game)
        moves = [event.action for event in local.events][: len(episode.turns)]
        assert [turn.action for turn in episode.turns] == [
            format_action(move, style=config.observation, num_players=config.players) for move in moves
        ]
        if config.max_turns is None:
            assert (episode.score, episode.score_kept) == (local.score, local.score_kept)
        assert episode.seats == (script,) * config.players
        assert all((turn.prompt_ids, turn.reply_ids, turn.logprobs) == ((), (), ()) for turn in episode.turns)
    assert app.engine.num_samples == before


@pytest.mark.parametrize("script", ["iggi", "hint-bot", "random"])
def test_a_script_beside_an_adapter_plays_what_it_plays_locally_against_the_same_replies(
    client: RolloutClient, bodies: dict[str, bytes], script: str
) -> None:
    for seats, served in ((("player_0@1", script), 0), ((script, "player_0@1"), 1)):
        for seed in range(6):
            (episode,) = play(client, seats, seed=seed, num_games=1).groups[0]
            recorded: Policy = Recorded(episode.trajectory(served))
            policies: list[Policy] = [make_policy(script), make_policy(script)]
            policies[served] = recorded
            local = asyncio.run(play_episode(LAPTOP, policies, suite="train", seed=seed))
            assert [(turn.player, turn.action, turn.reply) for turn in local.turns] == [
                (turn.player, turn.action, turn.reply) for turn in episode.turns
            ]
            assert (local.score, local.status) == (episode.score, episode.status)
            for turn in episode.trajectory(1 - served):
                assert (turn.prompt_ids, turn.reply_ids, turn.logprobs, turn.version) == ((), (), (), None)
            if episode.trajectory(served):
                check_sampled(episode, served, lora_of(bodies["player_0"]), 1)


def test_a_swapped_adapter_samples_in_the_other_seat_and_is_shown_that_seats_prompts(
    client: RolloutClient, bodies: dict[str, bytes]
) -> None:
    for seed in range(6):
        for episode in play(client, SWAPPED, seed=seed).groups[0]:
            assert episode.seats == SWAPPED
            check_sampled(episode, 0, lora_of(bodies["player_1"]), 1)
            if episode.trajectory(1):
                check_sampled(episode, 1, lora_of(bodies["player_0"]), 1)
            recorded = Recorded(episode.turns)
            local = asyncio.run(play_episode(LAPTOP, [recorded, recorded], suite="train", seed=seed, game=episode.game))
            assert recorded.shown == [(turn.player, turn.prompt) for turn in episode.turns]
            assert [turn.action for turn in local.turns] == [turn.action for turn in episode.turns]


def test_a_swapped_adapter_gets_the_system_message_of_its_seat(client: RolloutClient) -> None:
    config = EnvConfig(preset="full", players=2, observation="full", max_turns=4)
    for seats in (SWAPPED, ("player_0@1", "player_1@1")):
        (episode,) = play(client, seats, config=config, num_games=1).groups[0]
        for player in range(2):
            system = system_prompt(config.spec(), config.observation, player, bomb_rule=config.bomb_rule)
            first = episode.trajectory(player)[0]
            assert first.prompt_ids == tuple(Conversation(CHAT, system).ask(first.prompt))
            assert first.prompt_ids != tuple(Conversation(CHAT, "").ask(first.prompt))


def test_one_adapter_or_the_base_model_may_sit_in_every_seat(client: RolloutClient, bodies: dict[str, bytes]) -> None:
    for seats, lora, version in (
        (("player_1@1", "player_1@1"), lora_of(bodies["player_1"]), 1),
        (("base", "base"), None, None),
    ):
        for episode in play(client, seats).groups[0]:
            check_sampled(episode, 0, lora, version)


def test_a_deal_with_two_seatings_gives_two_groups_in_one_request(
    client: RolloutClient, bodies: dict[str, bytes]
) -> None:
    result = play(client, ("player_0@1", "iggi"), SWAPPED, ("player_0@1", "iggi"))
    assert [[(episode.seats, episode.game) for episode in group] for group in result.groups] == [
        [(("player_0@1", "iggi"), 0), (("player_0@1", "iggi"), 1)],
        [(SWAPPED, 0), (SWAPPED, 1)],
        [(("player_0@1", "iggi"), 2), (("player_0@1", "iggi"), 3)],
    ]
    check_sampled(result.groups[0][0], 0, lora_of(bodies["player_0"]), 1)
    check_sampled(result.groups[1][0], 0, lora_of(bodies["player_1"]), 1)


def test_deals_with_and_without_seats_go_in_one_request(client: RolloutClient) -> None:
    deals = [deal(3), {**deal(4), "seats": ["iggi", "base"]}]
    for default, expected in (
        (["player_1@1", "base"], ("player_1@1", "base")),
        (None, ("player_0@1", "player_1@1")),
    ):
        result = client.play(deals, num_games=1, max_tokens=4, temperature=1.0, seats=default)
        assert [group[0].seats for group in result.groups] == [expected, ("iggi", "base")]


def test_a_frozen_and_a_sessions_adapter_play_one_game(client: RolloutClient, bodies: dict[str, bytes]) -> None:
    body = adapter_bytes(7.0)
    lent = client.lend(50, body, PEFT_CONFIG)
    sampled = set()
    for seats, frozen in ((("player_0@1", lent), 1), ((lent, "player_0@1"), 0)):
        for seed in range(6):
            (episode,) = play(client, seats, seed=seed, num_games=1).groups[0]
            assert episode.seats == seats
            for player, lora, version in (
                (frozen, lora_of(body), 50),
                (1 - frozen, lora_of(bodies["player_0"]), 1),
            ):
                if episode.trajectory(player):
                    check_sampled(episode, player, lora, version)
                    sampled.add((seats, player))
    assert len(sampled) == 4


def test_five_different_seats_play_one_game(app: RunningApp, client: RolloutClient, bodies: dict[str, bytes]) -> None:
    config = EnvConfig(preset="full", players=5, observation="full", max_turns=15)
    body = adapter_bytes(7.0)
    seats = ("player_1@1", client.lend(50, body, PEFT_CONFIG), "base", "random", "player_0@1")
    (episode,) = play(client, seats, config=config, num_games=1).groups[0]
    assert episode.seats == seats
    check_sampled(episode, 0, lora_of(bodies["player_1"]), 1)
    check_sampled(episode, 1, lora_of(body), 50)
    check_sampled(episode, 2, None, None)
    check_sampled(episode, 4, lora_of(bodies["player_0"]), 1)
    assert all(turn.version is None and not turn.reply_ids for turn in episode.trajectory(3))


@pytest.mark.parametrize(
    ("seats", "status", "message"),
    [
        (["player_0@1", "igi"], 422, "seat 'igi': allowed are .*Did you mean 'iggi'"),
        (["player_0@1", "player_1"], 422, "seat 'player_1': allowed are adapter@version"),
        (["player_0@1", "player_1@\u0661"], 422, "seat 'player_1@"),
        (["player_0@1"], 422, "give a list of 2 seats"),
        (["player_0@1", "iggi", "iggi"], 422, "give a list of 2 seats"),
        (["player_0@1", "player_0@2"], 409, "player_0 is asked for as @1 and @2; one request, one version"),
        (["player_0@2", "iggi"], 409, "player_0@2 is required, but this server holds player_0@1; push it first"),
        (["player_4@1", "iggi"], 409, "player_4@1 is required, but this server holds no version of it"),
        (["frozen_0123456789abcdef@1", "iggi"], 409, "frozen_0123456789abcdef@1 is required, .*lend it again"),
    ],
)
def test_seats_that_cannot_be_filled_are_refused_before_anything_is_sampled(
    app: RunningApp, client: RolloutClient, seats: Any, status: int, message: str
) -> None:
    before = (app.engine.num_samples, app.scheduler.games_played)
    body = {**rollout_body(), "tasks": [{**deal(3), "seats": ["base", "base"]}, {**deal(4), "seats": seats}]}
    answer = httpx.post(f"{app.url}/rollout/", json=body, trust_env=False)
    assert answer.status_code == status, answer.text
    assert re.search(message, answer.json()["detail"]), answer.text
    assert (app.engine.num_samples, app.scheduler.games_played) == before
    with pytest.raises((ServerError, SettingsError), match=message if status == 409 else None):
        client.play([{**deal(4), "seats": seats}], num_games=1, max_tokens=4, temperature=1.0)
    assert (app.engine.num_samples, app.scheduler.games_played) == before


def test_what_is_served_now_cannot_be_mixed_with_adapters_by_name() -> None:
    tasks = tasks_of(deal(3), {**deal(4), "seats": ["player_0@1", "iggi"]}, seats=None)
    with pytest.raises(VersionError, match="some tasks name adapters and others say nothing"):
        wanted_adapters(tasks)


def test_seats_survive_records_and_a_record_without_them_is_read(client: RolloutClient) -> None:
    for seats in (SWAPPED, ("iggi", "base"), (client.lend(50, adapter_bytes(7.0), PEFT_CONFIG), "random")):
        (episode,) = play(client, seats, num_games=1).groups[0]
        assert episode.seats == seats
        record = json.loads(json.dumps(episode_to_json(episode)))
        assert record["seats"] == list(seats)
        assert episode_from_json(record) == episode
        del record["seats"]
        assert episode_from_json(record) == dataclasses.replace(episode, seats=())


@pytest.mark.parametrize("seats", [["base"], ["base"] * 3, ["base"] * 6, "base", [1, 2], {"base": "base"}, None])
def test_a_record_with_a_wrong_number_or_kind_of_seats_is_refused(client: RolloutClient, seats: Any) -> None:
    (episode,) = play(client, SWAPPED, num_games=1).groups[0]
    with pytest.raises(ServerError, match="seats"):
        episode_from_json({**episode_to_json(episode), "seats": seats})
