"""The loop over a game."""

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS
from hanabi_grpo.agents.script import ScriptedPlayer, make_script
from hanabi_grpo.envs.base import Observation, Setup, Task
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.texts import earned, signed
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.loop import play_episode, reply_together
from hanabi_grpo.rollout.wire import episode_from_json, episode_to_json
from hanabi_grpo.training.metrics import episode_metrics
from hanabi_grpo.types import Episode, EpisodeStatus, Reply, ReplyKind

LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)
FULL = EnvConfig(preset="full", players=3)


@dataclass
class Recorder:
    """A player that keeps what its seats were asked and answers by the number of the turn."""

    answer: Callable[[int], Reply]
    name: str = "recorder"
    asked: list[tuple[int, int, str]] = field(default_factory=list)

    def seat(self, player: int, *, task: Task[Any], game: int) -> "RecorderSeat":
        return RecorderSeat(self, game)


@dataclass
class RecorderSeat:
    policy: Recorder
    game: int
    turn: int = 0

    async def reply(self, seen: Observation) -> Reply:
        prompt = seen.message()
        self.policy.asked.append((self.game, seen.player, prompt))
        self.turn += 1
        await asyncio.sleep(0)
        return replace(self.policy.answer(self.turn - 1), prompt=prompt)


def play(config: EnvConfig, *players: Any, **options: Any) -> Episode:
    return asyncio.run(play_episode(Setup(HANABI, config).task("train", 4), players, **options))


def bot(name: str, config: EnvConfig = LAPTOP) -> ScriptedPlayer:
    return make_script(Setup(HANABI, config), name)


def test_an_episode_records_the_whole_game() -> None:
    episode = play(LAPTOP, bot("hint-bot"), bot("hint-bot"), game=2, instance_id="here")
    assert (episode.preset, episode.num_players) == ("laptop", 2)
    assert (episode.suite, episode.seed, episode.game) == ("train", 4, 2)
    assert episode.instance_id == "here"
    assert episode.spec_hash == LAPTOP.spec().hash
    for number, turn in enumerate(episode.turns):
        assert turn.player == number % 2
    score = sum(turn.rewards[1].get("score", 0) for turn in episode.turns)
    assert episode.result["score"] == score
    assert episode.reward(0) == score
    assert episode.reward(1, "score", "bomb") == score
    assert episode.seats == ("hint-bot", "hint-bot")
    assert episode == play(LAPTOP, bot("hint-bot"), bot("hint-bot"), game=2, instance_id="here")


def test_what_a_seat_says_is_kept_with_its_tokens_and_the_text_it_was_shown() -> None:
    reply = Reply(text="?", prompt_ids=(1, 2), reply_ids=(3,), logprobs=(-0.5,), version=7)
    policy = Recorder(lambda turn: reply)
    episode = play(LAPTOP, policy, policy)
    assert [turn.prompt for turn in episode.turns] == [prompt for _, _, prompt in policy.asked]
    first = episode.turns[0]
    assert first.prompt.startswith("life1 info3 deck2 ")
    assert first.prompt_ids == (1, 2)
    assert first.reply_ids == (3,)
    assert first.logprobs == (-0.5,)
    assert first.version == 7
    assert first.reply == "?"
    assert first.kind is ReplyKind.UNPARSABLE
    assert first.rewards[0]["unparsable"] == -0.5


def test_a_seat_out_of_tokens_ends_the_game_and_its_last_reply_pays_for_it() -> None:
    full = Recorder(lambda turn: Reply(text="Discard 0", out_of_tokens=turn == 2))
    other = Recorder(lambda turn: Reply(text="Discard 0"))

    def with_price(weight: float) -> Episode:
        config = EnvConfig(preset="full", players=3, reward_out_of_tokens=weight)
        return play(config, other, full, other)

    free = with_price(0.0)
    for weight in (-0.5, -2.0):
        episode = with_price(weight)
        assert episode.status is EpisodeStatus.TRUNCATED_TOKENS
        assert [turn.player for turn in episode.turns] == [0, 1, 2, 0, 1, 2, 0]
        prices = [turn.rewards[turn.player].get("out_of_tokens") for turn in episode.turns]
        assert prices == [None, None, None, None, weight, None, None]
        paid = [episode.reward(player) - free.reward(player) for player in range(3)]
        assert paid == [0.0, weight, 0.0]
        assert episode_from_json(json.loads(json.dumps(episode_to_json(episode)))) == episode
        setups = {episode.spec_hash: Setup(HANABI, FULL)}
        assert episode_metrics([[episode]], setups)["out_of_tokens_per_game"] == 1.0
        assert f"out_of_tokens {signed(weight)}" in earned(episode.turns[4].rewards[1])


def test_a_seat_out_of_tokens_before_its_first_reply_has_nothing_to_pay_with() -> None:
    policy = Recorder(lambda turn: Reply(text="", out_of_tokens=True))
    episode = play(LAPTOP, policy, policy)
    assert episode.status is EpisodeStatus.TRUNCATED_TOKENS
    assert episode.turns == ()
    assert episode.reward(0) == 0.0


def test_max_turns_ends_the_game() -> None:
    policy = Recorder(lambda turn: Reply(text="Hint player_1 1"))
    episode = play(EnvConfig(preset="full", max_turns=4), policy, policy)
    assert episode.status is EpisodeStatus.TRUNCATED_TURNS
    assert len(episode.turns) == 4


def test_seats_that_act_together_are_asked_together_and_one_that_raises_ends_the_others() -> None:
    cancelled: list[int] = []

    class Waiting:
        async def reply(self, seen: Observation) -> Reply:
            if seen.player == 1:
                raise RuntimeError("the engine died")
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.append(seen.player)
                raise
            return Reply(text="")

    asked: list[Any] = [
        Waiting().reply(cast(Observation, SimpleNamespace(player=player))) for player in range(3)
    ]
    with pytest.raises(RuntimeError, match="the engine died"):
        # The time limit turns a seat that nobody cancels into a failure instead of an hour's wait.
        asyncio.run(asyncio.wait_for(reply_together(asked), 20))
    assert sorted(cancelled) == [0, 2]


def test_the_number_of_policies_must_be_the_number_of_players() -> None:
    message = "2 players for an environment with 3 seats: give one for every seat"
    with pytest.raises(SettingsError, match=message):
        play(FULL, bot("random"), bot("random"))


PIECES = st.sampled_from(
    [
        "<think>",
        "</think>",
        "Play 0",
        "Play 99999999999999999999",
        "Hint R",
        "Hint player_1 1",
        "Discard 1",
        "Play -1",
        "Play 1e3",
        "Play \u0660",
        "Hint player_9 R",
        "Action:",
        "**",
        "{",
        "%s",
        "\n",
        "\x00",
        "\ud800",
        "\u2028",
    ]
)
REPLIES = st.one_of(
    st.text(st.characters(exclude_categories=())),
    st.binary().map(lambda data: data.decode("utf-8", "replace")),
    st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")),
    st.binary().map(lambda data: data.decode("latin-1")),
    st.lists(PIECES, max_size=12).map("".join),
    st.tuples(PIECES, st.integers(1, 100_000)).map(lambda pair: pair[0] * pair[1]),
)


@settings(deadline=None, max_examples=150)
@given(
    replies=st.lists(REPLIES, min_size=1, max_size=6),
    board=st.sampled_from(ALL_BOARDS),
    observation=st.sampled_from(["full", "compact"]),
)
def test_whatever_a_model_replies_is_a_turn_and_never_an_error(
    replies: list[str], board: tuple[str, int], observation: str
) -> None:
    config = EnvConfig(preset=board[0], players=board[1], observation=observation)
    policy = Recorder(lambda turn: Reply(text=replies[turn % len(replies)]))
    episode = play(config, *[policy] * config.players)
    assert episode.status in (EpisodeStatus.FINISHED, EpisodeStatus.TRUNCATED_TURNS)
    for turn in episode.turns:
        assert turn.kind in ReplyKind
        bad_parts = set(turn.rewards[turn.player]) & {"illegal", "unparsable"}
        assert bad_parts == {turn.kind.value} - {"legal"}
        for parts in turn.rewards:
            assert all(math.isfinite(value) for value in parts.values())
    row = episode_to_json(episode)
    text = json.dumps(row, allow_nan=False)
    assert episode_from_json(json.loads(text.encode())) == episode
    json.dumps(row, ensure_ascii=False).encode("utf-8")
