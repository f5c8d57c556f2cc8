"""`hanabi-grpo compare`: arms of several seeds, from the words to the picture."""

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
from hanabi_grpo.evaluation.comparison.arms import Arm, condition_notes, load_arms, parse_arms
from hanabi_grpo.evaluation.comparison.figures import arm_curve, held_out, welch_difference
from hanabi_grpo.evaluation.comparison.tables import compare_arms
from hanabi_grpo.evaluation.tables import ATTAINABLE_SOURCE
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
        (["outputs/a"], "'outputs/a': an arm needs a name and runs"),
        (["=outputs/a"], "an arm needs a name"),
        (["a=x,,y"], "a folder name is empty"),
        (["a=/nowhere/x*"], "'/nowhere/x*' of arm 'a': no folder matches"),
        (["a=x", "a=y"], "two arms are called 'a'"),
        (["a=x,y", "b=z/../y"], "z/../y: is in 'a' and again in 'b'"),
        (["a=x,x/train"], "x/train: is in 'a' and again in 'a'"),
    ):
        with pytest.raises(SettingsError) as caught:
            parse_arms(texts)
        assert message in str(caught.value)


def test_a_run_is_read_with_games_seconds_and_evaluations_beside_it(tmp_path: Path) -> None:
    home = made_run(
        tmp_path / "demo" / "train", [1.0, None, 2.0], settings={"SEED": 3}, tail='{"step": 4, "ga'
    )
    made_evaluation(tmp_path / "demo" / SAMPLED, [1.0, 3.0, 2.0])
    (tmp_path / "demo" / "other.json").write_text('{"scores": []}')
    for folder in (tmp_path / "demo", home):
        preset, (arm,) = load_arms({"a": [folder]})
        (run,) = arm.runs
        assert (preset, run.x.tolist(), run.scores.tolist()) == ("laptop", [1, 3], [1, 2])
        assert (run.num_games, run.seconds, run.settings["SEED"]) == (192, 6.0, 3)
        assert list(run.evaluations) == [SAMPLED]
    # The parts of a resumed run are added.
    rows = [
        {"step": step, "games": 1, "score/mean": 1, "seconds": time}
        for step, time in enumerate((5, 9, 4, 8, 3))
    ]
    (home / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert loaded(a=[home])[0].runs[0].seconds == 9 + 8 + 3
    # Another figure, in the steps that have it.
    [games] = load_arms({"a": [home]}, metric="games")[1][0].runs
    assert games.scores.tolist() == [1] * 5
    with pytest.raises(
        SettingsError,
        match=r'no step has a "exploitability"; there are games, score/mean, seconds, step',
    ):
        load_arms({"a": [home]}, metric="exploitability")


def test_folders_that_are_no_runs_and_runs_of_different_presets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, text, message in (
        ("torn", '{"step": 1, "ga', 'no step has a "score/mean"'),
        ("null", '{"step": 1, "games": 2, "score/mean": null}', 'no step has a "score/mean"'),
        ("missing", None, "no such folder"),
        ("empty", None, "neither it nor its train/ has a metrics.jsonl"),
    ):
        if text is not None:
            (tmp_path / name).mkdir()
            (tmp_path / name / "metrics.jsonl").write_text(text)
        with pytest.raises(SettingsError, match=message):
            loaded(a=[tmp_path / name])
    runs = made_run(tmp_path / "l", [1.0]), made_run(tmp_path / "m", [2.0], preset="mini")
    with pytest.raises(SettingsError, match=r"different presets \(.*l: laptop; .*m: mini\)"):
        loaded(a=[runs[0]], b=[runs[1]])


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
    assert (found.low, found.high) == pytest.approx(
        (interval.low, interval.high), rel=1e-6, abs=1e-9
    )


def test_a_band_is_a_t_interval_of_three_runs_and_fewer_have_none(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / str(height), [height] * 4) for height in (1.0, 2.0, 3.0)]
    three, two, one = (arm_curve(loaded(a=runs[:count])[0], 4, 2) for count in (3, 2, 1))
    assert three.has_band and three.mean.tolist() == [2.0] * 4
    assert three.high.tolist() == pytest.approx([2.0 + 4.302653 * 3**-0.5] * 4)
    assert (two.has_band, two.low.tolist(), two.high.tolist()) == (False, [1.5] * 4, [1.5] * 4)
    assert (one.has_band, one.low.tolist()) == (False, [1.0] * 4)


def test_a_line_ends_where_every_run_has_been_at_the_training_mean(tmp_path: Path) -> None:
    long = made_run(tmp_path / "long", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    gaps = made_run(tmp_path / "gaps", [2.0, None, 4.0, 6.0, None])
    short = made_run(tmp_path / "short", [3.0, 1.0, 1.0, 5.0])
    arms, end = loaded(a=[long, gaps], b=[short]), 4
    found = compare_arms("laptop", arms, window=2)
    assert found.end == end and found.training == ((3.5, 5.0), (3.0,))
    for curve, training in zip(found.curves, found.training, strict=True):
        assert curve.x[-1] <= end and curve.mean[-1] == pytest.approx(fmean(training))
    assert arm_curve(arms[0], end, 1).mean.tolist() == [1.5, 2.5, 3.5, 5.0]


def test_held_out_scores_have_errors_over_runs_and_other_games_are_refused(tmp_path: Path) -> None:
    arms: dict[str, list[Path]] = {"a": [], "b": []}
    for name, rises in (("a", (0.0, 1.0)), ("b", (1.0, 2.0, None))):
        for seed, rise in enumerate(rises):
            run = made_run(tmp_path / f"{name}{seed}", [1.0])
            if rise is not None:
                made_evaluation(
                    run / SAMPLED,
                    [rise, rise + 1.0, rise + 2.0, rise + 1.0],
                    figures={"bombed": rise / 4},
                )
            arms[name].append(run)
    found = held_out(load_arms(arms)[1], SAMPLED)
    first, other = found.arms
    assert first is not None and other is not None
    assert found.same_tasks and found.name == "sampled (T=1)"
    assert (first.means, first.seeds.mean, first.figures) == ((1.0, 2.0), 1.5, {"bombed": 0.125})
    assert first.seeds.standard_error == pytest.approx(0.5)
    assert first.difference is None and other.difference is not None
    assert (len(other.means), other.num_runs, other.difference.mean) == (2, 3, 1.0)
    assert other.difference.standard_error == pytest.approx(0.5**0.5)
    made_evaluation(arms["b"][0] / SAMPLED, [1.0] * 5)
    assert not held_out(load_arms(arms)[1], SAMPLED).same_tasks
    made_evaluation(arms["b"][2] / SAMPLED, [1.0] * 4, spec_hash="0" * 12)
    with pytest.raises(
        SettingsError, match=r"'a' was evaluated on hanabi laptop with 2 players .* 'b' on .*0000"
    ):
        held_out(load_arms(arms)[1], SAMPLED)


def test_settings_that_differ_are_said_and_those_that_change_nothing_are_not(
    tmp_path: Path,
) -> None:
    def run(name: str, **settings: object) -> Path:
        always = {
            "OUTPUT_DIR": f"/tmp/{name}",
            "PORT": len(name),
            "HANABI_TASK_SEED": 1,
            "WANDB_NAME": name,
        }
        return made_run(tmp_path / name, [1.0], settings={**always, **settings})

    base = [run("a0", SEED=0, MODEL="/home/me/x/tiny"), run("a1", SEED=1, MODEL="/home/me/x/tiny")]
    other = [
        run("b0", SEED=0, MODEL="/home/me/y/tiny", BETA=0.1),
        run("b1", SEED=0, MODEL="/home/me/y/tiny", BETA=0.2),
    ]
    assert condition_notes(loaded(a=base)) == []
    assert condition_notes(loaded(a=base, b=other)) == [
        "Settings of b that differ from those of a: MODEL=y/tiny (there x/tiny).",
        "The runs of b differ in BETA: 0.1, 0.2.",
        "Runs of b share SEED and HANABI_TASK_SEED: they are no independent seeds.",
    ]


def test_the_command_compares_two_arms_in_tables_a_picture_and_figures(tmp_path: Path) -> None:
    for name, height in (("a", 1.0), ("b", 2.0)):
        for seed in range(3):
            run = tmp_path / f"{name}-{seed}"
            made_run(run / "train", [height + 0.1 * seed] * 12, settings={"SEED": seed})
            for kind, rise, heat in (("sampled", 0.0, 1.0), ("greedy", 0.5, 0.0)):
                scores = [height + rise + 0.1 * seed] * 3 + [height + rise - 0.1]
                made_evaluation(run / f"{kind}.json", scores, temperature=heat)
    arms = [f"per player={tmp_path}/a-*", f"shared={tmp_path}/b-0,{tmp_path}/b-1,{tmp_path}/b-2"]
    out = tmp_path / "new folder"
    files = [f"--out-png={out}/c.png", f"--out-markdown={out}/c.md"]
    words = ["compare", *arms, *files]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    lines = (out / "c.md").read_text(encoding="utf-8").splitlines()
    assert (
        "| arm | runs | games/run | seconds/run | training, last 10 steps | greedy | sampled "
        "(T=1) |" in lines
    )
    # Means 1.1 of training; of sampled 0.975, 1.05 and 1.125.
    error = 0.075 / math.sqrt(3)
    assert (
        f"| per player | 3 | 768 | 24 | 1.100 ± 0.058 | 1.550 ± {error:.3f} | 1.050 ± {error:.3f} |"
        in lines
    )
    row = next(line for line in lines if line.startswith("| shared − per player"))
    assert row.startswith(f"| shared − per player | +1.000 ± {error * math.sqrt(2):.3f} | +")
    assert lines[-1] == f"- {ATTAINABLE_SOURCE}"
    assert "| attainable | – | – | – | – | 3.87 | 3.87 |" in lines
    assert lines.count("| attainable | 3.87 | – | – | – |") == 2
    assert any(line.startswith("| arm | score_kept | bombed |") for line in lines)
    pixels = (imread(out / "c.png")[..., :3].reshape(-1, 3) * 255).round().astype(int).tolist()
    for color in ("#0072B2", "#D55E00"):
        assert [round(255 * part) for part in to_rgb(color)] in pixels


def test_what_cannot_be_done_is_refused_in_one_line(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", [1.0])
    for words, message in (
        (["--window", "0"], "Invalid value for '--window'"),
        (["--out-markdown", f"{run}/metrics.jsonl/c.md"], "c.md: cannot be written ("),
        (["--out-png", f"{run}/metrics.jsonl/c.png"], "choose another place"),
    ):
        answer = CliRunner().invoke(app, ["compare", f"a={run}", *words])
        assert answer.exit_code == 2, answer.output
        assert message in answer.output.replace("\n", " ")
