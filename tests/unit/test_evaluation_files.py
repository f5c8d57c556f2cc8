"""Finding every evaluation of a run, and reading those of version 0.2."""

import json
import shutil
from pathlib import Path

import pytest

from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.evaluation import evaluate
from hanabi_grpo.evaluation.collect import collect_games
from hanabi_grpo.evaluation.evaluate import evaluate_lineup
from hanabi_grpo.report.run_report import read_report
from hanabi_grpo.runs.evaluation_files import find_evaluations
from hanabi_grpo.runs.evaluation_result import read_result, result_to_json, write_document
from hanabi_grpo.runs.old_keys import rename_old_keys
from tracked_runs import tracked_run
from training_runs import LAPTOP, evaluate_scripted

VERSION_0_2 = Path(__file__).parents[1] / "data" / "version-0.2"


def test_evaluations_are_found_in_the_run_folder_beside_train_and_in_evaluations(
    tmp_path: Path,
) -> None:
    run = tracked_run(tmp_path / "demo" / "train", steps=1, games=False)
    in_run = run / "in-run.json"
    beside = tmp_path / "demo" / "beside.json"
    kept = run / "evaluations" / "kept.json"
    for num_tasks, path in enumerate((in_run, beside, kept), start=4):
        write_document(path, result_to_json(evaluate_scripted("iggi", LAPTOP, num_tasks)))
    for folder in (run, tmp_path / "demo"):
        evaluations = find_evaluations(folder)
        assert evaluations.paths == [in_run, beside, kept]
        assert [stored.is_kept for stored in evaluations.results] == [False, False, True]
        assert [stored.is_alone for stored in evaluations.results] == [True, True, True]
        assert [stored.result.num_tasks for stored in evaluations.results] == [4, 5, 6]
        assert evaluations.problems == ()


def test_a_folder_that_is_not_there_has_no_evaluations(tmp_path: Path) -> None:
    evaluations = find_evaluations(tmp_path / "none")
    assert evaluations.stored == ()
    assert evaluations.problems == ()


def test_a_kept_result_that_a_person_named_too_is_found_once_under_that_name(
    tmp_path: Path,
) -> None:
    result = result_to_json(evaluate_scripted("iggi", LAPTOP, 4))
    write_document(tmp_path / "final.json", {**result, "label": "final"})
    write_document(tmp_path / "evaluations" / "iggi-greedy.json", result)
    evaluations = find_evaluations(tmp_path)
    assert evaluations.paths == [tmp_path / "final.json"]


def test_a_document_of_several_lineups_has_a_result_each_and_its_references_apart(
    tmp_path: Path,
) -> None:
    iggi, blind, random = (
        result_to_json(evaluate_scripted(name, LAPTOP, 4)) for name in ("iggi", "blind", "random")
    )
    write_document(tmp_path / "a.json", {"results": [iggi, blind], "references": [random]})
    evaluations = find_evaluations(tmp_path)
    assert [stored.result.lineup for stored in evaluations.results] == ["iggi", "blind"]
    assert [stored.result.lineup for stored in evaluations.references] == ["random"]
    assert not any(stored.is_alone for stored in evaluations.stored)
    assert evaluations.paths == [tmp_path / "a.json"]


def test_other_files_are_skipped_and_damaged_evaluations_are_problems(tmp_path: Path) -> None:
    result = result_to_json(evaluate_scripted("iggi", LAPTOP, 4))
    (tmp_path / "other.json").write_text('{"scores": []}')
    (tmp_path / "list.json").write_text("[1]")
    write_document(tmp_path / "bad.json", {**result, "scores": [1.0]})
    evaluations = find_evaluations(tmp_path)
    assert evaluations.stored == ()
    [problem] = evaluations.problems
    assert problem.startswith("bad.json: seeds, starts and scores have 4, 4, 1 entries")


def test_a_file_that_is_not_json_is_a_problem_unless_it_is_one_of_the_runs_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "evaluations").mkdir()
    names = ("after.json", "evaluations/kept.json", "evaluations/settings.json")
    # ms-swift writes args.json in place, so that it may be read while it is incomplete.
    of_the_run = ("args.json", "settings.json", "settings-until-step-20.json", "wandb.json")
    for name in (*names, *of_the_run):
        (tmp_path / name).write_text('{"results": [')
    (tmp_path / "evaluations/deep.json").write_text("[" * 100_000)
    # A file that is being written has another name until it is complete.
    (tmp_path / ".before.json.0123456789ab.tmp").write_text("{")
    problems = find_evaluations(tmp_path).problems
    assert [problem.partition(":")[0] for problem in problems] == [
        "after.json",
        "deep.json",
        "kept.json",
        "settings.json",
    ]
    assert problems[0].startswith("after.json: not JSON (Expecting value: line 1 column 14")


def test_an_evaluation_of_version_0_2_is_read(tmp_path: Path) -> None:
    path = VERSION_0_2 / "evaluation.json"
    data = json.loads(path.read_text())
    assert "line_up" in data
    assert "num_deals" in data["summary"]
    result = read_result(path)
    assert result.lineup == "iggi,random"
    assert result.scores == (0.0, 0.0, 1.5, 1.0)
    assert [order.words for order in result.orders] == [("iggi", "random"), ("random", "iggi")]
    assert "lineup" in result_to_json(result)
    run = tracked_run(tmp_path / "run", steps=1, games=False)
    shutil.copy(path, run / "evaluation.json")
    [group] = read_report(run).evaluations
    assert group.results[0].mean == 0.625


def test_an_evaluation_that_version_0_2_began_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "evaluation.part.jsonl"
    shutil.copy(VERSION_0_2 / ledger.name, ledger)
    played: list[int] = []
    play_tables = evaluate.play_tables

    def counted(tables: list[evaluate.Table], *arguments: object, **options: object) -> object:
        played.extend(table.seed for table in tables)
        return play_tables(tables, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluate, "play_tables", counted)
    result = evaluate_lineup(parse_lineup("iggi,random", 2), LAPTOP, 6, ledger=ledger)
    assert result.scores[:4] == (0.0, 0.0, 1.5, 1.0)
    assert played == [4, 4, 5, 5], "both seat orders of the two missing tasks"


def test_a_collection_that_version_0_2_began_is_continued(tmp_path: Path) -> None:
    folder = tmp_path / "games"
    shutil.copytree(VERSION_0_2 / "collection", folder)
    progress = collect_games(
        parse_lineup("random", 2),
        LAPTOP,
        folder,
        suite="collect",
        num_tasks=3,
        num_games=1,
        rotate=True,
    )
    assert progress.tasks == 3
    assert progress.games == 3
    files = sorted(path.name for path in folder.glob("games_*.jsonl"))
    assert files == ["games_000000.jsonl", "games_000002.jsonl"]


def test_old_keys_are_renamed_and_never_replace_new_ones() -> None:
    assert rename_old_keys({"line_up": "iggi", "suite": "eval"}) == {
        "lineup": "iggi",
        "suite": "eval",
    }
    assert rename_old_keys({"line_up": "old", "lineup": "new"}) == {"lineup": "new"}
