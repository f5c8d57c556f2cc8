"""`hanabi-grpo compare`: arms of several seeds, from the arguments to the picture."""

import json
import math
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from scipy import stats
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.comparison.arms import Arm, load_arms, parse_arms
from hanabi_grpo.evaluation.comparison.conditions import condition_notes
from hanabi_grpo.evaluation.comparison.figures import arm_curve, held_out, welch_difference
from hanabi_grpo.evaluation.comparison.kinds import EvaluationKind
from hanabi_grpo.evaluation.comparison.tables import (
    Comparison,
    compare_arms,
    comparison_notes,
    comparison_sheets,
)
from hanabi_grpo.evaluation.tables import BEST_KNOWN_SOURCE
from hanabi_grpo.runs.evaluation_result import SeatOrder
from tracked_runs import add_row
from training_runs import LAPTOP, made_evaluation, made_run

SAMPLED_FILE = "sampled.json"
SAMPLED = EvaluationKind(name="sampled")
FEW_SCORES = st.lists(st.floats(0, 25), min_size=2, max_size=6)
CHECKPOINT = "frozen_0123456789abcdef"
"""Seat of a guest adapter, without its version."""


def loaded(**arms: list[Path]) -> tuple[Arm, ...]:
    _, loaded_arms = load_arms(arms)
    return loaded_arms


def compared(**arms: list[Path]) -> Comparison:
    preset, loaded_arms = load_arms(arms)
    return compare_arms(preset, loaded_arms)


def seat_order(specs: tuple[str, str], *seats: str) -> SeatOrder:
    return SeatOrder(words=specs, seats=seats, mean=0.0, standard_error=0.0)


def team_order(run: Path, step: int) -> SeatOrder:
    """Return the seats of a run's checkpoint that plays with itself."""
    return seat_order((str(run), str(run)), f"{CHECKPOINT}@{step}", f"{CHECKPOINT}@{step}")


def test_arms_are_names_and_folders_and_a_star_stands_for_those_that_match(tmp_path: Path) -> None:
    for name in ("a-1", "a-0", "b-0"):
        (tmp_path / name).mkdir()
    (tmp_path / "a-file").write_text("")
    assert parse_arms([" per  player = x/a=1 , y", f"a={tmp_path}/a-*"]) == {
        "per player": [Path("x/a=1"), Path("y")],
        "a": [tmp_path / "a-0", tmp_path / "a-1"],
    }


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["outputs/a"], "'outputs/a': an arm needs a name and runs"),
        (["=outputs/a"], "an arm needs a name"),
        (["a=x,,y"], "a folder name is empty"),
        (["a=/nowhere/x*"], "'/nowhere/x*' of arm 'a': no folder matches"),
        (["a=x", "a=y"], "two arms are called 'a'"),
        (["a=x,y", "b=z/../y"], "z/../y: is in 'a' and again in 'b'"),
        (["a=x,x/train"], "x/train: is in 'a' and again in 'a'"),
    ],
)
def test_arms_that_cannot_be_read_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_arms(texts)
    assert message in str(caught.value)


def test_a_run_is_read_with_games_seconds_and_evaluations_beside_it(tmp_path: Path) -> None:
    home = made_run(
        tmp_path / "demo" / "train", [1.0, None, 2.0], settings={"SEED": 3}, tail='{"step": 4, "ga'
    )
    made_evaluation(tmp_path / "demo" / SAMPLED_FILE, [1.0, 3.0, 2.0])
    (tmp_path / "demo" / "other.json").write_text('{"scores": []}')
    for folder in (tmp_path / "demo", home):
        preset, (arm,) = load_arms({"a": [folder]})
        (run,) = arm.runs
        assert preset == "laptop"
        assert run.x.tolist() == [1, 3]
        assert run.scores.tolist() == [1, 2]
        assert run.num_games == 192
        assert run.seconds == 6.0
        assert run.settings["SEED"] == 3
        assert list(run.evaluations) == [SAMPLED]


def test_the_seconds_of_a_resumed_runs_parts_are_added(tmp_path: Path) -> None:
    home = made_run(tmp_path, [])
    rows = []
    for step, seconds in enumerate((5, 9, 4, 8, 3)):
        rows.append({"step": step, "games": 1, "score/mean": 1, "seconds": seconds})
    (home / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [arm] = loaded(a=[home])
    assert arm.runs[0].seconds == 9 + 8 + 3


def test_another_metric_is_compared_in_the_steps_that_have_it(tmp_path: Path) -> None:
    home = made_run(tmp_path, [1.0, None, 2.0])
    _, [arm] = load_arms({"a": [home]}, metric="games")
    assert arm.runs[0].scores.tolist() == [64.0] * 3
    message = (
        r'no step has a "exploitability"; choose one of games, games/laptop, .*score/mean, seconds'
    )
    with pytest.raises(SettingsError, match=message):
        load_arms({"a": [home]}, metric="exploitability")


def test_the_last_steps_of_a_metric_that_few_steps_have_are_steps(tmp_path: Path) -> None:
    rare = [float(step) if step % 20 == 0 else None for step in range(1, 101)]
    _, arms = load_arms({"a": [made_run(tmp_path, rare)]})
    comparison = compare_arms("laptop", arms, window=10)
    assert comparison.training == ((100.0,),)
    assert comparison.curves[0].mean.tolist() == [20.0, 40.0, 60.0, 80.0, 100.0]
    wide = compare_arms("laptop", arms, window=41)
    assert wide.training == ((80.0,),)
    assert wide.curves[0].mean[-1] == 80.0


@pytest.mark.parametrize(
    ("name", "metrics", "message"),
    [
        ("torn", '{"step": 1, "ga', 'no step has a "score/mean"'),
        ("null", '{"step": 1, "games": 2, "score/mean": null}', 'no step has a "score/mean"'),
        ("missing", None, "no such folder"),
        ("empty", None, "neither it nor its train/ has a metrics.jsonl"),
    ],
)
def test_folders_that_are_no_runs_are_refused(
    tmp_path: Path, name: str, metrics: str | None, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    if metrics is not None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(metrics)
    with pytest.raises(SettingsError, match=message):
        loaded(a=[tmp_path / name])


def test_runs_of_different_presets_are_refused(tmp_path: Path) -> None:
    laptop = made_run(tmp_path / "l", [1.0])
    mini = made_run(tmp_path / "m", [2.0], preset="mini")
    with pytest.raises(SettingsError, match=r"different presets \(.*l: laptop; .*m: mini\)"):
        loaded(a=[laptop], b=[mini])


@pytest.mark.filterwarnings("ignore:Precision loss")  # SciPy's own, of runs that are all alike
@given(FEW_SCORES, FEW_SCORES)
def test_differences_and_their_interval_are_welchs(first: list[float], other: list[float]) -> None:
    difference = welch_difference(first, other)
    assert difference.mean == pytest.approx(fmean(other) - fmean(first))
    if np.var(first) + np.var(other) < 1e-4:
        return
    expected = stats.ttest_ind(other, first, equal_var=False)
    interval = expected.confidence_interval(0.95)
    statistic = difference.mean / difference.standard_error
    assert statistic == pytest.approx(expected.statistic, rel=1e-6)
    assert difference.low == pytest.approx(interval.low, rel=1e-6, abs=1e-9)
    assert difference.high == pytest.approx(interval.high, rel=1e-6, abs=1e-9)


def test_a_band_is_a_t_interval_of_three_runs_and_fewer_have_none(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / str(height), [height] * 4) for height in (1.0, 2.0, 3.0)]
    three, two, one = (arm_curve(loaded(a=runs[:count])[0], 4, 2) for count in (3, 2, 1))
    assert three.has_band
    assert three.mean.tolist() == [2.0] * 4
    assert three.high.tolist() == pytest.approx([2.0 + 4.302653 * 3**-0.5] * 4)
    assert not two.has_band
    assert two.low.tolist() == [1.5] * 4
    assert two.high.tolist() == [1.5] * 4
    assert not one.has_band
    assert one.low.tolist() == [1.0] * 4


def test_a_line_ends_where_every_run_has_been_at_the_training_mean(tmp_path: Path) -> None:
    long = made_run(tmp_path / "long", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    gaps = made_run(tmp_path / "gaps", [2.0, None, 4.0, 6.0, None])
    short = made_run(tmp_path / "short", [3.0, 1.0, 1.0, 5.0])
    arms = loaded(a=[long, gaps], b=[short])
    end = 4
    comparison = compare_arms("laptop", arms, window=2)
    assert comparison.end == end
    assert comparison.training == ((3.5, 5.0), (3.0,))
    for curve, training in zip(comparison.curves, comparison.training, strict=True):
        assert curve.x[-1] <= end
        assert curve.mean[-1] == pytest.approx(fmean(training))
    assert arm_curve(arms[0], end, 1).mean.tolist() == [1.5, 2.5, 3.5, 5.0]


def seeded_arm(folder: Path, name: str, means: dict[int, float]) -> list[Path]:
    """Write runs with these mean scores by seed."""
    runs = []
    for seed, mean in means.items():
        run = made_run(folder / f"{name}{seed}", [1.0], settings={"SEED": seed})
        made_evaluation(run / SAMPLED_FILE, [mean - 0.25, mean + 0.25])
        runs.append(run)
    return runs


def test_arms_of_the_same_seeds_are_compared_in_pairs_with_a_t_interval(tmp_path: Path) -> None:
    first = seeded_arm(tmp_path, "a", {0: 1.0, 1: 2.0, 2: 3.5})
    # In another order.
    other = seeded_arm(tmp_path, "b", {2: 3.75, 0: 1.5, 1: 2.5})
    score = held_out(loaded(a=first, b=other), SAMPLED).arms[1]
    assert score is not None
    assert score.difference is not None
    assert score.num_pairs == 3
    expected = stats.ttest_rel([1.5, 2.5, 3.75], [1.0, 2.0, 3.5])
    interval = expected.confidence_interval(0.95)
    assert score.difference.mean == pytest.approx(1.25 / 3)
    assert score.difference.standard_error == pytest.approx(1.25 / 3 / expected.statistic)
    assert score.difference.low == pytest.approx(interval.low, rel=1e-6)
    assert score.difference.high == pytest.approx(interval.high, rel=1e-6)


@pytest.mark.parametrize(
    "means", [{0: 1.5, 1: 2.5}, {0: 1.5, 1: 2.5, 3: 4.0}, {0: 1.5, 1: 2.5, 2: 4.0, 3: 4.5}]
)
def test_arms_of_other_seeds_are_compared_by_welch(tmp_path: Path, means: dict[int, float]) -> None:
    first = seeded_arm(tmp_path, "a", {0: 1.0, 1: 2.0, 2: 3.5})
    other = seeded_arm(tmp_path, "b", means)
    score = held_out(loaded(a=first, b=other), SAMPLED).arms[1]
    assert score is not None
    assert score.num_pairs == 0
    assert score.difference == welch_difference([1.0, 2.0, 3.5], list(means.values()))


def test_a_seed_that_an_arm_has_twice_pairs_nothing(tmp_path: Path) -> None:
    first = seeded_arm(tmp_path, "a", {0: 1.0, 1: 2.0})
    other = seeded_arm(tmp_path, "b", {0: 1.5}) + seeded_arm(tmp_path / "again", "b", {0: 2.5})
    other += seeded_arm(tmp_path, "b", {1: 3.0})
    score = held_out(loaded(a=first, b=other), SAMPLED).arms[1]
    assert score is not None
    assert score.num_pairs == 0


def evaluated_arms(folder: Path) -> dict[str, list[Path]]:
    """Write arms a and b with two and three runs, of which the last was not evaluated.

    The mean scores are 1 and 2 of a, 2 and 3 of b.
    """
    arms: dict[str, list[Path]] = {"a": [], "b": []}
    for name, rises in (("a", (0.0, 1.0)), ("b", (1.0, 2.0, None))):
        for seed, rise in enumerate(rises):
            run = made_run(folder / f"{name}{seed}", [1.0])
            if rise is not None:
                made_evaluation(
                    run / SAMPLED_FILE,
                    [rise, rise + 1.0, rise + 2.0, rise + 1.0],
                    figures={"bombed": rise / 4},
                )
            arms[name].append(run)
    return arms


def test_held_out_scores_have_errors_over_runs(tmp_path: Path) -> None:
    evaluation = held_out(loaded(**evaluated_arms(tmp_path)), SAMPLED)
    first, other = evaluation.arms
    assert first is not None
    assert other is not None
    assert evaluation.same_tasks
    assert evaluation.name == "sampled (T=1)"
    assert first.means == (1.0, 2.0)
    assert first.seeds.mean == 1.5
    assert first.figures == {"bombed": 0.125}
    assert first.seeds.standard_error == pytest.approx(0.5)
    assert first.difference is None
    assert other.difference is not None
    assert len(other.means) == 2
    assert other.num_runs == 3
    assert other.difference.mean == 1.0
    assert other.difference.standard_error == pytest.approx(0.5**0.5)


def test_files_of_one_name_over_other_tasks_are_marked_and_of_other_games_refused(
    tmp_path: Path,
) -> None:
    arms = evaluated_arms(tmp_path)
    made_evaluation(arms["b"][0] / SAMPLED_FILE, [1.0] * 5)
    assert not held_out(loaded(**arms), SAMPLED).same_tasks
    made_evaluation(arms["b"][2] / SAMPLED_FILE, [1.0] * 4, spec_hash="0" * 12)
    message = r"sampled.json: 'a' was evaluated on hanabi laptop with 2 players .* 'b' on .*0000"
    with pytest.raises(SettingsError, match=message):
        held_out(loaded(**arms), SAMPLED)


def test_an_evaluation_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / name, [1.0]) for name in ("a", "b")]
    made_evaluation(runs[0] / SAMPLED_FILE, [1.0, 2.0])
    path = runs[1] / SAMPLED_FILE
    made_evaluation(path, [1.0, 2.0])
    path.write_text(json.dumps({**json.loads(path.read_text()), "starts": [0, 0]}))
    comparison = compared(arm=runs)
    [evaluation] = comparison.evaluations
    [score] = evaluation.arms
    assert score is not None
    assert (len(score.means), score.num_runs) == (1, 2)
    note = (
        f"{tmp_path.name}/b: sampled.json: 2 task(s) with 1 start(s): a mean with an error needs "
        "at least 2 starts; play more tasks; this evaluation is left out."
    )
    assert note in comparison_notes(comparison)


def test_files_of_one_name_that_were_sampled_seated_or_worded_differently_say_so(
    tmp_path: Path,
) -> None:
    first = made_run(tmp_path / "a", [1.0])
    other = made_run(tmp_path / "b", [1.0])
    made_evaluation(first / SAMPLED_FILE, [1.0] * 4, orders=(team_order(first, 50),))
    made_evaluation(other / SAMPLED_FILE, [2.0] * 4, orders=(team_order(other, 50),))
    assert not [
        note for note in comparison_notes(compared(a=[first], b=[other])) if ".json" in note
    ]
    with_bot = seat_order((str(other), "iggi"), f"{CHECKPOINT}@50", "iggi")
    made_evaluation(
        other / SAMPLED_FILE,
        [2.0] * 4,
        orders=(with_bot,),
        top_p=0.5,
        env_config={**LAPTOP.row()["env_config"], "observation": "full", "reward_illegal": -9.0},
    )
    comparison = compared(a=[first], b=[other])
    assert [evaluation.name for evaluation in comparison.evaluations] == [
        "sampled (T=1, top-p 0.5; T=1)"
    ]
    observation = LAPTOP.row()["env_config"]["observation"]
    notes = [note for note in comparison_notes(comparison) if ".json" in note]
    assert notes == [
        "sampled.json: runs were evaluated with different sampling: T=1, top-p 0.5; T=1.",
        "sampled.json: runs were evaluated in different lineups: trained team; trained, iggi in "
        "one seat order.",
        f"sampled.json: runs were evaluated with different observation: {observation}, full.",
    ]


def test_evaluations_that_evaluate_left_in_the_run_folders_are_compared(tmp_path: Path) -> None:
    """Their file names differ from run to run, because they hold a digest of the weights."""
    runs = {}
    for name, height in (("a", 1.0), ("b", 2.0)):
        run = made_run(tmp_path / name, [1.0])
        made_evaluation(
            run / "evaluations" / f"{name}_checkpoint-50-T1-4-{name * 8}.json",
            [height, height + 1.0, height, height + 1.0],
            orders=(team_order(run, 50),),
        )
        runs[name] = [run]
    comparison = compared(**runs)
    [evaluation] = comparison.evaluations
    assert evaluation.name == "trained team (T=1)"
    assert [score and score.means for score in evaluation.arms] == [(1.5,), (2.5,)]
    arms_sheet, *_ = comparison_sheets(comparison)
    assert arms_sheet.columns[-1] == "trained team (T=1)"
    assert [row[-1] for row in arms_sheet.groups[0]] == ["1.500 ± –", "2.500 ± –"]


def test_kept_evaluations_of_other_tasks_boards_temperatures_and_lineups_are_told_apart(
    tmp_path: Path,
) -> None:
    first = made_run(tmp_path / "a", [1.0])
    other = made_run(tmp_path / "b", [1.0])
    team = {"orders": (team_order(first, 50),)}
    made_evaluation(first / "evaluations" / "plain.json", [1.0] * 4, **team)
    made_evaluation(other / "evaluations" / "tasks.json", [1.0] * 5, **team)
    made_evaluation(other / "evaluations" / "suite.json", [1.0] * 4, suite="test", **team)
    made_evaluation(other / "evaluations" / "board.json", [1.0] * 4, spec_hash="0" * 12, **team)
    made_evaluation(other / "evaluations" / "greedy.json", [1.0] * 4, temperature=0.0, **team)
    with_bot = seat_order((f"{other}:player_1", "iggi"), f"{CHECKPOINT}@50", "iggi")
    bot_first = seat_order(("iggi", f"{other}:player_1"), "iggi", f"{CHECKPOINT}@50")
    both_orders = (with_bot, bot_first)
    made_evaluation(other / "evaluations" / "bot.json", [1.0] * 4, orders=both_orders)
    made_evaluation(first / "evaluations" / "bot-order.json", [1.0] * 4, orders=(with_bot,))
    made_evaluation(first / "evaluations" / "filtered.json", [1.0] * 4, top_p=0.5, **team)
    comparison = compared(a=[first], b=[other])
    has_both = [None not in evaluation.arms for evaluation in comparison.evaluations]
    assert has_both == [False] * 8
    assert sorted(evaluation.name for evaluation in comparison.evaluations) == [
        "trained player_1, iggi (T=1)",
        "trained player_1, iggi in one seat order (T=1)",
        "trained team (T=1), laptop, 4 tasks of eval",
        "trained team (T=1), laptop, 4 tasks of eval",
        "trained team (T=1), laptop, 4 tasks of test",
        "trained team (T=1), laptop, 5 tasks of eval",
        "trained team (T=1, top-p 0.5)",
        "trained team (greedy)",
    ]


def test_kept_evaluations_with_other_limits_or_models_behind_urls_are_told_apart(
    tmp_path: Path,
) -> None:
    first = made_run(tmp_path / "a", [1.0])
    other = made_run(tmp_path / "b", [1.0])
    kept = "evaluations/kept.json"
    team = {"orders": (team_order(first, 50),)}
    made_evaluation(first / kept, [1.0] * 4, max_tokens=64, **team)
    made_evaluation(other / kept, [2.0] * 4, max_tokens=512, **team)
    names = [evaluation.name for evaluation in compared(a=[first], b=[other]).evaluations]
    title = "trained team (T=1), laptop, 4 tasks of eval, replies of at most"
    assert names == [f"{title} 64 tokens", f"{title} 512 tokens"]
    # An earlier version did not record the limit.
    made_evaluation(other / kept, [2.0] * 4, **team)
    [evaluation] = compared(a=[first], b=[other]).evaluations
    assert [score and score.means for score in evaluation.arms] == [(1.0,), (2.0,)]
    with_url = {"orders": (seat_order(("served", "url:big"), "player_0@50", "url:big"),)}
    for run, model in ((first, "big"), (other, "small")):
        policies = {"url:big": f"http://localhost:1/v1#{model}"}
        made_evaluation(run / kept, [1.0] * 4, policies=policies, **with_url)
    comparison = compared(a=[first], b=[other])
    assert [None in evaluation.arms for evaluation in comparison.evaluations] == [True, True]


def test_files_of_one_name_with_other_limits_or_models_behind_urls_say_so(tmp_path: Path) -> None:
    runs = []
    for name, model, limit in (("a", "big", 64), ("b", "small", 512)):
        run = made_run(tmp_path / name, [1.0])
        made_evaluation(
            run / SAMPLED_FILE,
            [1.0] * 4,
            orders=(seat_order(("served", "url:big"), "player_0@50", "url:big"),),
            policies={"url:big": f"http://secret-host:1/v1#{model}"},
            max_tokens=limit,
        )
        runs.append(run)
    notes = [note for note in comparison_notes(compared(a=runs[:1], b=runs[1:])) if ".json" in note]
    assert notes == [
        "sampled.json: runs were evaluated with different MAX_COMPLETION_LENGTH: 64, 512.",
        "sampled.json: runs were evaluated with different models behind url:big: big, small.",
    ]


def test_a_run_with_the_row_of_step_0_alone_is_compared(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    add_row(begun, 0, games=64.0, **{"score/mean": 1.0})
    comparison = compared(a=[begun])
    assert comparison.end == 0
    assert comparison_notes(comparison)[0] == ("Only one run, so there is no error over seeds: a.")


def test_of_kept_evaluations_of_several_checkpoints_the_last_ones_are_compared(
    tmp_path: Path,
) -> None:
    runs = {}
    for name, steps in (("a", (50, 100)), ("b", (200,))):
        run = made_run(tmp_path / name, [1.0])
        for step in steps:
            made_evaluation(
                run / "evaluations" / f"checkpoint-{step}.json",
                [step / 100] * 4,
                orders=(team_order(run, step),),
            )
        runs[name] = [run]
    comparison = compared(**runs)
    [evaluation] = comparison.evaluations
    assert [score and score.means for score in evaluation.arms] == [(1.0,), (2.0,)]
    note = "trained team (T=1): runs were evaluated after 100 to 200 steps of training."
    assert note in comparison_notes(comparison)


def test_a_served_team_and_a_checkpoint_are_one_kind_and_pairs_of_runs_are_none(
    tmp_path: Path,
) -> None:
    first = made_run(tmp_path / "a", [1.0])
    other = made_run(tmp_path / "b", [1.0])
    served = seat_order(("served", "served"), "player_0@50", "player_1@50")
    made_evaluation(first / "evaluations" / "served.json", [1.0] * 4, orders=(served,))
    made_evaluation(
        other / "evaluations" / "saved.json", [2.0] * 4, orders=(team_order(other, 50),)
    )
    pair = seat_order((str(first), str(other)), f"{CHECKPOINT}@50", "frozen_ffffffffffffffff@50")
    for run in (first, other):
        made_evaluation(run / "evaluations" / "pair.json", [3.0] * 4, orders=(pair,))
    [evaluation] = compared(a=[first], b=[other]).evaluations
    assert [score and score.means for score in evaluation.arms] == [(1.0,), (2.0,)]


def test_settings_that_differ_are_said_and_those_that_change_nothing_are_not(
    tmp_path: Path,
) -> None:
    def run(name: str, **settings: object) -> Path:
        without_effect = {
            "OUTPUT_DIR": f"/tmp/{name}",
            "PORT": len(name),
            "HANABI_TASK_SEED": 1,
            "WANDB_NAME": name,
        }
        return made_run(tmp_path / name, [1.0], settings={**without_effect, **settings})

    base = [run("a0", SEED=0, MODEL="/home/me/x/tiny"), run("a1", SEED=1, MODEL="/home/me/x/tiny")]
    other = [
        run("b0", SEED=0, MODEL="/home/me/y/tiny", BETA=0.1),
        run("b1", SEED=0, MODEL="/home/me/y/tiny", BETA=0.2),
    ]
    assert condition_notes(loaded(a=base)) == []
    assert condition_notes(loaded(a=base, b=other)) == [
        "Settings of b that differ from those of a: MODEL=y/tiny (vs. x/tiny).",
        "The runs of b differ in BETA: 0.1, 0.2.",
        "Runs of b share SEED and HANABI_TASK_SEED: they are not independent seeds.",
    ]


def test_the_command_compares_two_arms_in_tables_a_picture_and_figures(tmp_path: Path) -> None:
    for name, height in (("a", 1.0), ("b", 2.0)):
        for seed in range(3):
            run = tmp_path / f"{name}-{seed}"
            made_run(run / "train", [height + 0.1 * seed] * 12, settings={"SEED": seed})
            for kind, rise, temperature in (("sampled", 0.0, 1.0), ("greedy", 0.5, 0.0)):
                scores = [height + rise + 0.1 * seed] * 3 + [height + rise - 0.1]
                made_evaluation(run / f"{kind}.json", scores, temperature=temperature)
    arms = [f"per player={tmp_path}/a-*", f"shared={tmp_path}/b-0,{tmp_path}/b-1,{tmp_path}/b-2"]
    out = tmp_path / "new folder"
    files = [f"--out-png={out}/c.png", f"--out-markdown={out}/c.md"]
    answer = CliRunner().invoke(app, ["compare", *arms, *files])
    assert answer.exit_code == 0, answer.output
    lines = (out / "c.md").read_text(encoding="utf-8").splitlines()
    heading = (
        "| arm | runs | games/run | seconds/run | training, last 10 steps | greedy | sampled "
        "(T=1) |"
    )
    assert heading in lines
    # Means 1.1 of training; of sampled 0.975, 1.05 and 1.125.
    error = 0.075 / math.sqrt(3)
    scores_of_first = f"1.100 ± 0.058 | 1.550 ± {error:.3f} | 1.050 ± {error:.3f}"
    assert f"| per player | 3 | 768 | 24 | {scores_of_first} |" in lines
    difference = next(line for line in lines if line.startswith("| shared − per player"))
    # Each seed's runs differ by 1 exactly.
    assert difference == "| shared − per player | +1.000 ± 0.000 | +1.000 to +1.000 | 3 |"
    assert lines[-1] == f"- {BEST_KNOWN_SOURCE}"
    assert "| best known | – | – | – | – | 3.97 | 3.97 |" in lines
    assert lines.count("| best known | 3.97 | – | – | – |") == 2
    assert any(line.startswith("| arm | score_kept | bombed |") for line in lines)
    pixels = (imread(out / "c.png")[..., :3].reshape(-1, 3) * 255).round().astype(int).tolist()
    for color in ("#0072B2", "#D55E00"):
        assert [round(255 * part) for part in to_rgb(color)] in pixels


def test_an_arm_whose_name_begins_with_an_underscore_is_named_in_the_picture(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        made_run(tmp_path / name, [1.0, 2.0])
    picture = tmp_path / "c.svg"
    arms = [f"_base_={tmp_path}/a", f"*other*={tmp_path}/b"]
    files = [f"--out-png={picture}", f"--out-markdown={tmp_path}/c.md"]
    answer = CliRunner().invoke(app, ["compare", *arms, *files])
    assert answer.exit_code == 0, answer.output
    text = picture.read_text()
    assert "_base_ 1.50" in text
    assert "*other* 1.50" in text
    markdown = (tmp_path / "c.md").read_text()
    assert r"so there is no error over seeds: \_base\_, \*other\*." in markdown


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--window", "0", "Invalid value for '--window'"),
        ("--out-markdown", "metrics.jsonl/c.md", "c.md: cannot be written ("),
        ("--out-png", "metrics.jsonl/c.png", "choose another place"),
        ("--out-png", "c.txt", "c.txt: give a name that ends in .png or .svg."),
        ("--out-markdown", "./metrics.jsonl", "exists, and nothing in it says that a report"),
        ("--out-png", "./metrics.png", "exists, and nothing in it says that a report"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    tmp_path: Path, option: str, value: str, message: str
) -> None:
    run = made_run(tmp_path / "run", [1.0])
    rows = (run / "metrics.jsonl").read_text()
    (run / "metrics.png").write_text("no picture")
    argument = f"{run}/{value}" if "/" in value else value
    answer = CliRunner().invoke(app, ["compare", f"a={run}", option, argument])
    assert answer.exit_code == 2, answer.output
    assert message in answer.output.replace("\n", " ")
    assert (run / "metrics.jsonl").read_text() == rows
