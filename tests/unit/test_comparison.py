import dataclasses
import json
import math
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hanabi_grpo.evaluation.comparison.conditions import condition_notes
from hanabi_grpo.evaluation.comparison.curves import Axis, arm_curve, common_end, last_mean
from hanabi_grpo.evaluation.comparison.held_out import held_out
from hanabi_grpo.evaluation.comparison.runs import Arm, load_arms
from hanabi_grpo.evaluation.comparison.seeds import over_seeds, welch_difference
from hanabi_grpo.evaluation.comparison.words import parse_arms, parse_reference
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hanabi_grpo.errors import SettingsError
from training_runs import made_evaluation, made_run

SAMPLED = "sampled.json"
FEW = st.lists(st.floats(0, 25), min_size=2, max_size=6)


def loaded(**arms: list[Path]) -> tuple[Arm, ...]:
    return load_arms(arms)[1]


def test_arms_are_names_and_folders_and_a_star_stands_for_those_that_match(tmp_path: Path) -> None:
    for name in ("a-1", "a-0", "b-0"):
        (tmp_path / name).mkdir()
    (tmp_path / "a-file").write_text("")
    assert parse_arms([" per  player = x/a=1 , y", f"a={tmp_path}/a-*"]) == {
        "per player": [Path("x/a=1"), Path("y")],
        "a": [tmp_path / "a-0", tmp_path / "a-1"],
    }
    for texts, message in (
        ([], "no arm to compare; give NAME=RUN"),
        (["outputs/a"], "'outputs/a': an arm needs a name and runs"),
        (["=outputs/a"], "an arm needs a name"),
        (["a="], "a folder name is empty"),
        (["a=x,,y"], "a folder name is empty"),
        (["a=/nowhere/x*"], "'/nowhere/x*' of arm 'a': no folder matches"),
        (["a=x", "a=y"], "two arms are called 'a'"),
        (["a=x,y", "b=z/../y"], "z/../y: is in 'a' and again in 'b'"),
        (["a=x,x/train"], "x/train: is in 'a' and again in 'a'"),
    ):
        with pytest.raises(SettingsError) as caught:
            parse_arms(texts)
        assert message in str(caught.value)


def test_a_reference_is_a_name_and_a_number() -> None:
    assert parse_reference("T=1 hint-bot=2.632") == ("T=1 hint-bot", 2.632)
    for text in ("hint-bot", "=2", "a=", "a=nan", "a=inf", "a=x"):
        with pytest.raises(SettingsError, match=r"give NAME=SCORE"):
            parse_reference(text)


def test_a_run_is_read_with_games_seconds_and_evaluations_beside_it(tmp_path: Path) -> None:
    made_run(tmp_path / "demo" / "train", [1.0, None, 2.0], settings={"SEED": 3}, tail='{"step": 4, "ga')
    made_evaluation(tmp_path / "demo" / SAMPLED, [1.0, 3.0, 2.0])
    (tmp_path / "demo" / "other.json").write_text('{"scores": []}')
    for folder in (tmp_path / "demo", tmp_path / "demo" / "train"):
        preset, (arm,) = load_arms({"a": [folder]})
        (run,) = arm.runs
        assert preset == "laptop"
        assert (run.steps.tolist(), run.games.tolist(), run.scores.tolist()) == ([1, 3], [64, 192], [1, 2])
        assert (run.num_games, run.seconds, run.settings["SEED"]) == (192, 6.0, 3)
        assert list(run.evaluations) == [SAMPLED]


def test_the_parts_of_a_resumed_run_are_added(tmp_path: Path) -> None:
    rows = [{"step": step, "games": 1, "score/mean": 1, "seconds": time} for step, time in enumerate((5, 9, 4, 8, 3))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert loaded(a=[tmp_path])[0].runs[0].seconds == 9 + 8 + 3


def test_folders_that_are_no_runs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    no_score = 'no step has a "score/mean"'
    for name, text, message in (
        ("blank", "", no_score),
        ("torn", '{"step": 1, "ga', no_score),
        ("null", '{"step": 1, "games": 2, "score/mean": null}', no_score),
        ("missing", None, "no such folder"),
        ("empty", None, "neither it nor its train/ has a metrics.jsonl"),
    ):
        if text is not None:
            (tmp_path / name).mkdir()
            (tmp_path / name / "metrics.jsonl").write_text(text)
        with pytest.raises(SettingsError, match=message):
            loaded(a=[tmp_path / name])


def test_runs_of_different_presets_are_refused_unless_one_that_all_have_is_named(tmp_path: Path) -> None:
    laptop, mini = made_run(tmp_path / "l", [1.0]), made_run(tmp_path / "m", [2.0], preset="mini")
    both = made_run(tmp_path / "b", [1.0])
    row = {"step": 1, "games": 2, "score/mean": 1.5, "games/mini": 1, "score/mini": 2.5}
    row |= {"games/laptop": 1, "score/laptop": 0.5}
    (both / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    for arms, named, message in (
        ({"a": [laptop], "b": [mini]}, None, r"different presets \(.*l: laptop; .*m: mini\)"),
        ({"a": [laptop], "b": [both]}, None, r"choose one with --preset, e\.g\. laptop"),
        ({"a": [laptop], "b": [both]}, "mini", r"--preset mini: .*l trained on laptop"),
    ):
        with pytest.raises(SettingsError, match=message):
            load_arms(arms, preset=named)
    preset, found = load_arms({"a": [laptop], "b": [both]}, preset="laptop")
    assert (preset, [arm.runs[0].scores.tolist() for arm in found]) == ("laptop", [[1.0], [0.5]])


@pytest.mark.filterwarnings("ignore:Precision loss")  # SciPy's own, of runs that are all alike
@given(FEW, FEW)
def test_differences_and_their_interval_are_welchs(first: list[float], other: list[float]) -> None:
    found = welch_difference(first, other)
    assert found.mean == pytest.approx(fmean(other) - fmean(first))
    if np.var(first) + np.var(other) < 1e-4:
        return
    theirs = stats.ttest_ind(other, first, equal_var=False)
    interval = theirs.confidence_interval(0.95)
    assert found.mean / found.standard_error == pytest.approx(theirs.statistic, rel=1e-6)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)


def test_three_seeds_reach_four_errors_and_one_seed_has_none() -> None:
    found = over_seeds([1.0, 2.0, 3.0])
    assert (found.mean, found.standard_error) == (2.0, pytest.approx(3**-0.5))
    assert found.high - found.mean == pytest.approx(4.302653 * 3**-0.5)
    alone = over_seeds([2.5])
    assert alone.mean == 2.5 and math.isnan(alone.standard_error) and math.isnan(alone.low)
    assert math.isnan(welch_difference([1.0], [2.0, 3.0]).standard_error)
    assert welch_difference([1.0, 1.0], [2.0, 2.0]) == dataclasses.replace(
        over_seeds([1.0, 1.0]), mean=1.0, low=1.0, high=1.0
    )


def test_a_band_is_a_t_interval_of_three_runs_the_range_of_two_and_nothing_of_one(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / str(height), [height] * 4) for height in (1.0, 2.0, 3.0)]
    three, two, one = (arm_curve(loaded(a=runs[:count])[0], Axis.STEPS, 4, 2) for count in (3, 2, 1))
    assert three.band == "t interval" and three.mean.tolist() == [2.0] * 4
    assert three.high.tolist() == pytest.approx([2.0 + 4.302653 * 3**-0.5] * 4)
    assert (two.band, two.low.tolist(), two.high.tolist()) == ("range", [1.0] * 4, [2.0] * 4)
    assert (one.band, one.low.tolist()) == ("", [1.0] * 4)


@pytest.mark.parametrize(("axis", "end"), [(Axis.STEPS, 4), (Axis.GAMES, 256)])
def test_a_line_ends_where_every_run_has_been_at_the_training_mean(tmp_path: Path, axis: Axis, end: float) -> None:
    long = made_run(tmp_path / "long", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    gaps = made_run(tmp_path / "gaps", [2.0, None, 4.0, 6.0, None])
    fast = made_run(tmp_path / "fast", [3.0, 1.0, 1.0, 5.0], games=100.0)
    arms = loaded(a=[long, gaps], b=[fast])
    assert common_end(arms, axis) == end
    for arm in arms:
        curve = arm_curve(arm, axis, end, 2)
        assert curve.x[-1] <= end
        assert curve.mean[-1] == pytest.approx(fmean(last_mean(run, axis, end, 2) for run in arm.runs))
    assert arm_curve(arms[0], axis, end, 1).mean.tolist() == [1.5, 2.5, 3.5, 5.0]


def test_errors_over_runs_and_over_deals_are_told_apart(tmp_path: Path) -> None:
    arms: dict[str, list[Path]] = {"a": [], "b": []}
    for name, rises in (("a", (0.0, 1.0)), ("b", (1.0, 2.0))):
        for seed, rise in enumerate(rises):
            run = made_run(tmp_path / f"{name}{seed}", [1.0])
            figures = {"bombed": rise / 4}
            made_evaluation(run / SAMPLED, [rise, rise + 1.0, rise + 2.0, rise + 1.0], figures=figures)
            arms[name].append(run)
    found = held_out(loaded(**arms), SAMPLED)
    first, other = found.arms
    assert first is not None and other is not None
    assert found.same_deals and found.name == "sampled (T=1)"
    assert (first.means, first.seeds.mean, first.figures) == ((1.0, 2.0), 1.5, {"bombed": 0.125})
    assert first.seeds.standard_error == pytest.approx(0.5)
    # Deviations of the mean over runs are -1, 0, 1, 0, by four starts.
    assert first.deals_error == pytest.approx((4 / 3 * 2) ** 0.5 / 4)
    assert first.difference is None and other.difference is not None
    assert other.difference.seeds.mean == 1.0
    assert other.difference.seeds.standard_error == pytest.approx(0.5**0.5)
    assert other.difference.deals_error == 0.0


def test_other_deals_have_no_error_over_deals_and_other_games_are_refused(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / str(number), [1.0]) for number in range(3)]
    for run, count in zip(runs, (4, 5), strict=False):
        made_evaluation(run / SAMPLED, [1.0] * count)
    found = held_out(loaded(a=runs[:1], b=runs[1:]), SAMPLED)
    score = found.arms[1]
    assert score is not None and score.difference is not None
    assert not found.same_deals and math.isnan(score.deals_error) and math.isnan(score.difference.deals_error)
    assert (len(score.means), score.num_runs) == (1, 2)
    made_evaluation(runs[2] / SAMPLED, [1.0] * 4, spec_hash="0" * 12)
    with pytest.raises(SettingsError, match=r"'a' was evaluated on hanabi laptop with 2 players .* 'b' on .*0000"):
        held_out(loaded(a=runs[:1], b=runs[1:]), SAMPLED)


def test_an_evaluation_that_nobody_has_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", [1.0])
    with pytest.raises(SettingsError, match=r"--evaluation greedy\.json: no run has this file"):
        load_arms({"a": [run]}, evaluations=["greedy.json"])
    (run / "greedy.json").write_text('{"results": [{"label": "x"}, {"label": "y"}]}')
    assert loaded(a=[run])[0].runs[0].evaluations == {}
    with pytest.raises(SettingsError, match=r"holds 2 line-ups \(x, y\)"):
        load_arms({"a": [run]}, evaluations=["greedy.json"])


def test_settings_that_differ_are_said_and_those_that_change_nothing_are_not(tmp_path: Path) -> None:
    def run(name: str, **settings: object) -> Path:
        always = {"OUTPUT_DIR": f"/tmp/{name}", "PORT": len(name), "HANABI_DEAL_SEED": 1, "WANDB_NAME": name}
        return made_run(tmp_path / name, [1.0], settings={**always, **settings})

    base = [run("a0", SEED=0, MODEL="/home/me/x/tiny"), run("a1", SEED=1, MODEL="/home/me/x/tiny")]
    other = [run("b0", SEED=0, MODEL="/home/me/y/tiny", BETA=0.1), run("b1", SEED=0, MODEL="/home/me/y/tiny", BETA=0.2)]
    assert condition_notes(loaded(a=base)) == []
    assert condition_notes(loaded(a=base, b=other)) == [
        "Settings of b that differ from those of a: MODEL=y/tiny (there x/tiny).",
        "The runs of b differ in BETA: 0.1, 0.2.",
        "Runs of b share SEED and HANABI_DEAL_SEED: they are no independent seeds.",
    ]
    for folder in other:
        (folder / "settings.json").write_text('{"sett')
    assert condition_notes(loaded(a=base, b=other)) == []
