"""Other-Play: each player sees Hanabi's colours in an order of its own, and it is the same game."""

import math
import random
from typing import Any

import pytest

from boards import random_game
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.conformance import (
    ConformanceError,
    check_games,
    check_replies,
    check_starts,
    check_symmetries,
)
from hanabi_grpo.envs.hanabi.environment import HANABI, Hanabi
from hanabi_grpo.envs.hanabi.replays.timeline import make_timeline
from hanabi_grpo.envs.hanabi.rules import Game, make_spec
from hanabi_grpo.envs.hanabi.rules.symmetries import num_relabelings, relabeling
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.referee import play_scripts


def setup(preset: str = "laptop", **fields: Any) -> Any:
    return registry.setup("hanabi", {"preset": preset, "observation": "compact", **fields})


@pytest.mark.parametrize(
    ("preset", "players", "observation"),
    [("laptop", 2, "compact"), ("full", 2, "full"), ("full", 4, "compact"), ("mini", 3, "full")],
)
def test_the_renamed_game_is_the_same_game(preset: str, players: int, observation: str) -> None:
    config = setup(preset, players=players, observation=observation, deductions="counted").config
    check_symmetries(HANABI, config, num_episodes=8)


@pytest.mark.parametrize(("preset", "players"), [("full", 2), ("laptop", 2), ("mini", 3)])
def test_a_game_of_other_play_passes_every_check_and_hides_how_anybody_sees_it(
    preset: str, players: int
) -> None:
    """The smallest boards, too, on which a deck is dealt again and again."""
    config = setup(preset, players=players, other_play=True, deductions="joined").config
    report = check_games(HANABI, config, num_episodes=6)
    check_starts(HANABI, config)
    check_replies(HANABI, config, num_episodes=6)
    assert report.secrets["own colours"] > 10
    assert report.secrets["others' colours"] > 10


def test_a_start_of_other_play_is_named_by_its_deck_and_each_players_order_of_colours() -> None:
    played = setup("laptop", other_play=True)
    names = set()
    for seed in range(9):
        name = HANABI.start_id(played.config, split="train", seed=seed)
        deck, *orders = name.split("-")
        assert deck == HANABI.start_id(setup("laptop").config, split="train", seed=seed)
        game = HANABI.reset(played.config, split="train", seed=seed)
        assert orders == ["".join(map(str, order.seen)) for order in game.relabelings]
        episode = play_scripts(
            played.task("train", seed), dict.fromkeys(range(2), make_script(played, "iggi").policy)
        )
        _, recorded = HANABI.recorded(setup("laptop").config, Recording(episode=episode))
        assert recorded == name
        names.add(tuple(orders))
    assert names == {("01", "01"), ("01", "10"), ("10", "01"), ("10", "10")}


def test_no_score_is_known_to_be_attainable_in_games_that_the_best_known_teams_did_not_play() -> (
    None
):
    assert setup("laptop").spec.attainable == 4443 / 1120
    bound = setup("laptop").spec.max_turns
    assert setup("laptop", max_turns=bound).spec.attainable == 4443 / 1120
    assert setup("laptop", max_turns=bound - 1).spec.attainable is None
    assert setup("laptop", other_play=True).spec.attainable is None


def test_the_numbers_name_every_order_of_colours_once_and_each_is_undone() -> None:
    orders = [relabeling(number, 4) for number in range(num_relabelings(4))]
    assert len({order.seen for order in orders}) == math.factorial(4)
    assert orders[0].is_identity
    view = random_game(make_spec("full", 2), random.Random(1)).view(0)
    for number in (0, 7, 119):
        order = relabeling(number, 5)
        assert order.inverse.view(order.view(view)) == view
    assert relabeling(7, 5).view(view) != view
    with pytest.raises(
        ValueError, match="symmetry 24: 4 colours have 24 symmetries, numbered from 0"
    ):
        relabeling(24, 4)


class Lopsided(Hanabi):
    """Words moves of a symmetry wrongly."""

    name = "hanabi"

    def worded_under(self, config: Any, action: str, symmetry: int) -> str:
        return action


def test_a_wrong_renaming_is_found() -> None:
    with pytest.raises(ConformanceError, match="legal actions"):
        check_symmetries(Lopsided(), setup("full").config, num_episodes=4)


class Peeking(Hanabi):
    """Shows a player the table in the colours of player 0."""

    def seen_under(self, config: Any, game: Any, symmetries: Any) -> Any:
        return super().seen_under(config, game, [symmetries[0]] * len(symmetries))


def test_a_message_that_depends_on_another_players_symmetry_is_found() -> None:
    with pytest.raises(ConformanceError, match=r"only on its own symmetry|legal actions"):
        check_symmetries(Peeking(), setup("full").config, num_episodes=4)


def test_players_of_a_task_see_orders_of_their_own_and_episodes_of_a_group_the_same() -> None:
    played = setup("full", other_play=True)
    seen = set()
    for seed in range(30):
        games = [played.environment.reset(played.config, split="train", seed=seed) for _ in "ab"]
        first, second = (game.relabelings for game in games)
        assert first == second
        seen.add(tuple(order.seen for order in first))
    assert len(seen) > 28
    assert any(mine != other for mine, other in seen)
    assert played.spec.hash == setup("full").spec.hash + "-otherplay"
    assert setup("full").config.model_dump() == setup("full", other_play=False).config.model_dump()
    assert "other_play" not in setup("full").config.model_dump()


@pytest.mark.parametrize(
    ("script", "players"),
    [("iggi", 2), ("focus-bot", 2), ("save-bot", 2), ("piers", 2), ("hat-bot", 4)],
)
def test_bots_without_colour_conventions_play_as_well_and_their_games_are_replayed(
    script: str, players: int
) -> None:
    scores: dict[bool, list[float]] = {True: [], False: []}
    for other_play in scores:
        played = setup("full", other_play=other_play, players=players)
        policy = make_script(played, script).policy
        for seed in range(40):
            task = played.task("train", seed)
            episode = play_scripts(task, dict.fromkeys(range(players), policy))
            scores[other_play].append(episode.result["score"])
            timeline = make_timeline(Recording(episode=episode))
            assert timeline.game.score_kept == episode.result["score_kept"]
    plain = sum(scores[False]) / 40
    assert sum(scores[True]) / 40 == pytest.approx(plain, abs=2.0)
    assert plain > 10


@pytest.mark.parametrize("other_play", [False, True])
def test_a_recorded_game_is_played_again_in_the_colours_in_which_it_was_played(
    other_play: bool,
) -> None:
    """Whatever the setup says whose players learn from it."""
    played = setup("full", other_play=other_play)
    learners = setup("full", other_play=not other_play)
    policy = make_script(played, "iggi").policy
    for seed in range(5):
        episode = play_scripts(played.task("train", seed), dict.fromkeys(range(2), policy))
        game, _ = learners.environment.recorded(learners.config, Recording(episode=episode))
        original = played.environment.reset(played.config, split="train", seed=seed)
        for turn in episode.turns:
            assert game.message(turn.player) == original.message(turn.player)
            assert turn.action in game.legal(turn.player)
            game.step({turn.player: turn.action})
            original.step({turn.player: turn.action})
        assert game.result() == episode.result


def test_a_message_that_is_rebuilt_for_a_replay_has_the_colours_of_its_player() -> None:
    played = setup("full", observation="full", legal_moves=False, other_play=True)
    policy = make_script(played, "iggi").policy
    task = played.task("train", 2)
    episode = play_scripts(task, dict.fromkeys(range(2), policy))
    game = played.environment.reset(played.config, split="train", seed=2)
    assert not any(order.is_identity for order in game.relabelings)
    timeline = make_timeline(Recording(episode=episode))
    for turn, move in zip(episode.turns, timeline.moves, strict=True):
        assert turn.prompt == ""
        assert move.prompt == game.message(turn.player)
        game.step({turn.player: turn.action})


def test_a_reply_means_the_card_that_its_player_sees() -> None:
    table = Game(make_spec("full", 2), random_game(make_spec("full", 2), random.Random(0)).deck)
    game = HANABI.seen_under(setup("full").config, _at(table), [119, 0])
    hint = next(text for text in game.legal(0) or () if text in ("Hint R", "Hint B"))
    game.step({0: hint})
    [event] = game.table.view(1).events
    seen = {"R": 0, "B": 4}[hint[-1]]
    # Symmetry 119 reverses the colours.
    assert event.action.value == 4 - seen
    assert game.view(0).events[-1].action.value == seen


def _at(table: Game) -> Any:
    from hanabi_grpo.envs.hanabi.environment import HanabiGame

    return HanabiGame(setup("full").config, table)
