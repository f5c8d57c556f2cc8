"""What a run is validated on: games and lineups as curves of their own, one of which chooses."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from hanabi_grpo.client.curves import (
    CurveSeats,
    curves_line,
    opponent_places,
    validation_curves,
)
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.dataset_rows import VALIDATION_SUITE
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.runs.saved_adapters import SAME_FACTS
from hanabi_grpo.runs.validation import (
    FILE,
    Validated,
    best_of,
    read_validations,
    validation_lines,
)
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import own_seats
from hanabi_grpo.settings.steps import check_updates
from hanabi_grpo.tracking.used_checkpoints import KEY, fetch_used
from hanabi_grpo.training.link import ServerLink
from hanabi_grpo.training.validation import Validation
from hanabi_grpo.types import Episode
from made_games import made_episode, made_turn
from server_app import PEFT_CONFIG, PLAYERS, RunningApp, adapter_bytes, push_to, running_app

GIVEN: dict[str, Any] = {"eval_steps": 10, "eval_tasks": 3, "save_steps": 10}
OWN = own_seats(2, PLAYERS, 7)
LAPTOP = registry.setup("hanabi", {"preset": "laptop"})


def eval_file(folder: Path, *rows: dict[str, Any]) -> str:
    """Write a file of rows to validate on; each is given without its messages."""
    path = folder / "eval.jsonl"
    lines = []
    for row in rows:
        lines.append(json.dumps({"messages": [{"role": "user", "content": "Play."}], **row}))
    path.write_text("\n".join(lines))
    return str(path)


def names_of(settings: Settings) -> list[str]:
    return [curve.name for curve in validation_curves(settings)]


def test_each_lineup_is_a_curve_in_the_games_of_training_and_the_first_chooses() -> None:
    settings = Settings(**GIVEN, eval_lineups="served; served,iggi")
    own, with_iggi = validation_curves(settings)
    assert (own.name, own.chooses, own.has_opponents) == ("training", True, False)
    assert (with_iggi.name, with_iggi.chooses, with_iggi.has_opponents) == (
        "served,iggi",
        False,
        True,
    )
    assert own.tasks == with_iggi.tasks
    assert [(task.suite, task.seed) for task in own.tasks] == [
        (VALIDATION_SUITE, 0),
        (VALIDATION_SUITE, 1),
        (VALIDATION_SUITE, 2),
    ]
    assert curves_line(settings, (own, with_iggi)) == (
        "validation: every 10 steps, training (3 tasks), served,iggi (3 tasks); training chooses "
        "the best version"
    )
    chosen = Settings(**GIVEN, eval_lineups="served;served,iggi", eval_best="served,iggi")
    first, second = validation_curves(chosen)
    assert (first.name, first.chooses) == ("served,iggi", True)
    assert (second.name, second.chooses) == ("training", False)
    assert validation_curves(Settings()) == ()


def test_each_game_of_the_dataset_is_a_curve_with_each_lineup(tmp_path: Path) -> None:
    path = eval_file(
        tmp_path,
        {"env": "kuhn_poker", "env_config": {"seeds": [4, 5]}},
        {"env_config": {"preset": "marshal-mini", "suite": "eval-mine"}},
        {"env_config": {"preset": "marshal-mini", "seeds": [9]}},
        {"env_config": {"preset": "marshal-mini", "observation": "full", "seeds": [1]}},
    )
    settings = Settings(**GIVEN, eval_dataset=path, eval_lineups="served;served,random")
    curves = validation_curves(settings)
    assert [curve.name for curve in curves] == [
        "kuhn_poker",
        "kuhn_poker:served,random",
        "marshal-mini",
        "marshal-mini:served,random",
        "marshal-mini#2",
        "marshal-mini#2:served,random",
    ]
    tasks = {curve.name: [(task.suite, task.seed) for task in curve.tasks] for curve in curves}
    assert tasks["kuhn_poker:served,random"] == [(VALIDATION_SUITE, 4), (VALIDATION_SUITE, 5)]
    # Rows of one game are one curve; without seeds it is HANABI_EVAL_TASKS.
    assert tasks["marshal-mini"] == [
        ("eval-mine", 0),
        ("eval-mine", 1),
        ("eval-mine", 2),
        (VALIDATION_SUITE, 9),
    ]


def test_a_row_may_differ_from_the_boards_settings(tmp_path: Path) -> None:
    path = eval_file(tmp_path, {"env_config": {"preset": "marshal-mini"}})
    assert names_of(Settings(**GIVEN, preset="laptop", eval_dataset=path)) == ["marshal-mini"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"env_config": {"suite": "train"}}, "suite='train': training tasks do not measure"),
        ({"share": 2, "env_config": {}}, "share=2: validation plays every row; omit share"),
        (
            {"env_config": {"players": 3}},
            "env='hanabi' has 3 players, but the run trains HANABI_PLAYERS=2",
        ),
        ({"env_config": {"presett": "laptop"}}, "unknown key 'presett'"),
        ({"env": "chess", "env_config": {}}, "no such environment"),
    ],
)
def test_rows_that_cannot_be_validated_on_are_refused(
    row: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = eval_file(tmp_path, row)
    with pytest.raises(SettingsError) as refusal:
        validation_curves(Settings(**GIVEN, eval_dataset=path))
    message = str(refusal.value)
    assert message.startswith(f"{path} line 1: ")
    assert reason in message
    assert "Example of a row: " in message


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"eval_dataset": "nowhere.jsonl"}, "HANABI_EVAL_DATASET='nowhere.jsonl': cannot be read"),
        ({"eval_lineups": "iggi"}, "none of the run's players has a seat"),
        ({"eval_lineups": "served,minmax"}, "HANABI_EVAL_LINEUPS: 'served,minmax' in laptop: "),
        ({"eval_lineups": "served,iggi,iggi"}, "3 policy specs for 2 players"),
        ({"eval_lineups": "served,player_1@latest"}, "the run's own players are served"),
        ({"eval_lineups": "served;served,served"}, "the curve 'training' is listed 2 times"),
        ({"eval_lineups": "served,human"}, "only in hanabi-grpo play"),
        (
            {"eval_lineups": "served;served,iggi", "eval_best": "served,igi"},
            "HANABI_EVAL_BEST=served,igi: no such curve; did you mean 'served,iggi'? the curves "
            "are 'training', 'served,iggi'",
        ),
    ],
)
def test_settings_that_cannot_be_validated_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        validation_curves(Settings(**GIVEN, **given))
    assert reason in str(refusal.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("eval_dataset", "a.jsonl"), ("eval_lineups", "served,iggi"), ("eval_best", "training")],
)
def test_curves_without_validations_are_refused(field: str, value: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        check_updates(Settings(**{field: value}))
    variable = f"HANABI_{field.upper()}"
    assert str(refusal.value) == (
        f"{variable}={value} with HANABI_EVAL_STEPS=0: nothing is validated; set "
        f"HANABI_EVAL_STEPS, e.g. to 50, or unset {variable}."
    )


# What a run makes of them


def games(*scores: int, seats: Sequence[str] = OWN) -> list[list[Episode]]:
    """Return a game of a task of its own for each score."""
    groups = []
    for seed, score in enumerate(scores):
        game = made_episode(
            made_turn(0), score=score, preset="laptop", spec_hash=LAPTOP.spec.hash, seats=seats
        )
        groups.append([replace(game, seed=seed)])
    return groups


@pytest.fixture
def validation(tmp_path: Path) -> Validation:
    """A run of two curves: its own players get better, and worse with a partner."""
    settings = Settings(**GIVEN, eval_lineups="served;served,iggi", eval_patience=2)
    made = Validation(settings, tmp_path, validation_curves(settings), 0)
    with_iggi = (OWN[0], "iggi")
    for step, own, other in ((0, (0, 2), (4, 4)), (10, (2, 4), (2, 2)), (20, (1, 1), (1, 3))):
        made.add(
            step,
            {"training": games(*own), "served,iggi": games(*other, seats=with_iggi)},
            OWN,
        )
    return made


def test_one_curve_chooses_and_the_others_are_only_measured(
    validation: Validation, tmp_path: Path
) -> None:
    best = validation.best
    assert best is not None
    assert (best.step, best.score, best.curve) == (10, 3.0, "training")
    assert validation.stale == 1
    assert not validation.is_due(20)
    # The rows of a step stand together, that of the curve that chooses first.
    stored = json.loads((tmp_path / FILE).read_text())
    assert [(row["step"], row["curve"], row["score"]) for row in stored] == [
        (0, "training", 1.0),
        (0, "served,iggi", 4.0),
        (10, "training", 3.0),
        (10, "served,iggi", 2.0),
        (20, "training", 1.0),
        (20, "served,iggi", 2.0),
    ]
    assert validation_lines(read_validations(tmp_path)) == [
        "validation training, chooses the best: best 3.000 ± 1.000 at step 10, last 1.000 ± 0.000 "
        "at step 20",
        "validation served,iggi: best 4.000 ± 0.000 at step 0, last 2.000 ± 1.000 at step 20",
    ]


def test_metrics_of_a_curve_have_its_name(validation: Validation) -> None:
    metrics = validation.add(
        30,
        {"training": games(4, 4), "served,iggi": games(1, 3, seats=(OWN[0], "iggi"))},
        OWN,
    )
    assert metrics["validation/score/mean"] == 4.0
    assert metrics["validation/served,iggi/score/mean"] == 2.0
    assert metrics["validation/served,iggi/score/se"] == 1.0
    assert metrics["validation/stale"] == 0.0


def test_a_validation_without_its_choosing_curve_is_made_again(validation: Validation) -> None:
    metrics = validation.add(30, {"training": [], "served,iggi": games(1, 3)}, OWN)
    assert metrics["validation/served,iggi/score/mean"] == 2.0
    assert validation.is_due(30)
    assert validation.rows[-1].step == 20
    assert not validation.verdict(30).ends_run


def test_a_resumed_run_with_another_choosing_curve_reads_the_best_of_that_one(
    validation: Validation, tmp_path: Path
) -> None:
    settings = Settings(**GIVEN, eval_lineups="served;served,iggi", eval_best="served,iggi")
    resumed = Validation(settings, tmp_path, validation_curves(settings), 20)
    assert resumed.best is not None
    assert (resumed.best.step, resumed.best.score) == (0, 4.0)
    assert resumed.stale == 2


def test_a_file_of_an_earlier_version_is_the_curve_of_training(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('[{"step": 10, "score": 1.5, "se": 0.1}]')
    [row] = read_validations(tmp_path)
    assert row == Validated(step=10, score=1.5, se=0.1)
    assert best_of([row]) == row
    assert row.metric_name == "validation/score/mean"


def test_against_an_opponent_a_zero_sum_game_is_scored_by_the_runs_own_return(
    tmp_path: Path,
) -> None:
    path = eval_file(tmp_path, {"env": "kuhn_poker", "env_config": {"seeds": [0, 1]}})
    settings = Settings(**GIVEN, eval_dataset=path, eval_lineups="served,cfr")
    [curve] = validation_curves(settings)
    assert curve.name == "kuhn_poker:served,cfr"
    rules = curve.setups[0].spec.hash
    validation = Validation(settings, tmp_path, [curve], 0)

    def poker(seed: int, first: float, *seats: str) -> list[Episode]:
        paid = made_turn(0, rewards={})
        rewards = ({"chips": first}, {"chips": -first})
        game = made_episode(replace(paid, rewards=rewards), spec_hash=rules, seats=seats)
        return [replace(game, seed=seed, env="kuhn_poker", preset="kuhn_poker")]

    groups = [
        poker(0, 2.0, OWN[0], "cfr"),
        poker(1, -1.0, OWN[0], "cfr"),
        # The same tasks in the other seat order: what the first player wins, the run loses.
        poker(0, 1.0, "cfr", OWN[1]),
        poker(1, 1.0, "cfr", OWN[1]),
    ]
    validation.add(0, {curve.name: groups}, OWN)
    [row] = validation.rows
    # Per task the mean over both orders: (2 - 1) / 2 and (-1 - 1) / 2.
    assert row.score == pytest.approx(-0.25)
    assert row.se == pytest.approx(stdev([0.5, -1.0]) / 2**0.5)
    assert row.has_opponents


# On a server


@pytest.fixture
def app() -> Iterator[RunningApp]:
    with running_app() as running:
        yield running


def linked(app: RunningApp, folder: Path, **given: Any) -> ServerLink:
    """Return a link to a server that serves version 7 of the run's players."""
    settings = Settings(**GIVEN, vllm_server_port=app.port, **given)
    link = ServerLink(settings, folder)
    link.instance_id = app.identity.instance_id
    push_to(link.client, app, version=7)
    return link


def test_every_curve_is_played_in_its_own_seats(app: RunningApp, tmp_path: Path) -> None:
    path = eval_file(
        tmp_path,
        {"env_config": {"preset": "laptop", "seeds": [3, 4]}},
        {"env_config": {"preset": "marshal-mini", "seeds": [0]}},
    )
    link = linked(app, tmp_path, eval_dataset=path, eval_lineups="served;served,iggi;base,served")
    results = link.validated(link.curves, PLAYERS, 7)
    played = {}
    for name, result in results.items():
        played[name] = [(game.preset, game.seed, game.seats) for [game] in result.groups]
    assert played == {
        "laptop": [("laptop", 3, OWN), ("laptop", 4, OWN)],
        "laptop:served,iggi": [
            ("laptop", 3, (OWN[0], "iggi")),
            ("laptop", 4, (OWN[0], "iggi")),
            ("laptop", 3, ("iggi", OWN[1])),
            ("laptop", 4, ("iggi", OWN[1])),
        ],
        "laptop:base,served": [
            ("laptop", 3, ("base", OWN[1])),
            ("laptop", 4, ("base", OWN[1])),
            ("laptop", 3, (OWN[0], "base")),
            ("laptop", 4, (OWN[0], "base")),
        ],
        "marshal-mini": [("marshal-mini", 0, OWN)],
        "marshal-mini:served,iggi": [
            ("marshal-mini", 0, (OWN[0], "iggi")),
            ("marshal-mini", 0, ("iggi", OWN[1])),
        ],
        "marshal-mini:base,served": [
            ("marshal-mini", 0, ("base", OWN[1])),
            ("marshal-mini", 0, (OWN[0], "base")),
        ],
    }
    link.client.close()


def test_the_first_curve_has_the_replies_that_it_has_alone(app: RunningApp, tmp_path: Path) -> None:
    alone = linked(app, tmp_path)
    [expected] = alone.validated(alone.curves, PLAYERS, 7).values()
    alone.client.close()
    both = ServerLink(
        Settings(**GIVEN, vllm_server_port=app.port, eval_lineups="served;served,iggi"), tmp_path
    )
    both.instance_id = app.identity.instance_id
    found = both.validated(both.curves, PLAYERS, 7)["training"]
    assert [[game.turns for game in group] for group in found.groups] == [
        [game.turns for game in group] for group in expected.groups
    ]
    both.client.close()


def test_an_opponent_that_the_server_cannot_seat_is_told_at_the_start(
    app: RunningApp, tmp_path: Path
) -> None:
    link = linked(app, tmp_path, eval_lineups="served,url:big")
    seats = CurveSeats(link.settings, link.client, link.curves)
    with pytest.raises(SettingsError, match=r"HANABI_EVAL_LINEUPS=served,url:big: .*url:big"):
        seats.load()
    link.client.close()
    reason = r"HANABI_EVAL_LINEUPS: 'served,nowhere/run' .* nowhere/run: no such folder"
    with pytest.raises(SettingsError, match=reason):
        linked(app, tmp_path, eval_lineups="served,nowhere/run")


def write_opponent(run: Path, step: int, **facts: Any) -> Path:
    """Write a checkpoint of another run."""
    run.mkdir(parents=True, exist_ok=True)

    def fill(folder: Path) -> None:
        for name in PLAYERS:
            (folder / name).mkdir()
            (folder / name / "adapter_config.json").write_text(json.dumps(PEFT_CONFIG))
            (folder / name / "adapter_model.safetensors").write_bytes(adapter_bytes(step / 100))

    return write_checkpoint(run, step, fill, facts, needed_bytes=0)


def test_an_opponent_whose_checkpoint_its_own_run_removes_stays_the_opponent(
    app: RunningApp, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    with RolloutClient(f"http://127.0.0.1:{app.port}") as client:
        identity = client.identity()
    facts = {name: identity[name] for name in SAME_FACTS}
    first = write_opponent(other, 50, **facts)
    link = linked(app, tmp_path, eval_lineups=f"served,{other}")
    link._curve_seats.load()
    [before] = link.validated(link.curves, PLAYERS, 7).values()
    write_opponent(other, 60, **facts)
    shutil.rmtree(first)
    [after] = link.validated(link.curves, PLAYERS, 7).values()
    seats = [[game.seats for game in group] for group in before.groups]
    assert seats[0][0][1].endswith("@50")
    assert [[game.seats for game in group] for group in after.groups] == seats
    link.client.close()


def test_a_resumed_run_has_the_opponent_that_it_began_with(app: RunningApp, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with RolloutClient(f"http://127.0.0.1:{app.port}") as client:
        identity = client.identity()
    facts = {name: identity[name] for name in SAME_FACTS}
    write_opponent(other, 50, **facts)
    run = tmp_path / "run"
    run.mkdir()
    given = {"eval_lineups": f"served,{other}", "output_dir": run}
    curves = validation_curves(Settings(**GIVEN, **given))
    used = fetch_used(Settings(**GIVEN, **given), run, opponents=opponent_places(curves))
    (run / "settings.json").write_text(json.dumps({KEY: used}))
    write_opponent(other, 60, **facts)
    link = linked(app, run, **given)
    link._curve_seats.load()
    [request, *_] = link._curve_seats.requests(link.curves[0], OWN)
    assert request["seats"][0] == OWN[0]
    assert request["seats"][1].endswith("@50")
    link.client.close()


def test_an_opponent_that_the_server_dropped_is_uploaded_again(
    app: RunningApp, tmp_path: Path
) -> None:
    uploaded = adapter_bytes(0.5), PEFT_CONFIG
    link = linked(app, tmp_path, eval_lineups="served,iggi")
    num_calls = 0
    ask = link._ask_validation

    def drop_once(*arguments: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            link.client.upload_guest(1, *uploaded)
            # A seat that no server holds: what one answers that has dropped an adapter.
            link.client.play(
                [link.curves[0].tasks[0].request(("frozen_0000000000000000@1", OWN[1]))],
                num_games=1,
                max_tokens=4,
                temperature=1.0,
                seats=OWN,
            )
        return ask(*arguments)

    link._ask_validation = drop_once  # type: ignore[method-assign]
    [result] = link.validated(link.curves, PLAYERS, 7).values()
    assert num_calls == 2
    assert len(result.groups) == 6
    link.client.close()
