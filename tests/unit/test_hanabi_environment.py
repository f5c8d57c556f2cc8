"""Hanabi behind the interface of environments: prompts, moves, rewards and results."""

import asyncio
import hashlib
import json
import random
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_move
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.envs.base import Observation, Setup, Task
from hanabi_grpo.envs.hanabi.environment import HANABI, HanabiGame
from hanabi_grpo.envs.hanabi.policies import PLANNERS
from hanabi_grpo.envs.hanabi.rules import Game, format_action, make_spec, shuffled_deck
from hanabi_grpo.envs.referee import Referee, play_scripts
from hanabi_grpo.errors import IllegalActionError
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.types import Reply
from made_games import play_episodes_sync

REPLIES = (
    *(
        "Play 0",
        "Discard 0",
        "Hint R",
        "Hint 1",
        "Hint player_1 1",
        "Hint player_0 red",
        "hint player_1 G",
        "Play 7",
    ),
    *(
        "",
        "?",
        "<think>Play 1",
        "<think>x</think>My move: **Play 1**",
        "\ud800",
        "Play 0\nDiscard 0",
        "Discard 1.",
    ),
)

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"observation": "compact", "bomb_rule": "keep", "reward_illegal": -0.1},
    {"legal_moves": False, "max_turns": 3, "reward_score": 2.0},
    {"observation": "compact", "legal_moves": False, "reward_out_of_tokens": -2.0},
)


@dataclass
class Talker:
    """A player that says given things and may run out of tokens."""

    seed: int
    tokens: int = 1000
    name: str = "talker"
    turns: int = 0

    def seat(self, player: int, **_: Any) -> "Talker":
        return Talker(self.seed + player, self.tokens)

    async def reply(self, seen: Observation) -> Reply:
        self.turns += 1
        text = random.Random(f"{self.seed} {self.turns}").choice(REPLIES)
        return Reply(text=text, prompt=seen.message(), out_of_tokens=self.turns > self.tokens)


def digest(told: list[Any]) -> str:
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def test_prompts_moves_rewards_and_results_are_those_of_version_0_1_on_every_board() -> None:
    told = []
    for (preset, players), (number, options) in product(ALL_BOARDS, enumerate(OPTIONS)):
        config = HANABI.Config.parse({"preset": preset, "players": players, **options})
        talker = Talker(seed=number, tokens=1 if number == 3 else 1000)
        task = Setup(HANABI, config).task("train", 11 + number)
        one = asyncio.run(play_episode(task, [talker] * players, game=number))
        turns = [
            [turn.player, turn.prompt, turn.reply, turn.action, turn.kind.value]
            for turn in one.turns
        ]
        returns = [round(one.reward(player), 6) for player in range(players)]
        told.append(
            [preset, players, number, turns, one.result["score"], one.result["score_kept"], returns]
        )
    assert (len(told), digest(told)) == (88, "336457036fa828e9")


def test_scripts_make_these_moves() -> None:
    told = []
    names = [name for name in HANABI.policies if name not in PLANNERS]
    for name, (preset, players) in product(names, (("mini", 3), ("full", 2))):
        setup = Setup(HANABI, HANABI.Config(preset=preset, players=players))
        for one in play_episodes_sync(
            setup, [make_script(setup, name)] * players, "eval", range(5)
        ):
            told.append([name, preset, one.result["score"], [turn.action for turn in one.turns]])
            played = play_scripts(
                setup.task("eval", one.seed), dict.fromkeys(range(players), HANABI.policies[name]())
            )
            assert played == one
    assert (len(told), digest(told)) == (80, "154967b064d14848")


def test_spec_system_and_starts_are_those_of_the_board() -> None:
    config = HANABI.Config(preset="full", players=3, max_turns=7)
    spec = HANABI.spec(config)
    assert (spec.hash, spec.num_players, spec.max_turns) == (make_spec("full", 3).hash, 3, 7)
    assert (spec.payoff, spec.return_range, spec.disjoint_splits) == ("team", (0.0, 25.0), True)
    assert not HANABI.spec(HANABI.presets["laptop"]).disjoint_splits
    assert "You are player_2 in a game of Hanabi for 3 players" in HANABI.system(config, 2)
    one, other = (
        HANABI.start_id(HANABI.presets[name], split="eval", seed=1)
        for name in ("laptop", "marshal-mini")
    )
    assert one == other
    assert one != HANABI.start_id(HANABI.presets["laptop"], split="eval", seed=2)


def test_an_illegal_move_is_refused_by_the_game_and_read_in_words_that_no_legal_one_has() -> None:
    game = HANABI.reset(
        HANABI.Config(preset="laptop", observation="compact"), split="train", seed=5
    )
    assert "Hint R" in game.legal(0)
    assert game.parse(0, "Hint R") == game.parse(0, "Hint player_1 red") == "Hint R"
    assert game.parse(0, "Hint player_0 R") == "Hint player_0 red"
    assert game.legal(1) == ()
    with pytest.raises(IllegalActionError, match="Hint player_0 red: not legal for player_0 now"):
        game.step({0: "Hint player_0 red"})
    with pytest.raises(IllegalActionError, match=r"player 1: 'Play 0': choose one of \(\)"):
        game.step({1: "Play 0"})
    assert game.result() == {"score": 0, "score_kept": 0, "bombed": 0}


def test_a_replay_shows_every_hand_and_the_move_that_took_the_place_of_a_bad_reply() -> None:
    task = Task(environment=HANABI, config=HANABI.presets["laptop"], split="eval", seed=1)
    referee = Referee(task)
    referee.step({0: "Hint player_1 1"})
    referee.step({1: "nonsense"})
    while referee.status is None:
        referee.step({referee.to_act()[0]: "Play 0"})
    frames = list(HANABI.render(task.config, referee.episode()))
    first = HANABI.reset(task.config, split="eval", seed=1).table.hands
    hands = [
        f"  player_{seat}  {' '.join(f'{card}(RY 12)' for card in first[seat])}"
        for seat in range(2)
    ]
    assert frames[0].text.splitlines()[1:3] == hands
    assert frames[0].text.splitlines()[3].startswith("player_0 hints player_1 rank 1: slot")
    assert len(frames) == len(referee.episode().turns) + 1
    assert frames[-1].title.endswith("points on the table")


@settings(deadline=None)
@given(board=st.sampled_from(ALL_BOARDS), seed=st.integers(0, 2**32), careful=st.booleans())
def test_rewards_add_up_to_the_weighted_score_of_the_bomb_rule(
    board: tuple[str, int], seed: int, careful: bool
) -> None:
    rng, totals = random.Random(seed), {}
    table = Game(make_spec(*board), shuffled_deck(make_spec(*board), "train", seed))
    while not table.is_over:
        table.apply(random_move(table, rng, careful=careful))
    for rule in ("zero", "keep"):
        config = HANABI.Config.parse(
            {"preset": board[0], "players": board[1], "bomb_rule": rule, "reward_score": 0.5}
        )
        game = HanabiGame(config, Game(table.spec, table.deck))
        paid = []
        for event in table.events:
            parts = game.step(
                {event.player: format_action(event.action, style="full", num_players=board[1])}
            )
            assert all(one == parts[0] for one in parts) and set(parts[0]) <= {"score", "bomb"}
            paid += parts[0].values()
        totals[rule] = sum(paid)
    assert totals == {"zero": 0.5 * table.score, "keep": 0.5 * table.score_kept}
