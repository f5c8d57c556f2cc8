"""FrozenLake and Sokoban: maps that can be solved, and what walking on them does."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.conformance import check
from hanabi_grpo.envs.grid.frozen_lake import FROZEN_LAKE, FrozenLakeConfig, FrozenLakeGame
from hanabi_grpo.envs.grid.maze import shortest
from hanabi_grpo.envs.grid.sokoban import SOKOBAN, Position, SokobanConfig, SokobanGame
from hanabi_grpo.envs.referee import Referee, play_scripts
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import load_settings

NUM_GAMES = 1000


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("preset", ["frozen_lake", "frozen_lake-slippery", "sokoban", "sokoban-2"])
def test_a_game_on_a_grid_does_what_the_interface_says(preset: str, style: str) -> None:
    environment = registry.get(preset.partition("-")[0])
    config = environment.presets[preset].model_copy(update={"style": style})
    report = check(environment, config, num_episodes=4)
    assert bool(report.secrets) is (preset == "frozen_lake-slippery")


def success_share(setup: Setup, script: str) -> float:
    """Return the share of games that a script wins."""
    policy = setup.environment.policies[script]()
    num_won = 0.0
    for seed in range(NUM_GAMES):
        episode = play_scripts(setup.task("eval", seed), {0: policy})
        num_won += episode.result["success"]
    return num_won / NUM_GAMES


@pytest.mark.parametrize(
    ("env", "least", "greatest"), [("frozen_lake", 0.02, 0.09), ("sokoban", 0.06, 0.15)]
)
def test_every_map_has_a_way_and_random_walks_rarely_find_it(
    env: str, least: float, greatest: float
) -> None:
    setup = registry.setup(env, registry.get(env).presets[env].model_dump())
    assert success_share(setup, "bfs") == 1.0
    assert least < success_share(setup, "random") < greatest


def test_a_lake_of_too_many_holes_has_a_way_frozen_on_it_within_seconds() -> None:
    setup = registry.setup("frozen_lake", {"preset": "frozen_lake", "size": 10, "frozen": 0.3})
    start = time.monotonic()
    for seed in range(2):
        episode = play_scripts(setup.task("eval", seed), {0: FROZEN_LAKE.policies["bfs"]()})
        assert episode.result == {"success": 1.0, "moves": 18.0}
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(("size", "boxes", "pulls"), [(10, 25, 200), (5, 6, 6)])
def test_a_room_full_of_boxes_is_drawn_within_seconds_and_is_not_solved(
    size: int, boxes: int, pulls: int
) -> None:
    fields = {"preset": "sokoban", "size": size, "boxes": boxes, "pulls": pulls}
    setup = registry.setup("sokoban", fields)
    start = time.monotonic()
    for _ in range(16):
        assert Referee(setup.task("train", 0)).to_act() == (0,)
    assert time.monotonic() - start < 10


def test_maps_stay_those_of_their_seeds() -> None:
    lake = registry.setup("frozen_lake", {"preset": "frozen_lake"}).task("train", 0)
    assert Referee(lake).game.state_message(0) == "PFFH\nFFHH\nFFFF\nFFFG"
    room = registry.setup("sokoban", {"preset": "sokoban"}).task("train", 0)
    assert Referee(room).game.rows() == (
        "#######",
        "#.----#",
        "#---@-#",
        "#-----#",
        "#$----#",
        "#-----#",
        "#######",
    )


def test_a_lake_holds_at_its_edge_and_ends_in_holes_and_at_the_goal() -> None:
    config = FrozenLakeConfig(preset="frozen_lake", size=3)
    game = FrozenLakeGame(config, ("SFF", "HFF", "FFG"), ())
    game.step({0: "Up"})
    assert game.rows() == ("PFF", "HFF", "FFG")
    assert game.to_act() == (0,)

    in_a_hole = game.copy()
    assert in_a_hole.step({0: "Down"}) == [{}]
    assert in_a_hole.to_act() == ()
    assert in_a_hole.result() == {"success": 0.0, "moves": 2.0}

    for move in ("Right", "Down", "Down"):
        game.step({0: move})
    assert game.step({0: "Right"}) == [{"goal": 1.0}]
    assert game.to_act() == ()


def test_on_ice_a_move_goes_to_either_side_as_often_as_ahead() -> None:
    config = FrozenLakeConfig(preset="frozen_lake", slippery=True)
    slips: list[int] = []
    for seed in range(200):
        slips += FROZEN_LAKE.reset(config, split="train", seed=seed).slips
    for side in (-1, 0, 1):
        assert slips.count(side) / len(slips) == pytest.approx(1 / 3, abs=0.03)


def test_a_slip_turns_a_move_to_the_side() -> None:
    config = FrozenLakeConfig(preset="frozen_lake", slippery=True)
    slips = (1, -1, 0)
    game = FrozenLakeGame(config, ("SFFF", "FFFF", "FFFF", "FFFG"), slips)
    game.step({0: "Down"})
    assert game.rows()[0] == "SPFF", "it slipped to the right"
    game.step({0: "Left"})
    assert game.rows()[0] == "SPFF", "it slipped up, where the edge stopped it"
    game.step({0: "Down"})
    assert game.rows()[0] == "SFFF"


def test_two_boxes_in_a_row_do_not_move() -> None:
    config = SokobanConfig(preset="sokoban", size=4, boxes=2)
    goals = frozenset({(0, 3), (3, 3)})
    game = SokobanGame(config, goals, Position((0, 0), frozenset({(0, 1), (0, 2)})))
    game.step({0: "Right"})
    assert game.rows()[1] == "#@$$.#"


def test_a_box_is_pushed_onto_its_goal_and_never_through_a_wall() -> None:
    config = SokobanConfig(preset="sokoban", size=4, boxes=2)
    goals = frozenset({(0, 3), (3, 3)})
    game = SokobanGame(config, goals, Position((0, 1), frozenset({(0, 2), (3, 2)})))
    for move in ("Right", "Right"):
        game.step({0: move})
    assert game.rows() == (
        "######",
        "#--@*#",
        "#----#",
        "#----#",
        "#--$.#",
        "######",
    )
    for move in ("Left", "Down", "Down", "Down"):
        game.step({0: move})
    assert game.step({0: "Right"}) == [{"goal": 1.0}]
    assert game.to_act() == ()


def test_several_moves_in_one_reply_are_made_until_the_game_ends() -> None:
    config = FrozenLakeConfig(preset="frozen_lake", size=3, actions_per_reply=3)
    game = FrozenLakeGame(config, ("SFF", "FFF", "FFG"), ())
    assert game.parse(0, "I go.\nAnswer: down || Down||right") == "Down||Down||Right"
    assert game.parse(0, "Down||Down||Right||Right") is None, "one more than a reply may hold"
    assert game.parse(0, "Down||jump") is None
    game.step({0: "Down||Down||Right"})
    assert game.step({0: "Right||Up||Up"}) == [{"goal": 1.0}]
    assert game.num_moves == 4


def test_a_bad_reply_loses_a_move_where_a_reply_may_hold_several() -> None:
    config = FrozenLakeConfig(preset="frozen_lake", max_moves=3, actions_per_reply=2)
    referee = Referee(Setup(FROZEN_LAKE, config).task("train", 0))
    before = referee.game.state_message(0)
    [turn] = referee.step({0: "I cannot decide."})
    assert (turn.kind, turn.action) == ("unparsable", "<skip>")
    assert turn.rewards == ({"unparsable": -0.5},)
    assert referee.game.state_message(0) == before
    referee.step({0: "Right||Right||Right"})
    [turn] = referee.step({0: "Up || Up"})
    assert (turn.kind, referee.status) == ("legal", "finished")
    assert referee.game.result() == {"success": 0.0, "moves": 3.0}


@pytest.mark.parametrize("env", ["frozen_lake", "sokoban"])
def test_a_game_of_several_actions_a_reply_does_what_the_interface_says(env: str) -> None:
    setup = registry.setup(env, {"preset": env, "actions_per_reply": 3})
    assert check(setup.environment, setup.config, num_episodes=4).num_steps > 10


def test_a_reply_may_hold_as_many_moves_as_the_setting_says() -> None:
    config = FrozenLakeConfig(preset="frozen_lake", actions_per_reply=20)
    game = FrozenLakeGame(config, ("SFFF",) * 4, ())
    plan = ["Right"] * 20
    assert game.parse(0, f"Down\n**{' || '.join(plan)}**") == "||".join(plan)


@pytest.mark.parametrize("env", ["hanabi", "kuhn_poker", "openspiel:2048", "debate"])
def test_no_other_game_takes_several_actions_in_one_reply(env: str, tmp_path: Path) -> None:
    variables = {"HANABI_ENV": env, "HANABI_ACTIONS_PER_REPLY": "3"}
    with pytest.raises(SettingsError, match="it belongs to frozen_lake and sokoban"):
        load_settings(variables, tmp_path)
    assert load_settings({**variables, "HANABI_ENV": "sokoban"}, tmp_path).settings.setup()


@pytest.mark.parametrize(
    ("env", "fields", "message"),
    [
        ("frozen_lake", {"size": 1}, "size=1: Input should be"),
        ("sokoban", {"boxes": 7}, "1 to 6"),
        ("frozen_lake", {"actions_per_reply": 0}, "actions_per_reply=0: Input should be"),
        ("frozen_lake", {"max_moves": 0}, "max_moves=0: Input should be"),
        ("sokoban", {"boxes": 2, "pulls": 1}, "pulls=1: must be at least boxes=2"),
        # A request with it would draw slips for hours.
        ("frozen_lake", {"max_moves": 10**9, "slippery": True}, "max_moves=1000000000: Input"),
    ],
)
def test_impossible_sizes_are_refused(env: str, fields: dict[str, int], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        registry.setup(env, {"preset": env, **fields})


def test_a_search_for_a_path_ends() -> None:
    config = SOKOBAN.Config(preset="sokoban", size=10, boxes=8, pulls=200, max_moves=5)
    assert registry.may_block(Setup(SOKOBAN, config))
    assert "bfs" in SOKOBAN.slow_policies
    visited = 0

    def after(position: int) -> Iterator[tuple[str, int]]:
        nonlocal visited
        visited += 1
        yield "Up", position + 1

    assert shortest(0, after, lambda position: position == 1000, most=500) is None
    assert visited <= 500
    assert shortest(0, after, lambda position: position == 1000, most=2000) == ["Up"] * 1000


def test_starts_that_take_long_to_draw_are_drawn_outside_the_server() -> None:
    lake = FROZEN_LAKE.Config(preset="frozen_lake", size=10, frozen=0.3)
    assert registry.may_block(Setup(FROZEN_LAKE, lake))
    for environment in (FROZEN_LAKE, SOKOBAN):
        for preset in environment.presets.values():
            assert not registry.may_block(Setup(environment, preset))
