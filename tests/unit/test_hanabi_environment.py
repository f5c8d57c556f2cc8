"""Hanabi behind the interface of environments: prompts, moves, rewards and results."""

import asyncio
import hashlib
import json
import random
from dataclasses import dataclass
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
from hanabi_grpo.envs.hanabi.rules.presets import recorded_spec
from hanabi_grpo.envs.referee import Referee, play_scripts
from hanabi_grpo.errors import IllegalActionError
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.types import Reply
from made_games import play_episodes_sync

REPLIES = (
    "Play 0",
    "Discard 0",
    "Hint R",
    "Hint 1",
    "Hint player_1 1",
    "Hint player_0 red",
    "hint player_1 G",
    "Play 7",
    "",
    "?",
    "<think>Play 1",
    "<think>x</think>My move: **Play 1**",
    "\ud800",
    "Play 0\nDiscard 0",
    "Discard 1.",
)

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"observation": "compact", "bomb_rule": "keep", "reward_illegal": -0.1},
    {"legal_moves": False, "max_turns": 3, "reward_score": 2.0},
    {"observation": "compact", "legal_moves": False, "reward_out_of_tokens": -2.0},
)
OUT_OF_TOKENS_OPTION = 3
"""The option under which players run out of tokens at their second turn."""


@dataclass
class Talker:
    """A player that gives replies drawn from `REPLIES` and may run out of tokens."""

    seed: int
    max_replies: int = 1000
    """Replies before it runs out of tokens."""
    name: str = "talker"
    num_replies: int = 0

    def seat(self, player: int, **_: Any) -> "Talker":
        return Talker(self.seed + player, self.max_replies)

    async def reply(self, seen: Observation) -> Reply:
        self.num_replies += 1
        text = random.Random(f"{self.seed} {self.num_replies}").choice(REPLIES)
        out_of_tokens = self.num_replies > self.max_replies
        return Reply(text=text, prompt=seen.message(), out_of_tokens=out_of_tokens)


def digest(values: list[Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def test_prompts_moves_rewards_and_results_are_those_of_version_0_1_on_every_board() -> None:
    records = []
    for preset, players in ALL_BOARDS:
        for number, options in enumerate(OPTIONS):
            config = HANABI.Config.parse({"preset": preset, "players": players, **options})
            max_replies = 1 if number == OUT_OF_TOKENS_OPTION else 1000
            talker = Talker(seed=number, max_replies=max_replies)
            task = Setup(HANABI, config).task("train", 11 + number)
            episode = asyncio.run(play_episode(task, [talker] * players, game=number))
            turns = [
                [turn.player, turn.prompt, turn.reply, turn.action, turn.kind.value]
                for turn in episode.turns
            ]
            score = episode.result["score"]
            score_kept = episode.result["score_kept"]
            returns = [round(episode.reward(player), 6) for player in range(players)]
            records.append([preset, players, number, turns, score, score_kept, returns])
    assert len(records) == 88
    assert digest(records) == "336457036fa828e9"


def test_scripts_make_these_moves() -> None:
    records = []
    # Hat bots do not play with two, see `test_hat_bot`. A bot that thinks aloud makes the same
    # moves, see `test_thoughts_of_bots`.
    scripts = []
    for name in HANABI.policies:
        if name not in (*PLANNERS, "hat-bot", "plain-hat-bot") and not name.endswith("-aloud"):
            scripts.append(name)
    for name in scripts:
        for preset, players in (("mini", 3), ("full", 2)):
            setup = Setup(HANABI, HANABI.Config(preset=preset, players=players))
            team = [make_script(setup, name)] * players
            for episode in play_episodes_sync(setup, team, "eval", range(5)):
                moves = [turn.action for turn in episode.turns]
                records.append([name, preset, episode.result["score"], moves])
                policies = dict.fromkeys(range(players), HANABI.policies[name]())
                assert play_scripts(setup.task("eval", episode.seed), policies) == episode
    assert len(records) == 90
    assert digest(records) == "d2ee1d5f1a5f8037"


def test_games_that_end_otherwise_have_other_hashes() -> None:
    plain = {"preset": "full", "players": 2}
    changes: list[dict[str, Any]] = [{}, {"max_turns": 20}, {"bomb_rule": "keep"}]
    hashes = {HANABI.spec(HANABI.Config(**plain, **change)).hash for change in changes}
    assert len(hashes) == 3
    for spec_hash in hashes:
        assert recorded_spec("full", 2, spec_hash) == make_spec("full", 2)
    # A limit that is the board's own changes nothing, and neither do rewards.
    board = make_spec("full", 2)
    for change in ({"max_turns": board.max_turns}, {"reward_score": 10.0}):
        assert HANABI.spec(HANABI.Config(**plain, **change)).hash == board.hash


def test_a_preset_keeps_its_name_only_for_the_players_that_it_supports() -> None:
    config = HANABI.Config(preset="marshal-full", players=3, hand_size=5)
    spec = HANABI.spec(config)
    assert spec.preset.startswith("3x3-hand5-")
    assert recorded_spec(spec.preset, 3, spec.hash) == config.spec()


def test_the_spec_is_that_of_the_board() -> None:
    config = HANABI.Config(preset="full", players=3, max_turns=7)
    spec = HANABI.spec(config)
    assert spec.hash == make_spec("full", 3).hash + "-turns7"
    assert spec.num_players == 3
    assert spec.max_turns == 7
    assert spec.payoff == "team"
    assert spec.return_range == (0.0, 25.0)
    assert spec.disjoint_splits
    assert not HANABI.spec(HANABI.presets["laptop"]).disjoint_splits
    assert "You are player_2 in a game of Hanabi for 3 players" in HANABI.system(config, 2)


def test_starts_are_named_by_their_deck() -> None:
    laptop = HANABI.presets["laptop"]
    same_deck = HANABI.presets["marshal-mini"]
    start = HANABI.start_id(laptop, split="eval", seed=1)
    assert start == HANABI.start_id(same_deck, split="eval", seed=1)
    assert start != HANABI.start_id(laptop, split="eval", seed=2)


def test_an_illegal_move_is_refused_by_the_game_and_read_in_words_that_no_legal_one_has() -> None:
    config = HANABI.Config(preset="laptop", observation="compact")
    game = HANABI.reset(config, split="train", seed=5)
    assert "Hint R" in game.legal(0)
    assert game.parse(0, "Hint R") == "Hint R"
    assert game.parse(0, "Hint player_1 red") == "Hint R"
    assert game.parse(0, "Hint player_0 R") == "Hint player_0 red"
    assert game.legal(1) == ()
    with pytest.raises(IllegalActionError, match="Hint player_0 red: not legal for player_0 now"):
        game.step({0: "Hint player_0 red"})
    message = r"player 1: 'Play 0' is not legal now; choose one of \(\)"
    with pytest.raises(IllegalActionError, match=message):
        game.step({1: "Play 0"})
    assert game.result() == {"score": 0, "score_kept": 0, "bombed": 0}


def test_a_replay_shows_every_hand_and_the_move_that_took_the_place_of_a_bad_reply() -> None:
    task = Task(environment=HANABI, config=HANABI.presets["laptop"], split="eval", seed=1)
    referee = Referee(task)
    referee.step({0: "Hint player_1 1"})
    referee.step({1: "nonsense"})
    while referee.status is None:
        [player] = referee.to_act()
        referee.step({player: "Play 0"})
    frames = list(HANABI.render(task.config, referee.episode()))
    first_hands = HANABI.reset(task.config, split="eval", seed=1).table.hands
    hand_lines = []
    for seat in range(2):
        cards = [f"{card}(RY 12)" for card in first_hands[seat]]
        hand_lines.append(f"  player_{seat}  {' '.join(cards)}")
    _, *hands, move = frames[0].text.splitlines()
    assert hands == hand_lines
    assert move.startswith("player_0 hints player_1 rank 1: slot")
    assert len(frames) == len(referee.episode().turns) + 1
    assert frames[-1].title.endswith("points on the table")


@settings(deadline=None)
@given(board=st.sampled_from(ALL_BOARDS), seed=st.integers(0, 2**32), careful=st.booleans())
def test_rewards_add_up_to_the_weighted_score_of_the_bomb_rule(
    board: tuple[str, int], seed: int, careful: bool
) -> None:
    preset, players = board
    rng = random.Random(seed)
    spec = make_spec(preset, players)
    table = Game(spec, shuffled_deck(spec, "train", seed))
    while not table.is_over:
        table.apply(random_move(table, rng, careful=careful))
    for bomb_rule, score in (("zero", table.score), ("keep", table.score_kept)):
        config = HANABI.Config.parse(
            {"preset": preset, "players": players, "bomb_rule": bomb_rule, "reward_score": 0.5}
        )
        game = HanabiGame(config, Game(table.spec, table.deck))
        total = 0.0
        for event in table.events:
            text = format_action(event.action, style="full", num_players=players)
            parts = game.step({event.player: text})
            assert list(parts) == [parts[0]] * players
            assert set(parts[0]) <= {"score", "bomb"}
            total += sum(parts[0].values())
        assert total == 0.5 * score
