"""Episodes as JSON and as ms-swift outputs, both ways."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanabi_grpo.envs.hanabi.env import EnvConfig
from hanabi_grpo.envs.hanabi.policies import HintBot
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.runs.wire import (
    dropped_to_outputs,
    episode_from_json,
    episode_to_json,
    episode_to_outputs,
    outputs_to_episode,
    outputs_to_game,
)
from hanabi_grpo.types import DroppedGame, Episode, EpisodeStatus, ReplyKind, Turn

TEXTS = st.text(max_size=12)
IDS = st.lists(st.integers(0, 200_000), max_size=4).map(tuple)
NUMBERS = st.floats(-1e6, 1e6)


@st.composite
def turns(draw: st.DrawFn, num_players: int) -> Turn:
    reply_ids = draw(IDS)
    logprobs = draw(st.lists(NUMBERS, min_size=len(reply_ids), max_size=len(reply_ids)))
    return Turn(
        player=draw(st.integers(0, num_players - 1)),
        prompt=draw(TEXTS),
        reply=draw(TEXTS),
        action=draw(TEXTS),
        kind=draw(st.sampled_from(ReplyKind)),
        rewards=draw(st.dictionaries(st.sampled_from(["score", "bomb", "illegal", "unparsable"]), NUMBERS)),
        prompt_ids=draw(IDS),
        reply_ids=reply_ids,
        logprobs=tuple(logprobs),
        version=draw(st.none() | st.integers(0, 1000)),
    )


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    num_players = draw(st.integers(2, 5))
    return Episode(
        preset=draw(TEXTS),
        spec_hash=draw(TEXTS),
        num_players=num_players,
        suite=draw(TEXTS),
        seed=draw(st.integers(0, 2**63)),
        game=draw(st.integers(0, 100)),
        status=draw(st.sampled_from(EpisodeStatus)),
        score=draw(st.integers(0, 25)),
        score_kept=draw(st.integers(0, 25)),
        turns=tuple(draw(st.lists(turns(num_players), max_size=8))),
        instance_id=draw(TEXTS),
    )


def example() -> Episode:
    """Player 0 moves twice, player 1 once, and player 2's turn never comes."""

    def turn(player: int, number: int, **rewards: float) -> Turn:
        return Turn(
            player=player,
            prompt=f"board {number}",
            reply=f"Play {number}",
            action=f"Play {number}",
            kind=ReplyKind.LEGAL,
            rewards=rewards,
            prompt_ids=(10, 11 + number),
            reply_ids=(20 + number, 2),
            logprobs=(-0.25, -0.5),
            version=3,
        )

    return Episode(
        preset="full",
        spec_hash="abc",
        num_players=3,
        suite="train",
        seed=17,
        game=2,
        status=EpisodeStatus.TRUNCATED_TOKENS,
        score=1,
        score_kept=1,
        turns=(turn(0, 0), turn(1, 1, score=1.0, illegal=-0.5), turn(0, 2)),
        instance_id="server",
    )


@settings(deadline=None)
@given(episode=episodes())
def test_an_episode_survives_jsonl(episode: Episode) -> None:
    assert episode_from_json(json.loads(json.dumps(episode_to_json(episode), allow_nan=False))) == episode


@settings(deadline=None)
@given(episode=episodes(), random=st.randoms())
def test_an_episode_survives_the_way_through_outputs_in_any_order(episode: Episode, random: Any) -> None:
    outputs = json.loads(json.dumps(episode_to_outputs(episode, model="m"), allow_nan=False))
    random.shuffle(outputs)
    assert outputs_to_episode(outputs) == episode


def test_every_output_is_one_that_ms_swift_accepts_and_survives_its_dump() -> None:
    from swift.infer_engine.protocol import RolloutOutput

    (played,) = play_episodes_sync(EnvConfig(preset="laptop"), [HintBot()] * 2, "train", [3])
    for episode in (example(), played):
        accepted = [RolloutOutput.model_validate(output) for output in episode_to_outputs(episode, model="m")]
        dumped = json.loads(json.dumps([output.model_dump(mode="json") for output in accepted]))
        assert outputs_to_episode(dumped) == episode


def test_the_output_of_a_player_is_its_private_conversation() -> None:
    output = episode_to_outputs(example(), model="m", system_prompts=["rules", "", ""])[0]
    assert output["messages"] == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "board 0"},
        {"role": "assistant", "content": "Play 0"},
        {"role": "user", "content": "board 2"},
        {"role": "assistant", "content": "Play 2"},
    ]
    assert output["response_token_ids"] == [[20, 2], [22, 2]]
    assert output["response_loss_mask"] == [[1, 1], [1, 1]]
    assert output["rollout_logprobs"] == [[-0.25, -0.5], [-0.25, -0.5]]
    assert output["response"]["choices"][0]["message"] == {"role": "assistant", "content": "Play 2"}
    assert output["response"]["choices"][0]["finish_reason"] == "length"
    assert output["response"]["usage"] == {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8}


def test_the_infos_carry_each_player_s_return_and_the_outcome() -> None:
    infos = [output["rollout_infos"] for output in episode_to_outputs(example(), model="m")]
    assert [info["total_reward"] for info in infos] == [1.0, 0.5, 1.0]
    assert [info["num_turns"] for info in infos] == [2, 1, 0]
    assert {(info["score"], info["score_kept"], info["status"]) for info in infos} == {(1, 1, "truncated_tokens")}


def test_a_player_without_a_turn_has_a_conversation_of_one_empty_reply() -> None:
    output = episode_to_outputs(example(), model="m")[2]
    assert output["messages"] == [{"role": "assistant", "content": ""}]
    assert output["response_token_ids"] == output["response_loss_mask"] == output["rollout_logprobs"] == []


def test_a_player_s_output_holds_nothing_that_another_player_was_told() -> None:
    text = json.dumps(episode_to_outputs(example(), model="m")[0])
    assert "board 0" in text
    assert "board 1" not in text


def put(row: Any, path: str, value: object) -> Any:
    """Return a deep copy of `row` with one value replaced, or taken out if the value is `...`."""
    row = copy.deepcopy(row)
    *parents, last = [int(key) if key.isdecimal() else key for key in path.split("/")]
    target = row
    for key in parents:
        target = target[key]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return row


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("preset", ..., "episode: preset: Field required"),
        ("seed", "17", "episode: seed='17': Input should be a valid integer"),
        ("num_players", 9, "episode: num_players=9: Input should be less than or equal to 5"),
        ("status", "won", "episode: status='won': Input should be 'finished'"),
        ("turns", None, "episode: turns=None: Input should be a valid tuple"),
        ("turns/1/kind", "odd", "episode: turns.1.kind='odd'"),
        ("turns/1/player", 3, "episode: turns.1.player=3, but num_players=3; allowed: 0 to 2."),
        (
            "turns/1/rewards/score",
            float("nan"),
            "episode: turns.1.rewards.score=nan: Input should be a finite number",
        ),
        ("turns/2/logprobs/0", float("-inf"), "episode: turns.2.logprobs.0=-inf: Input should be a finite number"),
        ("turns/2/logprobs", [-0.5], "episode: turns.2 has 1 logprobs for 2 reply ids"),
        ("turns/0/reply_ids/1", -2, "episode: turns.0.reply_ids.1=-2: Input should be greater than or equal to 0"),
        ("turns/0/version", 1.5, "episode: turns.0.version=1.5: Input should be a valid integer"),
    ],
)
def test_a_malformed_row_is_refused_by_field(path: str, value: object, message: str) -> None:
    with pytest.raises(ServerError) as caught:
        episode_from_json(put(episode_to_json(example()), path, value))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("1/rollout_infos", ..., "output 1: rollout_infos: Field required"),
        ("1/rollout_infos/seed", 18, "output 1: rollout_infos.seed=18, but 17 in output 0"),
        (
            "1/rollout_infos/player",
            0,
            "rollout_infos.player: got [0, 0, 2], a game of 3 players needs each of [0, 1, 2]",
        ),
        ("2", ..., "rollout_infos.player: got [0, 1], a game of 3 players"),
        ("0/response_token_ids", [[20, 2]], "output 0: response_token_ids has 1 turns, rollout_infos.turns has 2."),
        ("0/rollout_logprobs", [], "output 0: rollout_logprobs has 0 turns, rollout_infos.turns has 2."),
        ("0/rollout_logprobs/1", [-1.0], "outputs: turns.2 has 1 logprobs for 2 reply ids"),
        ("0/rollout_logprobs/1/0", float("nan"), "output 0: rollout_logprobs.1.0=nan: Input should be a finite"),
        ("0/rollout_infos/turns/1/index", 0, "output 0: rollout_infos.turns.index=0 is there twice."),
        ("0/rollout_infos/turns/1/index", 7, "rollout_infos.turns.index: got [0, 1, 7]; allowed is 0 to n-1"),
        ("0/rollout_infos/turns/1/player", 1, "output 0: rollout_infos.turns.player=1, but the output is player 0's."),
    ],
)
def test_malformed_outputs_are_refused_by_field(path: str, value: object, message: str) -> None:
    with pytest.raises(ServerError) as caught:
        outputs_to_episode(put(episode_to_outputs(example(), model="m"), path, value))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("row", [None, 3, "text", [], {}])
def test_what_is_no_episode_at_all_is_refused(row: Any) -> None:
    with pytest.raises(ServerError):
        episode_from_json(row)
    with pytest.raises(ServerError):
        outputs_to_episode([row])


def test_no_outputs_at_all_are_refused() -> None:
    with pytest.raises(ServerError, match="the list is empty"):
        outputs_to_episode([])


DROPPED = DroppedGame(suite="train", seed=17, game=2, reason="NonFiniteError: player_0, turn 3: …")


@settings(deadline=None)
@given(
    dropped=st.builds(DroppedGame, suite=TEXTS, seed=st.integers(), game=st.integers(), reason=st.text(min_size=1)),
    num_players=st.integers(2, 5),
    random=st.randoms(),
)
def test_a_dropped_game_survives_the_way_through_outputs_in_any_order(
    dropped: DroppedGame, num_players: int, random: Any
) -> None:
    outputs = dropped_to_outputs(dropped, num_players=num_players, model="m")
    outputs = json.loads(json.dumps(outputs, allow_nan=False))
    random.shuffle(outputs)
    assert outputs_to_game(outputs) == dropped


def test_a_dropped_game_has_outputs_that_ms_swift_accepts_and_that_say_why() -> None:
    from swift.infer_engine.protocol import RolloutOutput

    outputs = dropped_to_outputs(DROPPED, num_players=3, model="m")
    accepted = [RolloutOutput.model_validate(output) for output in outputs]
    dumped = json.loads(json.dumps([output.model_dump(mode="json") for output in accepted]))
    assert outputs_to_game(dumped) == DROPPED
    assert outputs[1]["rollout_infos"] == {
        "suite": "train",
        "seed": 17,
        "game": 2,
        "num_players": 3,
        "dropped": DROPPED.reason,
        "player": 1,
    }
    assert outputs[1]["response_token_ids"] == outputs[1]["rollout_logprobs"] == []


def test_a_dropped_game_is_no_episode_and_has_no_reward() -> None:
    outputs = dropped_to_outputs(DROPPED, num_players=2, model="m")
    with pytest.raises(ServerError, match="Field required"):
        outputs_to_episode(outputs)
    assert not any("total_reward" in output["rollout_infos"] for output in outputs)


def test_a_played_game_comes_back_as_its_episode() -> None:
    assert outputs_to_game(episode_to_outputs(example(), model="m")) == example()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("1/rollout_infos/dropped", ..., "rollout_infos.dropped: in outputs [0, 2] of 3"),
        ("1/rollout_infos/dropped", "other", "output 1: rollout_infos.dropped='other', but 'NonFinite"),
        ("1/rollout_infos/dropped", "", "output 1: rollout_infos.dropped=''"),
        ("1/rollout_infos/seed", 18, "output 1: rollout_infos.seed=18, but 17 in output 0"),
        ("1/rollout_infos/player", 0, "rollout_infos.player: got [0, 0, 2]"),
        ("1/rollout_infos", None, "rollout_infos.dropped: in outputs [0, 2] of 3"),
        ("2", ..., "rollout_infos.player: got [0, 1], a game of 3 players"),
    ],
)
def test_malformed_outputs_of_a_dropped_game_are_refused(path: str, value: object, message: str) -> None:
    with pytest.raises(ServerError) as caught:
        outputs_to_game(put(dropped_to_outputs(DROPPED, num_players=3, model="m"), path, value))
    assert str(caught.value).startswith(message)


def test_no_outputs_are_no_game() -> None:
    with pytest.raises(ServerError, match="the list is empty"):
        outputs_to_game([])
