"""Whatever bytes a model answers with: a turn that is legal, illegal or unparsable, and a game that ends."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from itertools import cycle

import msgspec
import pytest

from boards import ALL_BOARDS
from hanabi_grpo.envs.base import Observation, Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.prompts import parse_reply
from hanabi_grpo.envs.hanabi.rules.view import Action
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.runs.wire import EpisodeRow, episode_of, read_struct
from hanabi_grpo.types import Reply, ReplyKind

_FRAGMENTS = [
    *(b"Play 0", b"play 1", b"Discard 2", b"Hint R", b"Hint player_1 red", b"Hint player_0 1", b"Hint 1", b"Play"),
    *(b"<think>", b"</think>", b"<THINK>", b"</Think >", b"<", b">", b"Action:", b"**My move:**", b"```", b":"),
    *(b"\n", b"\r\n", b"\r", b"\t", b" ", b"\x00", b"\x0b\x0c", b"\x1b[31m", b"\xc2\x85", b"\xe2\x80\xa8", b"-", b"+1"),
    *("Play \u0660", "Play \uff10", "Play ²", "Hint Ⅳ", "Dis\u00adcard 1", "\u202ePlay 0", "\ufeffPlay 0", "🃏", "ß"),
    *(
        b"\xed\xa0\x80",
        b"\xff\xfe",
        b"\xf8\x88\x80\x80\x80",
        b"\xc0\xaf",
        b"{}",
        b"[",
        b"null",
        b"NaN",
        b"1e999",
        b"%s%n",
    ),
    *(b"Play 0.0", b"Play -1", b"Play 00", b"Play 0x0", b"Play 1_0", b"Hint player_9 red", b"Hint player_1 player_1 R"),
]
_PIECES = [piece.encode() if isinstance(piece, str) else piece for piece in _FRAGMENTS]


def random_reply(rng: random.Random) -> bytes:
    """Return nothing, noise, pieces of legal replies, very long numbers, very long repeats, or a mix of them."""
    parts = []
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 5, 8))):
        match rng.randrange(12):
            case 0 | 1 | 2:
                parts.append(rng.randbytes(rng.choice((1, 2, 8, 40, 200))))
            case 3:
                parts.append(b"Play " + b"%d" % rng.randrange(10 ** rng.choice((1, 2, 20, 400))))
            case 4 if rng.random() < 0.05:
                parts.append(rng.choice((b"Play ", b"Hint player_")) + b"9" * rng.randrange(4000, 20_000))
            case 5 if rng.random() < 0.05:
                parts.append(rng.choice(_PIECES) * rng.randrange(200, 5000))
            case _:
                parts.append(rng.choice(_PIECES))
    return rng.choice((b"", b"\n", b" ")).join(parts)


def _texts(reply: bytes) -> tuple[str, ...]:
    # As a tokenizer decodes bytes, as a byte-level one shows them, and with the halves of surrogate pairs kept.
    return reply.decode(errors="replace"), reply.decode("latin-1"), reply.decode(errors="surrogateescape")


def test_any_bytes_are_a_legal_an_illegal_or_an_unparsable_move_on_every_board(drill: Callable[..., object]) -> None:
    row = drill("random bytes as a model's reply", short=3000, long=100_000)
    configs = [
        EnvConfig(preset=name, players=players, observation=style)
        for (name, players), style in zip(ALL_BOARDS, cycle(("full", "compact")), strict=False)
    ]
    tables = [Referee(Setup(HANABI, config).task("train", seed)) for seed, config in enumerate(configs)]
    kinds: Counter[ReplyKind] = Counter()
    games = 0
    for number in row:
        texts = _texts(random_reply(row.rng))
        place = number % len(tables)
        table = tables[place]
        [mover] = table.to_act()
        for text in texts:
            move = parse_reply(text, num_players=table.spec.num_players, player=mover)
            assert move is None or isinstance(move, Action)
        [turn] = table.step({mover: texts[number % 3]})
        kinds[turn.kind] += 1
        assert math.isfinite(turn.reward(mover))
        assert turn.step < table.spec.max_turns, "a game that does not end"
        if table.status is not None:
            games += 1
            tables[place] = Referee(Setup(HANABI, configs[place]).task("train", number))
    assert games > row.times / 200 and all(kinds[kind] > row.times / 200 for kind in ReplyKind), (games, kinds)
    row.name += f" ({len(tables)} boards, {games} games)"
    row.lost = f"{kinds[ReplyKind.UNPARSABLE]} unparsable, {kinds[ReplyKind.ILLEGAL]} illegal, {kinds['legal']} legal"


class _Babbler:
    """Says random bytes in every seat."""

    name = "babbler"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def seat(self, player: int, **_: object) -> "_Babbler":
        return self

    async def reply(self, seen: Observation) -> Reply:
        return Reply(text=self._rng.choice(_texts(random_reply(self._rng))), prompt=seen.message())


@pytest.mark.parametrize("observation", ["full", "compact"])
def test_a_game_of_random_bytes_reaches_the_trainer_as_it_was_played(
    observation: str, drill: Callable[..., object]
) -> None:
    row = drill(f"whole games of random bytes, as JSON to the trainer ({observation})", short=40, long=1000)
    for number in row:
        preset, players = ALL_BOARDS[number % len(ALL_BOARDS)]
        config = EnvConfig(preset=preset, players=players, observation=observation)
        seats = [_Babbler(row.rng)] * players
        episode = asyncio.run(play_episode(Setup(HANABI, config).task("train", number), seats, game=number % 16))
        assert episode_of(read_struct(EpisodeRow, msgspec.json.encode(episode))) == episode
