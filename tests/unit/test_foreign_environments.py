"""Games of Gymnasium, TextArena and OpenEnv as environments of ours.

They stand the checks of every environment.
"""

import importlib
import random
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete, Text

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Task
from hanabi_grpo.envs.conformance import (
    ConformanceError,
    check,
    check_games,
    check_policies,
    check_replies,
)
from hanabi_grpo.envs.interop import gymnasium_text
from hanabi_grpo.envs.referee import Referee, play_scripts
from hanabi_grpo.envs.wrappers import SeatEnv
from hanabi_grpo.errors import NonFiniteError, SettingsError


class Count(gymnasium.Env[str, int]):
    """Reach 3 by steps of 0 to 2, from where the seed says."""

    observation_space = Text(20)
    action_space = Discrete(3, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(3))
        return f"at {self.at}", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.at += action - 5
        reward = float(self.at == 3)
        terminated = self.at >= 3
        return f"at {self.at}", reward, terminated, False, {}


class Echo(gymnasium.Env[str, str]):
    """Repeats what it is told, and pays what it reads as a number."""

    observation_space = Text(200)
    action_space = Text(200, charset=string.printable)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        return "say something", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return action, float(action) if action == "nan" else 0.0, False, False, {}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    kuhn = registry.setup("kuhn_poker", {"preset": "kuhn_poker"})
    seat = {
        "environment": kuhn.environment,
        "config": kuhn.config,
        "seat": 0,
        "partners": {1: kuhn.environment.policies["random"]()},
    }
    gymnasium.register("Count-v0", entry_point=Count, max_episode_steps=9)
    gymnasium.register("Echo-v0", entry_point=Echo)
    gymnasium.register("KuhnSeat-v0", entry_point=SeatEnv, kwargs=seat)
    gymnasium.register(
        "Numbers-v0", entry_point="gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv"
    )
    yield
    for name in ("Count-v0", "Echo-v0", "KuhnSeat-v0", "Numbers-v0"):
        del gymnasium.registry[name]
    registry._load.cache_clear()


def task(name: str, seed: int = 0, **other: Any) -> Task[Any]:
    environment = registry.get(name)
    config = next(iter(environment.presets.values())).model_copy(update=other)
    return Task(environment=environment, config=config, split="eval", seed=seed)


def test_a_text_environment_of_gymnasium_passes_the_checks_of_every_environment() -> None:
    for name in ("gymnasium:Count-v0", "gymnasium:KuhnSeat-v0"):
        start = task(name, least_return=-9.0, greatest_return=9.0)
        report = check(start.environment, start.config, num_episodes=5)
        assert report.num_copies == report.num_steps > 4


class OtherCount(Count):
    """Another environment that a package may register by the same name."""

    def __init__(self, first: int = 5, partner: object = None) -> None:
        self.action_space = Discrete(3, start=first)


def test_games_of_gymnasium_with_one_name_differ_in_their_hash_or_their_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashes = []
    packages = {"test_foreign_environments": ["text-games"]}
    for entry_point, kwargs, version in (
        (Count, {}, "1.0"),
        (OtherCount, {}, "1.0"),
        (OtherCount, {"first": 6}, "1.0"),
        (OtherCount, {"partner": [object()]}, "1.0"),
        # The address of an object in memory is not part of the game.
        (OtherCount, {"partner": [object()]}, "1.0"),
        (Count, {}, "1.1"),
    ):
        monkeypatch.setattr(gymnasium_text.metadata, "packages_distributions", lambda: packages)
        monkeypatch.setattr(gymnasium_text.metadata, "version", lambda name, now=version: now)
        del gymnasium.registry["Count-v0"]
        gymnasium.register("Count-v0", entry_point=entry_point, kwargs=kwargs, max_episode_steps=9)
        registry._load.cache_clear()
        hashes.append(task("gymnasium:Count-v0").setup.spec.hash)
        origin = registry.origin("gymnasium:Count-v0")
        assert (origin.distribution, origin.version) == ("text-games", version)
    assert hashes[3] == hashes[4]
    assert len(set(hashes)) == 5
    registry._load.cache_clear()
    packages.clear()
    origin = registry.origin("gymnasium:Count-v0")
    assert (origin.distribution, origin.version) == ("?", "?")


def count_from_one() -> Referee:
    for seed in range(9):
        referee = Referee(task("gymnasium:Count-v0", seed))
        if referee.see(0).message() == "at 1":
            return referee
    raise AssertionError("none of nine seeds starts at 1")


def test_a_text_environment_of_gymnasium_gives_its_limit_actions_and_rewards() -> None:
    count = count_from_one()
    assert count.spec.max_turns == 9
    assert count.game.legal(0) == ("5", "6", "7")
    count.step({0: "I take one.\n**6**"})
    assert count.see(0).message() == "at 2"
    [turn] = count.step({0: "6"})
    assert turn.rewards == ({"reward": 1.0},)
    assert count.status == "finished"
    assert count.game.result() == {"total": 1.0}


def test_actions_below_zero_are_not_taken_for_those_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Count, "action_space", Discrete(4, start=-2))
    game = Referee(task("gymnasium:Count-v0")).game
    assert game.legal(0) == ("-2", "-1", "0", "1")
    read = [game.parse(0, reply) for reply in ("-1", "Action: **-1.**", "+1", "1", "-2", "- 0")]
    assert read == ["-1", "-1", None, "1", "-2", None]


def test_another_library_gets_what_a_reply_says_and_not_what_it_thinks() -> None:
    echo = Referee(task("gymnasium:Echo-v0"))
    echo.step({0: "<think>left or right?</think>\nright"})
    assert echo.see(0).message() == "right"
    [turn] = echo.step({0: "<think>left or"})
    assert (turn.kind, turn.action) == ("unparsable", "<forfeit>")


@pytest.mark.parametrize("word", ["<forfeit>", "<skip>"])
def test_nobody_leaves_a_game_for_nothing_by_the_words_of_the_referee(word: str) -> None:
    [turn] = Referee(task("gymnasium:Echo-v0")).step({0: word})
    assert turn.kind == "unparsable"
    assert turn.rewards == ({"unparsable": -0.5},)


def test_a_reward_that_is_no_number_is_an_error_that_names_the_game() -> None:
    echo = Referee(task("gymnasium:Echo-v0"))
    with pytest.raises(NonFiniteError, match=r"Echo-v0: .* rewards for 'nan' are \[nan\]"):
        echo.step({0: "nan"})


def test_the_environment_of_the_page_is_played(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "interop.md").read_text(encoding="utf-8")
    _, _, after_import = page.partition("import gymnasium")
    code, _, _ = after_import.partition("```")
    exec(f"import gymnasium\n{code}", {"__name__": "page"})
    del gymnasium.registry["Doors-v0"]
    assert re.fullmatch(r"[012] \{'total': [01]\.0\}\n", capsys.readouterr().out)


def test_what_cannot_be_played_is_refused_with_the_way_out() -> None:
    for name, reason in (
        ("gymnasium:Numbers-v0", r"observations are Discrete\(16\).*must be a Text space"),
        ("gymnasium:NoSuch-v0", "doesn't exist.*gymnasium.envs"),
        ("gymnasium:os:system", "never a path"),
        ("gymnasium:../x", "never a path"),
        ("openenv:example.org:80", "never a path"),
        ("textarena", "no such environment.*textarena:<id>"),
    ):
        with pytest.raises(SettingsError, match=reason):
            registry.get(name)
    for name, module in (("textarena:Nim-v0", "textarena"), ("openenv:localhost:9", "openenv")):
        try:
            __import__(module)
        except ModuleNotFoundError:
            with pytest.raises(SettingsError, match=rf"uv pip install 'hanabi-grpo\[{module}\]'"):
                registry.get(name)


@pytest.fixture
def textarena() -> Any:
    return pytest.importorskip("textarena", reason="the extra textarena is not installed")


@pytest.mark.usefixtures("textarena")
def test_games_of_textarena_pass_the_checks_and_leave_the_global_generator_alone() -> None:
    before = random.getstate()
    for name, players in (("TicTacToe-v0", 2), ("GuessTheNumber-v0", 1)):
        start = task(f"textarena:{name}")
        assert check(start.environment, start.config, num_episodes=3).num_copies > 5
        assert start.setup.spec.num_players == players
    poker = task("textarena:KuhnPoker-v0")
    check_games(poker.environment, poker.config)
    check_replies(poker.environment, poker.config)
    check_policies(poker.environment, poker.config)
    # It deals cards, and nobody says which are hidden.
    with pytest.raises(ConformanceError, match=r"its hidden\(\) are equal"):
        check(poker.environment, poker.config, num_episodes=2)
    assert random.getstate() == before


@pytest.mark.usefixtures("textarena")
def test_a_game_of_textarena_has_the_number_of_players_that_it_can_have() -> None:
    with pytest.raises(
        SettingsError, match=r"HANABI_PLAYERS=3: TextArena's TicTacToe-v0 does not start"
    ):
        Referee(task("textarena:TicTacToe-v0", players=3))
    three = task("textarena:LiarsDice-v0", players=3)
    script = three.environment.policies["random"]()
    episode = play_scripts(three, {0: script, 1: script, 2: script})
    assert len(episode.turns[0].rewards) == 3


@pytest.mark.usefixtures("textarena")
@pytest.mark.parametrize("name", ["QuantumTicTacToe-v0", "SpiteAndMalice-v0"])
def test_a_game_of_textarena_that_ignores_its_number_of_players_has_those_that_play(
    name: str,
) -> None:
    assert task(f"textarena:{name}").setup.spec.num_players == 2
    assert registry.origin(f"textarena:{name}").distribution == "textarena"
    for players in (1, 3):
        with pytest.raises(
            SettingsError, match=rf"HANABI_PLAYERS={players}: TextArena's {name} .* has 2 players"
        ):
            Referee(task(f"textarena:{name}", players=players))


@pytest.mark.usefixtures("textarena")
def test_no_player_of_textarena_reads_what_another_thought_or_a_token_of_a_template() -> None:
    poker = Referee(task("textarena:KuhnPoker-v0"))
    [first] = poker.to_act()
    poker.step({first: "<think>I hold a king.</think>\nWell <|im_end|> [check]"})
    [second] = poker.to_act()
    shown = poker.see(second).message()
    assert "Well < |im_end|> [check]" in shown
    assert "king" not in shown


@pytest.mark.usefixtures("textarena")
def test_an_action_of_textarena_in_capitals_stays_what_it_is() -> None:
    game = Referee(task("textarena:TicTacToe-v0")).game
    assert game.parse(0, "<think>[SLATE]?</think>[CRANE]") == "[CRANE]"
    assert game.parse(0, "[/INST] hello") == "[ /INST] hello"


@pytest.mark.usefixtures("textarena")
def test_a_won_game_of_textarena_pays_the_winner_and_costs_the_loser() -> None:
    game = Referee(task("textarena:TicTacToe-v0"))
    for cell in (0, 3, 1, 4, 2):
        [player] = game.to_act()
        [turn] = game.step({player: f"[{cell}]"})
    assert turn.rewards == ({"reward": 1.0}, {"reward": -1.0})


@pytest.mark.usefixtures("textarena")
def test_a_game_of_textarena_that_gives_a_reason_for_a_reward_ends_with_a_loss() -> None:
    game = Referee(task("textarena:Countdown-v0"))
    turns = []
    while game.to_act():
        turns += game.step({0: "I am not sure."})
    assert turns[-1].rewards == ({"reward": -1.0},)


@pytest.mark.usefixtures("textarena")
def test_a_game_of_textarena_that_draws_with_numpy_draws_the_same_in_every_game_of_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arena = importlib.import_module("textarena.envs.GuessTheNumber.env")
    monkeypatch.setattr(arena.random, "randint", lambda low, high: np.random.randint(low, high + 1))
    before = np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    numbers = []
    for seed in (1, 1, 2, 3, 4):
        game = Referee(task("textarena:GuessTheNumber-v0", seed)).game
        numbers.append(game._env.state.game_state["game_number"])  # type: ignore[attr-defined]
    assert numbers[0] == numbers[1]
    assert len(set(numbers)) > 1
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index, union-attr]


@pytest.mark.usefixtures("textarena")
def test_dice_of_textarena_fall_the_same_in_every_game_of_a_start() -> None:
    dice = task("textarena:PigDice-v0", 3)
    script = dice.environment.policies["random"]()
    scripts = {0: script, 1: script}
    assert play_scripts(dice, scripts) == play_scripts(dice, scripts)
