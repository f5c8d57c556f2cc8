"""Hanabi behind the interface of environments is the Hanabi of `rollout.loop`: prompts, moves, rewards, results."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from boards import ALL_BOARDS
from hanabi_grpo.envs.base import Task
from hanabi_grpo.envs.hanabi.environment import HANABI, HanabiScript
from hanabi_grpo.envs.hanabi.policies import SCRIPTED, make_policy
from hanabi_grpo.envs.hanabi.rules import PlayerView, make_spec
from hanabi_grpo.envs.referee import Referee, play_scripts
from hanabi_grpo.errors import IllegalActionError
from hanabi_grpo.rollout.loop import play_episode, play_episodes_sync
from hanabi_grpo.types import Episode, EpisodeStatus, Reply

REPLIES = (
    *("Play 0", "Discard 0", "Hint R", "Hint 1", "Hint player_1 1", "Hint player_0 red", "hint player_1 G", "Play 7"),
    *("", "?", "<think>Play 1", "<think>x</think>My move: **Play 1**", "\ud800", "Play 0\nDiscard 0", "Discard 1."),
)


@dataclass
class Talker:
    """A player that says given things, reads what it is shown and may run out of tokens."""

    seed: int
    tokens: int = 1000
    name: str = "talker"
    read: list[str] = field(default_factory=list)

    def seat(self, player: int, **_: Any) -> "Talker":
        return Talker(self.seed + player, self.tokens)

    def say(self, message: str) -> str | None:
        self.read.append(message)
        return random.Random(f"{self.seed} {len(self.read)}").choice(REPLIES) if len(self.read) <= self.tokens else None

    async def reply(self, view: PlayerView, prompt: Callable[[], str]) -> Reply:
        message = prompt()
        text = self.say(message)
        return Reply(text=text or "", prompt=message, out_of_tokens=text is None)


def through_the_interface(task: Task[Any], talker: Talker, number: int) -> tuple[Referee, list[str]]:
    """Play with nothing but `Environment` and `Game`, as a loop for every environment would."""
    referee = Referee(task, number=number)
    seats = [talker.seat(player) for player in range(referee.spec.num_players)]
    prompts = []
    while referee.status is None:
        replies = {}
        for player in referee.to_act():
            message = referee.see(player).message()
            text = seats[player].say(message)
            if text is None:
                referee.out_of_tokens(player)
                break
            prompts.append(message)
            replies[player] = text
        else:
            referee.step(replies)
    return referee, prompts


def flattened(episode: Episode) -> list[tuple[Any, ...]]:
    return [(turn.player, turn.action, turn.kind, dict(turn.rewards)) for turn in episode.turns]


def flattened_steps(referee: Referee) -> list[tuple[Any, ...]]:
    steps = referee.played().steps
    return [(m.player, m.action, m.kind, dict(step.rewards[m.player])) for step in steps for m in step.moves]


@pytest.mark.parametrize(("preset", "players"), ALL_BOARDS)
def test_both_paths_play_the_same_games(preset: str, players: int) -> None:
    for number, options in enumerate(
        [
            {},
            {"observation": "compact", "bomb_rule": "keep", "reward_illegal": -0.1},
            {"legal_moves": False, "max_turns": 3, "reward_score": 2.0},
            {"observation": "compact", "legal_moves": False, "reward_out_of_tokens": -2.0},
        ]
    ):
        config = HANABI.Config.parse({"preset": preset, "players": players, **options})
        talker = Talker(seed=number, tokens=1 if number == 3 else 1000)
        where = {"suite": "train", "seed": 11 + number, "game": number}
        episode = asyncio.run(play_episode(config, [talker] * players, **where))  # type: ignore[arg-type]
        task = Task(environment=HANABI, config=config, split="train", seed=11 + number)
        referee, prompts = through_the_interface(task, talker, number)
        assert prompts == [turn.prompt for turn in episode.turns]
        assert flattened_steps(referee) == flattened(episode)
        result = referee.game.result()
        assert (result["score"], result["score_kept"]) == (episode.score, episode.score_kept)
        assert (episode.status is EpisodeStatus.BOMBED) is (result["bombed"] == 1)
        expected = EpisodeStatus.FINISHED if episode.status is EpisodeStatus.BOMBED else episode.status
        assert referee.status is expected
        for player in range(players):
            assert referee.played().reward(player) == pytest.approx(episode.reward(player))


@pytest.mark.parametrize(
    ("tokens", "max_turns", "status", "price"),
    [(2, 0, EpisodeStatus.TRUNCATED_TOKENS, -0.5), (9, 2, EpisodeStatus.TRUNCATED_TURNS, 0.0)],
)
def test_both_paths_cut_a_game_in_the_same_way(
    tokens: int, max_turns: int, status: EpisodeStatus, price: float
) -> None:
    config = HANABI.Config(preset="full", max_turns=max_turns)
    talker = Talker(seed=5, tokens=tokens)
    episode = asyncio.run(play_episode(config, [talker] * 2, suite="eval", seed=1))  # type: ignore[arg-type]
    referee, _ = through_the_interface(Task(environment=HANABI, config=config, split="eval", seed=1), talker, 0)
    assert referee.status is episode.status is status
    assert flattened_steps(referee) == flattened(episode)
    assert referee.played().reward(0, "out_of_tokens") == price


@pytest.mark.parametrize("name", SCRIPTED)
def test_scripts_play_the_same_games_on_both_paths(name: str) -> None:
    config = HANABI.Config(preset="mini", players=3)
    for episode in play_episodes_sync(config, [make_policy(name)] * 3, "eval", range(5)):
        task = Task(environment=HANABI, config=config, split="eval", seed=episode.seed)
        played = play_scripts(task, dict.fromkeys(range(3), HANABI.policies[name]()))
        assert [move.action for step in played.steps for move in step.moves] == [turn.action for turn in episode.turns]
        assert played.result["score"] == episode.score


def test_spec_system_and_starts_are_those_of_the_board() -> None:
    config = HANABI.Config(preset="full", players=3, max_turns=7)
    spec = HANABI.spec(config)
    assert (spec.hash, spec.num_players, spec.max_turns) == (make_spec("full", 3).hash, 3, 7)
    assert (spec.payoff, spec.return_range, spec.disjoint_splits) == ("team", (0.0, 25.0), True)
    assert not HANABI.spec(HANABI.presets["laptop"]).disjoint_splits
    assert "You are player_2 in a game of Hanabi for 3 players" in HANABI.system(config, 2)
    one, other = (HANABI.start_id(HANABI.presets[name], split="eval", seed=1) for name in ("laptop", "marshal-mini"))
    assert one == other
    assert one != HANABI.start_id(HANABI.presets["laptop"], split="eval", seed=2)


def test_an_illegal_move_is_refused_by_the_game_and_read_in_words_that_no_legal_one_has() -> None:
    game = HANABI.reset(HANABI.Config(preset="laptop", observation="compact"), split="train", seed=5)
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
    frames = list(HANABI.render(task.config, referee.played()))
    first = HANABI.reset(task.config, split="eval", seed=1).table.hands
    assert frames[0].text.splitlines()[1:3] == [
        f"player_{seat} holds {' '.join(map(str, first[seat]))}" for seat in range(2)
    ]
    assert frames[0].text.endswith("player_0: Hint player_1 1")
    assert frames[1].text.endswith("(in place of a reply that was unparsable)")
    assert frames[-1].title.endswith("points on the table")
    assert HanabiScript(make_policy("iggi")).name == "iggi"
