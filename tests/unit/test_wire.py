"""Episodes as JSON, both ways."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanabi_grpo.errors import ServerError
from hanabi_grpo.runs.wire import episode_from_json, episode_to_json
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, Turn

TEXTS = st.text(max_size=12)
IDS = st.lists(st.integers(0, 200_000), max_size=4).map(tuple)
NUMBERS = st.floats(-1e6, 1e6)
PARTS = st.sampled_from(["score", "bomb", "illegal", "unparsable"])


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
        step=draw(st.integers(0, 100)),
        rewards=tuple(draw(st.dictionaries(PARTS, NUMBERS)) for _ in range(num_players)),
        prompt_ids=draw(IDS),
        reply_ids=reply_ids,
        logprobs=tuple(logprobs),
        version=draw(st.none() | st.integers(0, 1000)),
    )


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    num_players = draw(st.integers(1, 8))
    return Episode(
        env=draw(TEXTS),
        preset=draw(TEXTS),
        spec_hash=draw(TEXTS),
        num_players=num_players,
        suite=draw(TEXTS),
        seed=draw(st.integers(0, 2**63)),
        game=draw(st.integers(0, 100)),
        status=draw(st.sampled_from(EpisodeStatus)),
        result=draw(st.dictionaries(TEXTS, NUMBERS)),
        turns=tuple(draw(st.lists(turns(num_players), max_size=8))),
        instance_id=draw(TEXTS),
    )


def example() -> Episode:
    """Player 0 moves twice, player 1 once, and player 2's turn never comes."""

    def turn(player: int, number: int, **rewards: float) -> Turn:
        return Turn(
            player=player,
            step=number,
            prompt=f"board {number}",
            reply=f"Play {number}",
            action=f"Play {number}",
            kind=ReplyKind.LEGAL,
            rewards=tuple(rewards if seat == player else {} for seat in range(3)),
            prompt_ids=(10, 11 + number),
            reply_ids=(20 + number, 2),
            logprobs=(-0.25, -0.5),
            version=3,
        )

    return Episode(
        env="hanabi",
        preset="full",
        spec_hash="abc",
        num_players=3,
        suite="train",
        seed=17,
        game=2,
        status=EpisodeStatus.TRUNCATED_TOKENS,
        result={"score": 1, "score_kept": 1, "bombed": 0},
        turns=(turn(0, 0), turn(1, 1, score=1.0, illegal=-0.5), turn(0, 2)),
        instance_id="server",
    )


@settings(deadline=None)
@given(episode=episodes())
def test_an_episode_survives_jsonl(episode: Episode) -> None:
    assert episode_from_json(json.loads(json.dumps(episode_to_json(episode), allow_nan=False))) == episode


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
        ("preset", ..., "episode: preset: this field is missing"),
        ("turns/1/prompt_ids", ..., "episode: turns.1.prompt_ids: this field is missing"),
        ("seed", "17", "episode: seed='17': Expected `int`, got `str`"),
        ("num_players", 9, "episode: num_players=9: Expected `int` <= 8"),
        ("status", "won", "episode: status='won': Invalid enum value 'won'"),
        ("turns", None, "episode: turns=None: Expected `array`, got `null`"),
        ("turns/1/kind", "odd", "episode: turns.1.kind='odd'"),
        ("turns/1/player", 3, "episode: all of it: turns.1.player=3, but num_players=3; allowed: 0 to 2;"),
        ("turns/1/rewards/1/score", float("nan"), "episode: turns.1.rewards.1={'score': nan, 'illegal': -0.5}: Expect"),
        ("turns/1/rewards", [{}], "episode: all of it: turns.1.rewards has 1 entries for num_players=3; allowed: one"),
        ("schema", 3, "episode: schema=3: this version reads 2 and older"),
        ("turns/2/logprobs/0", float("-inf"), "episode: turns.2.logprobs.0=-inf: Expected `float` >= -1.79"),
        ("turns/2/logprobs", [-0.5], "episode: turns.2: 1 logprobs for 2 reply ids; allowed: one each, or none"),
        ("turns/0/reply_ids/1", -2, "episode: turns.0.reply_ids.1=-2: Expected `int` >= 0"),
        ("turns/0/version", 1.5, "episode: turns.0.version=1.5: Expected `int | null`, got `float`"),
    ],
)
def test_a_malformed_row_is_refused_by_field(path: str, value: object, message: str) -> None:
    with pytest.raises(ServerError) as caught:
        episode_from_json(put(json.loads(json.dumps(episode_to_json(example()))), path, value))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("row", [None, 3, "text", [], {}])
def test_what_is_no_episode_at_all_is_refused(row: Any) -> None:
    with pytest.raises(ServerError):
        episode_from_json(row)
