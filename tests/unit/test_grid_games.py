"""FrozenLake and Sokoban: maps that can be solved, and what walking on them does."""

import pytest

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.conformance import check
from hanabi_grpo.envs.grid.frozen_lake import FROZEN_LAKE, FrozenLakeConfig, FrozenLakeGame
from hanabi_grpo.envs.grid.sokoban import Place, SokobanConfig, SokobanGame
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.errors import SettingsError


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("preset", ["frozen_lake", "frozen_lake-slippery", "sokoban", "sokoban-2"])
def test_a_game_on_a_grid_does_what_the_interface_says(preset: str, style: str) -> None:
    environment = registry.get(preset.partition("-")[0])
    config = environment.presets[preset].model_copy(update={"style": style})
    report = check(environment, config, num_episodes=4)
    assert bool(report.secrets) is (preset == "frozen_lake-slippery")


@pytest.mark.parametrize(
    ("env", "randomly"), [("frozen_lake", (0.02, 0.09)), ("sokoban", (0.06, 0.15))]
)
def test_every_map_has_a_way_and_random_walks_rarely_find_it(
    env: str, randomly: tuple[float, float]
) -> None:
    environment = registry.get(env)
    setup = registry.setup(env, environment.presets[env].model_dump())
    shares = {
        name: sum(
            play_scripts(setup.task("eval", seed), {0: environment.policies[name]()}).result[
                "success"
            ]
            for seed in range(1000)
        )
        / 1000
        for name in ("bfs", "random")
    }
    assert shares["bfs"] == 1.0 and randomly[0] < shares["random"] < randomly[1]


def test_a_lake_holds_at_its_edge_and_ends_in_holes_and_at_the_goal() -> None:
    config = FrozenLakeConfig(preset="frozen_lake", size=3)
    game = FrozenLakeGame(config, ("SFF", "HFF", "FFG"), ())
    game.step({0: "Up"})
    assert game.rows() == ("PFF", "HFF", "FFG") and game.to_act() == (0,)
    other = game.copy()
    assert (
        other.step({0: "Down"}) == [{}]
        and other.to_act() == ()
        and other.result() == {"success": 0.0, "moves": 2.0}
    )
    for move in ("Right", "Down", "Down"):
        game.step({0: move})
    assert game.step({0: "Right"}) == [{"goal": 1.0}] and game.to_act() == ()


def test_on_ice_a_move_goes_to_either_side_as_often_as_ahead() -> None:
    config = FrozenLakeConfig(preset="frozen_lake", slippery=True)
    slips = [
        slip
        for seed in range(200)
        for slip in FROZEN_LAKE.reset(config, split="train", seed=seed).slips
    ]
    assert all(abs(slips.count(side) / len(slips) - 1 / 3) < 0.03 for side in (-1, 0, 1))
    ahead = FrozenLakeGame(config, ("SFFF", "FFFF", "FFFF", "FFFG"), (1, -1, 0))
    for move, rows in (("Down", "SPFF"), ("Left", "SPFF"), ("Down", "SFFF")):
        ahead.step({0: move})
        assert ahead.rows()[0] == rows


def test_boxes_are_pushed_one_at_a_time_and_never_through_a_wall() -> None:
    config = SokobanConfig(preset="sokoban", size=4, boxes=2)
    goals = frozenset({(0, 3), (3, 3)})
    game = SokobanGame(config, goals, Place((0, 0), frozenset({(0, 1), (0, 2)})))
    game.step({0: "Right"})
    assert game.rows()[1] == "#@$$.#", "two boxes in a row do not move"
    game = SokobanGame(config, goals, Place((0, 1), frozenset({(0, 2), (3, 2)})))
    for move in ("Right", "Right"):
        game.step({0: move})
    assert game.rows() == ("######", "#--@*#", "#----#", "#----#", "#--$.#", "######")
    for move in ("Left", "Down", "Down", "Down"):
        game.step({0: move})
    assert game.step({0: "Right"}) == [{"goal": 1.0}] and game.to_act() == ()


def test_several_moves_in_one_reply_are_made_until_the_game_ends() -> None:
    config = FrozenLakeConfig(preset="frozen_lake", size=3, actions_per_reply=3)
    game = FrozenLakeGame(config, ("SFF", "FFF", "FFG"), ())
    assert game.parse(0, "I go.\nAnswer: down || Down||right") == "Down||Down||Right"
    assert game.parse(0, "Down||Down||Right||Right") is None and game.parse(0, "Down||jump") is None
    game.step({0: "Down||Down||Right"})
    assert game.step({0: "Right||Up||Up"}) == [{"goal": 1.0}] and game.num_moves == 4


def test_impossible_sizes_are_refused() -> None:
    for env, fields, said in (
        ("frozen_lake", {"size": 1}, "size=1: Input should be"),
        ("sokoban", {"boxes": 7}, "1 to 6"),
    ):
        with pytest.raises(SettingsError, match=said):
            registry.setup(env, {"preset": env, **fields})
