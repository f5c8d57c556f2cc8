"""The workflow `revise`: what a solver and a critic see, what is paid, and what stays hidden."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import SKIP, Setup
from hanabi_grpo.envs.conformance import check
from hanabi_grpo.envs.referee import Referee, parts_of, play_scripts
from hanabi_grpo.envs.workflows.environment import CRITIC_SYSTEM, SYSTEM
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import load_settings
from hanabi_grpo.types import Episode, ReplyKind
from server_app import running_app


def revise(**fields: Any) -> Setup[Any]:
    return registry.setup("revise", {"preset": "revise", "style": "full", **fields})


def start(setup: Setup[Any]) -> tuple[Referee, str, str]:
    """An episode, its question, and a reply that is right."""
    referee = Referee(setup.task("eval", 0))
    problem = referee.game.problem  # type: ignore[attr-defined]
    return referee, problem.question, f"Answer: {problem.answer}"


def replies(setup: Setup[Any], *texts: str) -> Episode:
    """An episode of these replies; "right" stands for a right one."""
    referee, _, right = start(setup)
    for text in texts:
        [player] = referee.to_act()
        referee.step({player: right if text == "right" else text})
    return referee.episode()


def paid(episode: Episode, part: str) -> list[list[float]]:
    """Per step what a part paid each player."""
    steps = []
    for number in range(episode.turns[-1].step + 1):
        turns = [turn for turn in episode.turns if turn.step == number]
        players = range(episode.num_players)
        steps.append([parts_of(turns, player).get(part, 0.0) for player in players])
    return steps


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("memory", ["turn", "game"])
@pytest.mark.parametrize("feedback", ["none", "verdict", "comment"])
def test_it_does_what_the_interface_says(style: str, memory: str, feedback: str) -> None:
    setup = revise(style=style, memory=memory, feedback=feedback, rounds=3, reward_gain=0.5)
    report = check(setup.environment, setup.config, num_episodes=4)
    assert "solution" in report.secrets


def test_an_agent_sees_its_last_answer_and_no_thought_and_no_special_token() -> None:
    referee, question, _ = start(revise(rounds=3))
    assert referee.see(0).message() == f"{question}\n\nYour answer?"
    referee.step({0: "<think>secret</think>First.<|im_end|>\nAnswer: 98"})
    again = "Look at your answer once more. Your answer now?"
    first = "> First.< |im_end|>\n> Answer: 98"
    assert referee.see(0).message() == f"{question}\n\nYou answered:\n{first}\n\n{again}"
    referee.step({0: "no label"})
    assert referee.see(0).message() == f"{question}\n\nYou answered:\n(no answer)\n\n{again}"
    referee.step({0: "Answer: 97"})
    assert referee.status is not None
    # A player that remembers the whole conversation is not told it twice.
    referee, _, _ = start(revise(memory="game"))
    referee.step({0: "Answer: 98"})
    assert referee.see(0).message() == again


def test_a_verdict_says_no_more_than_that_it_is_wrong_and_a_right_answer_ends_it() -> None:
    setup = revise(feedback="verdict", rounds=4)
    referee, question, right = start(setup)
    solution = right.removeprefix("Answer: ")
    referee.step({0: "Answer: 98"})
    message = referee.see(0).message()
    assert message == (
        f"{question}\n\nYou answered:\n> Answer: 98\n\nThat is wrong.\n\n"
        "Look at your answer once more. Your answer now?"
    )
    # Whatever the solution is, if not this one: the same message, and the same as data.
    rng = random.Random(0)
    for _ in range(50):
        other = referee.game.resampled(0, rng)
        assert other.problem.answer != "98"  # type: ignore[attr-defined]
        assert other.message(0) == message
        assert other.view(0) == referee.game.view(0)
    assert solution not in message.replace(question, "")
    referee.step({0: right})
    assert referee.to_act() == ()
    episode = referee.episode()
    assert len(episode.turns) == 2
    assert paid(episode, "team") == [[0.0], [1.0]]
    assert referee.game.hidden(0) == {}
    figures = {"final": 1.0, "alone": 0.0, "corrected": 1.0, "misled": 0.0, "rounds": 2.0}
    rounds = {"round_1": 0.0, "round_2": 1.0, "round_3": 1.0, "round_4": 1.0}
    assert episode.result == {**figures, **rounds}
    # Without the verdict it goes on, and a right answer may be lost.
    lost = replies(revise(rounds=2), "right", "Answer: 98")
    assert (lost.result["final"], lost.result["misled"]) == (0.0, 1.0)


def test_a_critic_reads_the_answer_and_the_solver_its_comment() -> None:
    setup = revise(feedback="comment", rounds=2)
    assert setup.spec.roles == ("solver", "critic")
    systems = [setup.environment.system(setup.config, player) for player in (0, 1)]
    assert systems == [SYSTEM, CRITIC_SYSTEM]
    referee, question, right = start(setup)
    referee.step({0: "<think>secret</think>I add.\nAnswer: 98"})
    assert referee.to_act() == (1,)
    assert referee.see(1).message() == (
        f"{question}\n\nThe solver answered:\n> I add.\n> Answer: 98\n\nYour comment?"
    )
    [turn] = referee.step({1: "<think>hm</think>Count again <s>."})
    assert turn.kind is ReplyKind.LEGAL
    message = referee.see(0).message()
    assert "The critic wrote:\n> Count again < s>." in message
    assert "secret" not in message and "hm" not in message
    referee.step({0: right})
    assert referee.episode().result["final"] == 1.0


def test_a_critic_is_not_paid_for_an_answer_of_its_own_and_silence_is_a_bad_reply() -> None:
    setup = revise(feedback="comment", rounds=2, reward_correct=1.0, reward_gain=0.5)
    won = replies(setup, "Answer: 98", "right", "right")
    assert paid(won, "correct") == [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
    assert paid(won, "team") == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    assert paid(won, "gain") == [[0.0, 0.0], [0.0, 0.0], [0.5, 0.5]]
    lost = replies(setup, "right", "<think>cut", "Answer: 98")
    assert paid(lost, "gain") == [[0.0, 0.0], [0.0, 0.0], [-0.5, -0.5]]
    assert lost.turns[1].action == SKIP
    assert lost.reward(1, "unparsable") == -0.5
    assert lost.result["final"] == 0.0 and lost.result["round_1"] == 1.0


def test_gains_add_up_to_the_difference_of_last_and_first_within_the_range() -> None:
    setup = revise(rounds=4, reward_gain=2.0, reward_team=0.0)
    for texts in (
        ("right", "Answer: 98", "right", "Answer: 98"),
        ("Answer: 98", "right", "Answer: 98", "right"),
    ):
        episode = replies(setup, *texts)
        low, high = setup.spec.return_range
        difference = episode.result["final"] - episode.result["alone"]
        assert episode.reward(0) == 2.0 * difference
        assert low <= episode.reward(0) <= high


def test_compact_prompts_have_a_word_for_each() -> None:
    referee, question, _ = start(revise(style="compact", feedback="verdict"))
    referee.step({0: "1 = 98"})
    assert referee.see(0).message() == f"{question} own 98 wrong"
    referee, question, _ = start(revise(style="compact", feedback="comment"))
    referee.step({0: "1 = 98"})
    assert referee.see(1).message() == f"{question} other 98"
    referee.step({1: "2 = 3"})
    assert referee.see(0).message() == f"{question} own 98 other 3"


def test_scripts_revise_and_settings_choose_it() -> None:
    settings = load_settings(
        {"HANABI_ENV": "revise", "HANABI_FEEDBACK": "comment", "HANABI_ROUNDS": "3"}
    ).settings
    assert (settings.players, settings.setup().spec.max_turns) == (2, 5)
    assert load_settings({"HANABI_ENV": "revise"}).settings.players == 1
    with pytest.raises(SettingsError, match="HANABI_FEEDBACK='gossip': "):
        load_settings({"HANABI_ENV": "revise", "HANABI_FEEDBACK": "gossip"})
    setup = revise(feedback="verdict", rounds=8)
    finals = []
    for seed in range(40):
        noisy = setup.environment.policies["noisy"]()
        finals.append(play_scripts(setup.task("eval", seed), {0: noisy}).result["final"])
    assert sum(finals) >= 39


def seats_of(setup: Setup[Any]) -> Sequence[str]:
    return ["base"] if setup.spec.num_players == 1 else ["base", "solver"]


@pytest.mark.parametrize("feedback", ["none", "comment"])
def test_a_server_plays_it(feedback: str) -> None:
    setup = revise(style="compact", feedback=feedback, rounds=2)
    row = {**setup.row(), "suite": "eval", "seed": 1, "seats": seats_of(setup)}
    with running_app() as app, RolloutClient(app.url) as client:
        [[game]] = client.play([row], num_games=1, max_tokens=4, temperature=0.5).groups
    assert len(game.trajectory(0)) == 2
    assert len(game.turns) == setup.spec.max_turns
