"""Rewards of whole episodes: what they pay, where they run, and how faulty ones are named.

The worker processes are real; the engine is the tests' own.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_workers import CountingEngine, run, tasks_of

import rewarded_environments
from doctor_machines import ROOT
from fake_engine import SAMPLING
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Environment, Setup
from hanabi_grpo.envs.conformance import check, check_symmetries
from hanabi_grpo.envs.hanabi.policies import best_messages
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.referee import Referee, play_scripts
from hanabi_grpo.envs.rewards import RewardedEnvironment, with_rewards
from hanabi_grpo.envs.wrappers import AECWrapper
from hanabi_grpo.errors import RewardError, ServerError, SettingsError
from hanabi_grpo.evaluation.evaluate import task_figures
from hanabi_grpo.report.games import games_page
from hanabi_grpo.rollout.vocabulary import game_words
from hanabi_grpo.rollout.wire import episode_from_json, episode_to_json
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.types import DroppedGame, Episode, EpisodeStatus
from toy_environments import GUESS


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    rewarded_environments.install(tmp_path / "installed", monkeypatch)
    yield
    registry._load.cache_clear()


def laptop(rewards: Any, **options: Any) -> Setup[Any]:
    """Return Hanabi with rewards."""
    options = {"reward_range": (-1.0, 1.0), **options}
    environment = with_rewards("hanabi", name="hanabi_test", rewards=rewards, **options)
    return Setup(environment, environment.Config.parse({"preset": "laptop"}))


def one_game(setup: Setup[Any]) -> Episode:
    iggi = setup.environment.policies["iggi"]()
    return play_scripts(setup.task("eval", 0), {0: iggi, 1: iggi})


def test_a_reward_sees_the_finished_episode_and_is_paid_in_its_last_turn() -> None:
    seen: list[Episode] = []

    def watch(episode: Episode) -> list[float]:
        seen.append(episode)
        return [0.25, 0.25]

    plain = one_game(registry.setup("hanabi", {"preset": "laptop"}))
    episode = one_game(laptop({"watched": watch}))
    [finished] = seen
    assert finished.status is EpisodeStatus.FINISHED
    assert finished.turns == plain.turns
    assert finished.result == plain.result
    assert [turn.rewards for turn in episode.turns[:-1]] == [
        turn.rewards for turn in plain.turns[:-1]
    ]
    for player in range(2):
        parts = {**plain.turns[-1].rewards[player], "watched": 0.25}
        assert episode.turns[-1].rewards[player] == parts
        assert episode.reward(player) == plain.reward(player) + 0.25


def test_an_episode_that_runs_out_of_tokens_is_paid_once_with_that_status() -> None:
    setup = laptop({"short": lambda episode: [float(episode.status.is_truncated)] * 2})
    referee = Referee(setup.task("eval", 0))
    referee.step({0: "Hint 1"})
    referee.out_of_tokens(1)
    episode = referee.episode()
    assert episode.reward(0, "short") == 1.0
    assert episode.turns[-1].rewards[0]["short"] == 1.0


def test_an_episode_without_a_turn_is_not_paid() -> None:
    setup = laptop({"extra": lambda episode: [1.0, 1.0]})
    referee = Referee(setup.task("eval", 0))
    referee.out_of_tokens(0)
    assert referee.episode().turns == ()


def test_the_spec_says_that_it_is_another_game_with_a_wider_range() -> None:
    plain = registry.setup("hanabi", {"preset": "laptop"}).spec
    spec = laptop({"extra": lambda episode: [0.0, 0.0]}, reward_range=(-0.5, 0.25)).spec
    assert (spec.env, spec.preset, spec.payoff) == ("hanabi_test", "laptop", "team")
    assert spec.return_range == (plain.return_range[0] - 0.5, plain.return_range[1] + 0.25)
    assert spec.hash != plain.hash
    other = laptop({"another": lambda episode: [0.0, 0.0]}, reward_range=(-0.5, 0.25)).spec
    assert spec.hash != other.hash


def test_all_that_an_environment_may_say_of_a_game_is_asked_of_the_one_with_rewards_too() -> None:
    """What it does not pass on would be the interface's default, and nothing would say so."""
    # They are made of methods that are passed on.
    composed = {"system_message", "person_message"}
    methods = {name for name, member in vars(Environment).items() if callable(member)}
    public = {name for name in methods if not name.startswith("_")}
    assert public - composed <= vars(RewardedEnvironment).keys()


def test_a_game_with_rewards_has_the_boards_words_symmetries_and_rules_of_the_game() -> None:
    plain = registry.get("hanabi")
    paid = registry.get("hanabi_brief")
    assert paid.knows_preset("4x3-hand4-info8-life3")
    assert not paid.knows_preset("lap-top")
    fields = {"preset": "laptop", "observation": "compact", "deductions": "joined"}
    config = paid.Config.parse(fields)
    assert paid.person_message(config, 0) == plain.person_message(config, 0)
    assert paid.person_message(config, 0).startswith("Hanabi: you are player_0 of 2 players")
    assert paid.word_parts(config)["sure.cR.r1"][0] == "own sure"
    assert paid.num_symmetries(config) == 2
    check_symmetries(paid, config, num_episodes=2)
    assert paid.worded_under(config, "Hint R", 1) == "Hint Y"


@pytest.mark.rest
def test_players_may_be_paid_differently_where_the_payoff_says_so(
    monkeypatch: pytest.MonkeyPatch, cache_home: Path
) -> None:
    # The check plays every script; one that computes for minutes plays as well after one round.
    monkeypatch.setattr(best_messages, "SWEEPS", 1)
    setup = laptop({"first": lambda episode: [1.0, 0.0]}, payoff="general")
    episode = one_game(setup)
    assert (episode.reward(0, "first"), episode.reward(1, "first")) == (1.0, 0.0)
    check(setup.environment, setup.config, num_episodes=5)
    unequal = laptop({"first": lambda episode: [1.0, 0.0]})
    with pytest.raises(
        RewardError, match=r"\[1\.0, 0\.0\], but the players of a team must get the"
    ):
        one_game(unequal)


def test_a_zero_sum_game_stays_one() -> None:
    def pay(last: float) -> Setup[Any]:
        environment = with_rewards(
            "kuhn_poker",
            name="kuhn_test",
            rewards={"extra": lambda episode: [1.0, last]},
            reward_range=(-1.0, 1.0),
        )
        return Setup(environment, environment.presets["kuhn_poker"])

    task = pay(-1.0).task("eval", 0)
    policy = task.environment.policies["random"]()
    assert play_scripts(task, {0: policy, 1: policy}).reward(1, "extra") == -1.0
    with pytest.raises(RewardError, match="in a zero-sum game they must sum to 0"):
        play_scripts(pay(1.0).task("eval", 0), {0: policy, 1: policy})


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("raises", "raised ZeroDivisionError"),
        ("not_a_number", r"returned \[nan\]; expected a list of 1 finite numbers"),
        ("too_many", r"returned \[0\.0, 0\.0\]; expected a list of 1 finite numbers"),
        ("no_list", r"returned 1\.0; expected a list of 1 finite numbers"),
        ("text", r"returned \['much'\]; expected a list of 1 finite numbers"),
    ],
)
def test_a_faulty_reward_is_named_by_whoever_plays(name: str, problem: str) -> None:
    setup = registry.setup(name, {"preset": "toy"})
    policy = setup.environment.policies["random"]()
    message = f"reward 'extra' of {name}, task eval 0, game 0: {problem}"
    with pytest.raises(RewardError, match=message):
        play_scripts(setup.task("eval", 0), {0: policy})

    async def play(scheduler: Scheduler) -> Any:
        return await scheduler.run(tasks_of(name, range(2)), SAMPLING)

    # All games of a server fail, so the request does, with the reason.
    with pytest.raises(ServerError, match=r"all 2 games failed.*RewardError: reward 'extra' of"):
        run(play, CountingEngine())


def by_player(episode: Episode) -> dict[int, float]:
    """Return what each player is to be paid, with the players as keys."""
    return {0: 0.5, 1: 0.5}


def late_fault(episode: Episode) -> Iterator[float]:
    """Fail only when the numbers are read."""
    yield 1 / 0


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        # Its keys would have been paid.
        (by_player, r"returned \{0: 0\.5, 1: 0\.5\}; expected a list of 2 finite numbers"),
        (lambda episode: {0.0, 1.0}, r"returned \{.*\}; expected a list of 2 finite numbers"),
        (late_fault, "raised ZeroDivisionError: division by zero"),
        (lambda episode: [10**400] * 2, r"returned \[10+; expected a list of 2 finite numbers"),
    ],
)
def test_what_is_no_list_of_numbers_that_can_be_paid_is_named(function: Any, problem: str) -> None:
    with pytest.raises(RewardError, match=f"reward 'extra' of hanabi_test, .*{problem}"):
        one_game(laptop({"extra": function}, payoff="general"))


def test_a_reward_may_be_computed_by_a_generator() -> None:
    setup = laptop({"extra": lambda episode: (turns / 100 for turns in (25, 50))}, payoff="general")
    episode = one_game(setup)
    assert [episode.reward(player, "extra") for player in (0, 1)] == [0.25, 0.5]


def test_a_reward_runs_in_a_worker_of_the_server_and_not_in_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = tmp_path / "witness.jsonl"
    monkeypatch.setenv(rewarded_environments.WITNESS, str(witness))

    async def play(scheduler: Scheduler) -> Any:
        return await scheduler.run(tasks_of("paid", range(3)), SAMPLING)

    for [episode] in run(play, CountingEngine()):
        assert episode.reward(0, "extra") == len(episode.turns) / 100
    rows = [json.loads(line) for line in witness.read_text().splitlines()]
    assert len(rows) == 3
    for row in rows:
        assert "hanabi_grpo.server.workers.fork_server" in row["command"]
        assert row["torch"] is False


@pytest.mark.rest
def test_a_reward_that_hangs_costs_its_game_and_is_named_by_the_environment() -> None:
    async def play(scheduler: Scheduler) -> Any:
        mixed = [*tasks_of("hangs", range(1)), *tasks_of("paid", range(1))]
        return await scheduler.run(mixed, SAMPLING)

    [[hung], [paid]] = run(play, CountingEngine(), call_timeout=1.0)
    assert isinstance(paid, Episode)
    assert isinstance(hung, DroppedGame)
    assert hung.reason.startswith("a call of hangs has not returned for HANABI_CALL_TIMEOUT=1 s")


def test_rewards_are_figures_of_a_step_and_of_an_evaluation() -> None:
    setup = registry.setup("hanabi_brief", {"preset": "laptop"})
    episode = one_game(setup)
    last = episode.turns[-1]
    long = replace(
        episode, turns=(*episode.turns[:-1], replace(last, rewards=({"brief": -1.0}, {})))
    )
    assert setup.metrics([episode, long])["reward/brief"] == -0.25
    assert "reward/brief" not in registry.setup("hanabi", {"preset": "laptop"}).metrics([episode])
    assert task_figures(setup, [long]).figures["reward/brief"] == -0.5


def test_replays_draw_the_games_with_the_board_and_name_the_reward() -> None:
    setup = laptop({"extra": lambda episode: [0.5, 0.5]})
    episode = episode_from_json(episode_to_json(one_game(setup)))
    brief = registry.setup("hanabi_brief", {"preset": "laptop"})
    recorded = replace(episode, env="hanabi_brief", spec_hash=brief.spec.hash)
    recording = Recording(episode=recorded)
    page = games_page([recording], [recording], title="games", settings={})
    assert "extra +0.5" in page
    assert '"deck"' in page


@pytest.mark.rest
def test_the_example_pays_for_long_replies_only_and_is_as_the_interface_says() -> None:
    environment = registry.get("hanabi_brief")
    config = environment.presets["laptop"]
    check(environment, config, num_episodes=5)
    setup = Setup(environment, config)
    assert one_game(setup).reward(0, "brief") == 0
    referee = Referee(setup.task("eval", 0))
    while referee.status is None:
        [player] = referee.to_act()
        thoughts = "x" * 300 if player == 0 else ""
        referee.step({player: f"{thoughts} {referee.game.legal(player)[0]}"})
    episode = referee.episode()
    assert (episode.reward(0, "brief"), episode.reward(1, "brief")) == (-1.0, 0.0)


def test_the_wrapper_of_pettingzoo_pays_it_too() -> None:
    setup = registry.setup("hanabi_brief", {"preset": "laptop"})
    paid = with_rewards(
        setup.environment,
        name="hanabi_paid",
        rewards={"extra": lambda episode: [0.5, 0.5]},
        reward_range=(0.0, 0.5),
    )
    wrapper = AECWrapper(paid, paid.presets["laptop"])
    wrapper.reset(seed=0)
    parts: list[dict[str, float]] = []
    for _ in wrapper.agent_iter():
        _, _, is_over, is_cut, info = wrapper.last()
        if is_over or is_cut:
            parts.append(info["rewards"])
            wrapper.step(None)
        else:
            wrapper.step(info["legal"][0])
    assert [rewards["extra"] for rewards in parts] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "hanabi"}, "give a new name"),
        ({"name": "guess"}, "give a new name"),
        ({"name": "../x"}, "give a new name"),
        ({"rewards": {}}, "needs at least one function"),
        ({"rewards": {"illegal": print}}, "map unused names of lower-case letters"),
        ({"rewards": {"Bad Name": print}}, "map unused names of lower-case letters"),
        ({"rewards": {"extra": 1.0}}, "'_' to functions; names already in use"),
        ({"reward_range": (1.0, 0.0)}, "give the minimum and maximum"),
        ({"reward_range": (0.0, float("inf"))}, "give the minimum and maximum"),
        ({"payoff": "zzz"}, r"with_rewards\(payoff='zzz'\): allowed are team, zero_sum, general"),
    ],
)
def test_what_cannot_be_a_reward_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    good = {"name": "fine", "rewards": {"extra": print}, "reward_range": (0.0, 1.0)}
    with pytest.raises(SettingsError, match=message):
        with_rewards(GUESS, **{**good, **options})


def test_rewards_stay_within_their_range() -> None:
    def two(*values: float) -> Setup[Any]:
        rewards = {"a": lambda episode: [values[0]] * 2, "b": lambda episode: [values[1]] * 2}
        return laptop(rewards, reward_range=(0.0, 1.0))

    # A sum may be rounded.
    assert one_game(two(0.1 + 0.2, 0.7)).reward(0, "b") == 0.7
    for values, total in (((5.0, 0.0), "5"), ((0.5, 0.75), "1.25"), ((-0.5, 0.0), "-0.5")):
        problem = rf"reward 'a \+ b' of .*: pays player_0 {total}, outside of reward_range=\(0, 1\)"
        with pytest.raises(RewardError, match=problem):
            one_game(two(*values))


def test_each_set_of_rewards_has_its_own_range() -> None:
    inner = with_rewards(
        "hanabi",
        name="inner",
        rewards={"first": lambda episode: [-1.0] * 2},
        reward_range=(-1.0, 0.0),
    )
    outer = with_rewards(
        inner, name="outer", rewards={"second": lambda episode: [2.0] * 2}, reward_range=(0.0, 1.0)
    )
    config = outer.Config.parse({"preset": "laptop"})
    assert one_game(Setup(inner, config)).reward(0, "first") == -1.0
    with pytest.raises(
        RewardError, match=r"reward 'second' of outer.* pays player_0 2, outside of"
    ):
        one_game(Setup(outer, config))


def test_a_reward_with_the_name_of_one_of_the_game_is_refused() -> None:
    with pytest.raises(RewardError, match=r"'score' of hanabi_test.*name as a reward of the game"):
        one_game(laptop({"score": lambda episode: [0.0, 0.0]}))


def test_games_that_are_played_before_a_run_to_learn_their_words_are_not_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = tmp_path / "witness.jsonl"
    monkeypatch.setenv(rewarded_environments.WITNESS, str(witness))
    setup = registry.setup("paid", {"preset": "toy"})
    assert "Guess" in " ".join(game_words(setup))
    assert not witness.exists()
    play_scripts(setup.task("eval", 0), {0: setup.environment.policies["random"]()})
    assert witness.exists()
