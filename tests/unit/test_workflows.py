"""Workflows: who sees what, what is paid, where problems come from, and what bad ones are told."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.conformance import check
from hanabi_grpo.envs.referee import Referee, parts_of, play_scripts
from hanabi_grpo.envs.workflows.answers import majority_worth, normalize, public_text, read_answer
from hanabi_grpo.envs.workflows.environment import WORKFLOWS
from hanabi_grpo.envs.workflows.problems import draw_problem, load_source, share_of
from hanabi_grpo.envs.wrappers import AECWrapper, SeatEnv
from hanabi_grpo.errors import SettingsError, VerifierError
from hanabi_grpo.evaluation.evaluate import lineup_score, task_figures
from hanabi_grpo.evaluation.outcomes import is_versus
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.vocabulary import game_words, unknown_words
from hanabi_grpo.settings import load_settings
from hanabi_grpo.sft.tiny_model.recipe import Recipe
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer
from hanabi_grpo.training.advantages import choose_estimator
from hanabi_grpo.types import Episode, ReplyKind


def workflow(env: str, **fields: Any) -> Setup[Any]:
    return registry.setup(env, {"preset": env, "style": "compact", **fields})


def play(setup: Setup[Any], *steps: Sequence[str], seed: int = 0) -> Episode:
    """Play an episode in which "right" stands for the solution."""
    referee = Referee(setup.task("eval", seed))
    solution = referee.game.problem.answer  # type: ignore[attr-defined]
    for replies in steps:
        texts = [solution if reply == "right" else reply for reply in replies]
        referee.step(dict(zip(referee.to_act(), texts, strict=True)))
    return referee.episode()


def paid(episode: Episode, part: str) -> list[list[float]]:
    """Return what a part paid, per step and player."""
    steps = [
        [turn for turn in episode.turns if turn.step == step]
        for step in range(episode.turns[-1].step + 1)
    ]
    return [
        [parts_of(turns, player).get(part, 0.0) for player in range(episode.num_players)]
        for turns in steps
    ]


@pytest.mark.parametrize("env", WORKFLOWS)
def test_a_workflow_does_what_the_interface_says(env: str) -> None:
    fields = {"debate": {"players": 3, "rounds": 3}}.get(env, {})
    for style in ("full", "compact"):
        setup = workflow(env, style=style, memory="turn" if style == "full" else "game", **fields)
        report = check(setup.environment, setup.config, num_episodes=4)
        assert set(report.secrets) >= {"solution"} and ("what others said" in report.secrets) is (
            env in ("debate", "summary")
        )


def test_everybody_sees_the_others_last_replies_and_a_voter_none() -> None:
    shown = {}
    for env in WORKFLOWS:
        setup = (
            workflow(env, style="full", players=3)
            if env != "pioneer_observer"
            else workflow(env, style="full")
        )
        referee = Referee(setup.task("eval", 0))
        question = referee.game.view(0).question
        while acting := referee.to_act():
            texts = {player: referee.see(player).message() for player in acting}
            assert all(text.startswith(question) for text in texts.values())
            shown[env, len(referee.game.texts)] = texts  # type: ignore[attr-defined]
            referee.step(
                {
                    player: f"<think>secret</think>I am {player}.\nAnswer: {70 + player}"
                    for player in acting
                }
            )
        after = [referee.game.state_message(player) for player in range(setup.spec.num_players)]
        assert not any(
            f"I am {other}" in after[seat]
            for seat in range(len(after))
            for other in range(3)
            if other != seat
        )
    assert all("secret" not in text for texts in shown.values() for text in texts.values())
    heard = {
        key: {
            player: [other for other in range(3) if f"I am {other}" in text]
            for player, text in texts.items()
        }
        for key, texts in shown.items()
        if key[1]
    }
    assert heard == {
        ("debate", 1): {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2]},
        ("summary", 1): {2: [0, 1]},
        ("pioneer_observer", 1): {1: [0]},
    }
    answers = workflow("summary", style="full", show="answer")
    referee = Referee(answers.task("eval", 0))
    referee.step({0: "I am 0.\nAnswer: 70", 1: "hm"})
    assert (
        "I am 0" not in (text := referee.see(2).message())
        and "answered:\n70" in text
        and "(no answer)" in text
    )


def test_rewards_have_names_weights_and_seats() -> None:
    vote = workflow("vote", reward_team=0.5, reward_difference=2.0)
    most = play(vote, ["right", "right", "99"])
    assert (paid(most, "correct"), paid(most, "team")) == ([[1.0, 1.0, 0.0]], [[0.5, 0.5, 0.5]])
    # Without a seat that is right the others are tied: half of it was its own doing; the wrong seat
    # changed nothing.
    assert paid(most, "difference") == [[1.0, 1.0, 0.0]]
    assert paid(play(vote, ["right", "98", "99"]), "difference") == [
        [2 / 3, pytest.approx(-1 / 3), pytest.approx(-1 / 3)]
    ]
    assert paid(play(vote, ["98", "", "99"]), "difference") == [[0.0] * 3]
    debate = play(
        workflow("debate", reward_difference=2.0, players=3),
        ["99", "99", "99"],
        ["right", "right", "99"],
    )
    assert paid(debate, "difference") == [[0.0] * 3, [1.0, 1.0, 0.0]]
    summary = play(workflow("summary"), ["right", "99"], ["right"])
    assert paid(summary, "correct") == [[0.5, 0.0, 0.0], [0.0, 0.0, 0.5]]
    assert paid(summary, "team") == [[0.0] * 3, [0.5] * 3]
    cory = play(workflow("pioneer_observer"), ["99"], ["right"])
    assert paid(cory, "sum") == [[0.0, 0.0], [1.0, 1.0]]


def test_a_round_of_a_debate_is_worth_its_answer_and_the_fading_mean_of_later_ones() -> None:
    setup = workflow("debate", rounds=3, reward_later_rounds=2.0, reward_correct=1.0)
    episode = play(setup, ["right", "99"], ["99", "99"], ["right", ""])
    # Round 1: [v + .3 * 0 + .09 * 1/2] / 1.39; round 2: [0 + .3 * 1/2] / 1.3; twice that.
    rounds = [[2 * 1.045 / 1.39, 2 * 0.045 / 1.39], [0.3 / 1.3, 0.3 / 1.3], [2.0, 0.0]]
    assert paid(episode, "later_rounds") == [pytest.approx(one) for one in rounds]
    assert paid(episode, "correct") == [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
    assert episode.reward(1, "unparsable") == -0.5
    # HANABI_ADVANTAGE=turn compares each turn by that worth, not by the sum of all rounds.
    other = play(setup, ["99", "99"], ["99", "99"], ["99", "99"])
    [values, _] = choose_estimator("turn", "none")([episode, other], 0)
    assert values == pytest.approx([1 + one[0] for one in rounds])
    # The wrappers, whose rewards come step by step, pay the same in all.
    aec, seat = (
        AECWrapper(setup.environment, setup.config),
        SeatEnv(setup.environment, setup.config, 0, {1: Silent()}),
    )
    aec.reset(options={"split": "eval", "seed": 0})
    seat.reset(options={"split": "eval", "seed": 0})
    total = {agent: 0.0 for agent in aec.agents}
    for turn in episode.turns:
        aec.step(turn.action if turn.kind is ReplyKind.LEGAL else "")
        total = {agent: total[agent] + aec.rewards[agent] for agent in total}
    assert list(total.values()) == [pytest.approx(episode.reward(player)) for player in (0, 1)]
    alone = play(setup, ["right", ""], ["99", ""], ["right", ""])
    assert sum(seat.step(turn.action)[1] for turn in alone.trajectory(0)) == pytest.approx(
        alone.reward(0)
    )


class Silent:
    name = "silent"

    def seat(self, player: int, *, task: Any, game: int) -> Any:
        return SimpleNamespace(act=lambda seen: "")


def test_figures_say_what_the_team_made_of_first_answers() -> None:
    found = play(
        workflow("debate", players=3), ["right", "right", "99"], ["99", "right", "99"]
    ).result
    thirds = {"final": 0.0, "alone": 2 / 3, "corrected": 0.0, "misled": 2 / 3, "agreement": 1 / 3}
    assert found == pytest.approx({**thirds, "round_1": 1.0, "round_2": 0.0})
    tied = play(workflow("debate"), ["right", "99"], ["right", "99"]).result
    assert (tied["final"], tied["corrected"], tied["misled"]) == (0.5, 0.25, 0.25)
    assert play(workflow("vote", players=1), ["right"]).result == {
        "final": 1.0,
        "alone": 1.0,
        "corrected": 0,
        "misled": 0,
    }
    cut = Referee(workflow("summary").task("eval", 0))
    cut.step({0: cut.game.problem.answer, 1: "1"})  # type: ignore[attr-defined]
    cut.out_of_tokens(2)
    assert cut.episode().result["final"] == 0.0, "who did not answer was not right"
    for seed in range(20):
        setup = workflow("summary", players=4)
        noisy = {player: setup.environment.policies["noisy"]() for player in range(4)}
        figures = play_scripts(setup.task("eval", seed), noisy).result
        assert figures["final"] == pytest.approx(
            figures["alone"] + figures["corrected"] - figures["misled"]
        )


def test_payoffs_that_differ_still_have_one_score() -> None:
    setup = workflow("debate")
    assert (setup.spec.payoff, setup.spec.has_common_score, is_versus(setup.spec)) == (
        "general",
        True,
        False,
    )
    assert workflow("vote", reward_correct=0.0, reward_team=1.0).spec.payoff == "team"
    assert workflow("pioneer_observer").spec.payoff == "team"
    for env, common in (("kuhn_poker", False), ("hanabi", True), ("sokoban", True)):
        environment = registry.get(env)
        assert environment.spec(next(iter(environment.presets.values()))).has_common_score is common
    games = [play(setup, ["right", "99"], ["right", "right"])]
    assert lineup_score(setup.spec, games[0], 1) == 1.0
    figures = task_figures(setup.spec, games).figures
    assert figures["perfect"] == 1.0 and not any(name.startswith("win") for name in figures)


def test_answers_are_read_from_the_last_line_or_box() -> None:
    for text, found in (
        ("So 5.\n**Answer: 7**", "7"),
        ("Answer: 3\nNo.\nFinal answer: $-4$", "-4"),
        (r"Thus \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"Answer: \boxed{12}", "12"),
        ("Answer:\n1 2\n3 4", "1 2\n3 4"),
        ("It is 7.", None),
        ("Answer:", None),
        ("my question: 7", None),
    ):
        assert read_answer(text, "full") == found
    assert read_answer("6 = 1 2", "compact") == "1 2" and read_answer(" ", "compact") is None
    assert public_text("<think>a</think>b<|im_end|>\n<think>") is None
    assert public_text("x < 5 <|im_end|> </s> [INST]") == "x < 5 < |im_end|> < /s> [ INST]"
    for one, other in (
        ("$1 200.50", "1,200.5"),
        ("007.", "7"),
        ("-0", "0"),
        ("Blue", " blue"),
        ("+3", "3"),
    ):
        assert normalize(one) == normalize(other)
    assert normalize("1.5") != normalize("15") and normalize("-3") != normalize("3") and normalize("a.b") != normalize("ab")
    assert (
        majority_worth(["1", None, "01", "2"], [1.0, 0.0, 1.0, 0.0]) == 1.0
        and majority_worth([None], [0.0]) == 0.0
    )


def test_no_question_is_in_two_splits_and_the_draw_is_for_ever() -> None:
    source = load_source("chain_sum", 3, HIGHEST)
    assert [draw_problem(source, "train", seed).question for seed in range(3)] == QUESTIONS
    seen = {
        split: {draw_problem(source, split, seed).question for seed in range(200)}
        for split in SPLITS
    }
    for number, split in enumerate(SPLITS):
        assert not any(seen[split] & seen[other] for other in SPLITS[number + 1 :])
    long = load_source("chain_sum", 5, 999).make(7)
    assert eval(long.question.partition("=")[0]) == int(long.answer) and len(long.work) == 3


SPLITS = ("train", "eval", "eval-validation", "test")
QUESTIONS = ["2 + 0 - 3 = ?", "2 - 2 - 2 = ?", "1 + 4 + 3 = ?"]
HIGHEST = 4


def rows(*lines: object) -> str:
    return "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)


def test_a_file_of_problems_counts_by_its_content_and_a_bad_line_is_named(tmp_path: Path) -> None:
    good = [
        {"question": f"What is {n} + 1?", "answer": f"{n} + 1 is\n#### {n + 1}"} for n in range(100)
    ]
    files = []
    for name, content in (
        ("a", rows(*good)),
        ("b", rows(*good)),
        ("c", rows(*good, {"question": "x", "answer": 1})),
    ):
        files.append(tmp_path / f"{name}.jsonl")
        files[-1].write_text(content)
    first, again, other = (
        workflow("vote", style="full", problems=str(file)).spec.hash for file in files
    )
    assert first == again != other
    setup = workflow("vote", style="full", problems=str(files[0]))
    solver = play_scripts(
        setup.task("test", 3), dict.fromkeys(range(3), setup.environment.policies["solver"]())
    )
    assert solver.result["final"] == 1.0 and solver.turns[0].reply.startswith("Answer: ")
    question = setup.environment.start_id(setup.config, split="test", seed=3)
    assert share_of(question) == "test" and "####" not in solver.turns[0].reply
    for content, message in (
        ('{"question": "a", "answer": "b"}\n\n{oops', r"line 3: not JSON"),
        (rows(good[0], {"question": "a"}), r'line 2: no "answer"'),
        (rows({"answer": "a", "question": " "}), r'line 1: no "question"'),
        (rows(["a", "b"]), r'line 1: no "question"'),
        (
            rows(good[0], good[1], {**good[0], "answer": "7"}),
            "line 3: the question of line 1 with another answer",
        ),
        ("", "0 different problems, of which none falls to eval, eval-, test, train"),
    ):
        bad = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        bad.write_text(content)
        with pytest.raises(SettingsError, match=message):
            workflow("vote", problems=str(bad))
    for problems, message in (
        (str(tmp_path / "none.jsonl"), "cannot be read"),
        ("chain", "allowed: chain_sum, a file of JSON lines"),
    ):
        with pytest.raises(SettingsError, match=message):
            workflow("vote", problems=problems)


def test_reasoning_gym_is_asked_for_by_name_and_its_verifier_may_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(SettingsError, match=r"uv pip install reasoning-gym==0\.1\.25"):
        workflow("vote", problems="reasoning-gym:absent")

    class Set:
        def __getitem__(self, number: int) -> dict[str, Any]:
            return {"question": f"Say {number}.", "answer": str(number), "metadata": {}}

        def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
            return {entry["answer"]: 1.0, "close": 0.9}[answer]

    factory = ModuleType("reasoning_gym.factory")
    factory.DATASETS = {"say": Set}  # type: ignore[attr-defined]
    factory.create_dataset = lambda name, **fields: Set()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reasoning_gym", ModuleType("reasoning_gym"))
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", factory)
    monkeypatch.setattr(
        "hanabi_grpo.envs.workflows.problems.metadata.version", lambda name: "0.1.25"
    )
    with pytest.raises(SettingsError, match=r"did you mean 'say'\? 1 are known"):
        workflow("vote", problems="reasoning-gym:sai")
    setup = workflow("vote", problems="reasoning-gym:say", style="full")
    found = play(
        setup,
        [
            "Answer: close",
            "hm",
            f"Answer: {setup.environment.problem(setup.config, split='eval', seed=0).answer}",
        ],
    )
    assert paid(found, "correct") == [[0.0, 0.0, 1.0]], (
        "a verifier's partial credit is no right answer"
    )
    with pytest.raises(VerifierError, match=r"raised KeyError .*the episode does not count"):
        play(setup, ["Answer: 7"] * 3)


def test_fields_are_settings_and_a_tiny_model_knows_every_word(tmp_path: Path) -> None:
    loaded = load_settings(
        {"HANABI_ENV": "debate", "HANABI_ROUNDS": "3", "HANABI_CHAIN_TERMS": "2"}, tmp_path
    ).settings
    assert (loaded.setup().config.rounds, loaded.players, loaded.setup().config.style) == (
        3,
        2,
        "compact",
    )
    with pytest.raises(SettingsError, match="HANABI_ROUNDS"):
        load_settings({"HANABI_ENV": "vote", "HANABI_ROUNDS": "3"}, tmp_path)
    for env in WORKFLOWS:
        recipe = Recipe.of(env, presets=(env,))
        [setup] = recipe.setups()
        words = game_words(setup, num_games=100)
        numbers = {str(number) for number in range(-2 * HIGHEST, 3 * HIGHEST + 1)}
        assert set(words) == {*numbers, "+", "-", "=", "?", "own", "other", "none"}
        tokenizer = build_tokenizer(words)
        for sample in recipe.samples(setup, ChatFormat.from_tokenizer(tokenizer), 50):
            # A result on the way, =, the answer and the end: as many as MAX_COMPLETION_LENGTH
            # allows without a GPU.
            assert (
                tokenizer.unk_token_id not in sample.ids
                and sum(sample.is_reply) <= loaded.max_completion_length
            )
        assert unknown_words(("two",), tokenizer) == ("two",)
