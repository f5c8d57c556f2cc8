"""Which evaluations of a run are joined by an arrow, and where the one before is kept."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.client.lineups import SeatResolver, parse_lineup
from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.lineups import _runs_of
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.report.run_report import RunReport, levels_of, read_report
from hanabi_grpo.runs.evaluation_result import (
    EvaluationResult,
    SeatOrder,
    result_to_json,
    write_document,
)
from hanabi_grpo.runs.run_folder import public_run, run_identity
from hanabi_grpo.settings import Settings
from hanabi_grpo.types import ALL_STARTS
from tracked_runs import add_row, tracked_run
from training_runs import LAPTOP, evaluate_scripted

TEAM = ("player_0@15", "player_1@15")
BASE = ("base", "base")
WITH_IGGI = ("player_0@15", "iggi")
BASE_WITH_IGGI = ("base", "iggi")
DIFFERENCES = "Differences, paired by task"


def keep(
    run: Path, name: str, script: str, *orders: tuple[str, ...], **fields: Any
) -> EvaluationResult:
    """Write a script's result into a run as if these seats had played it."""
    result = evaluate_scripted(script, LAPTOP, 20)
    seat_orders = []
    for seats in orders:
        words = tuple("served" if "@" in seat else seat for seat in seats)
        seat_orders.append(SeatOrder(words=words, seats=seats, mean=0.0, standard_error=0.0))
    changes = {"label": name, "temperature": 1.0, "orders": tuple(seat_orders), **fields}
    result = dataclasses.replace(result, **changes)
    write_document(run / "evaluations" / f"{name}-T1.json", result_to_json(result))
    return result


def run_of_15_steps(tmp_path: Path, **variables: str) -> Path:
    return tracked_run(tmp_path / "run", steps=15, games=False, **variables)


def titles_of(run: Path) -> list[str]:
    return [sheet.title for sheet in read_report(run).sheets]


def differences_of(run: Path) -> list[str]:
    """Return the names of the differences that the report shows."""
    [sheet] = [sheet for sheet in read_report(run).sheets if sheet.title == DIFFERENCES]
    return [row[0] for row in sheet.groups[0]]


def lead_of(run: Path) -> str:
    """Return the lead, which is the same in every output."""
    page = run / "page.html"
    markdown = run / "report.md"
    picture = run / "score.svg"
    arguments = ["report", str(run), "--html", str(page), "--markdown", str(markdown)]
    answer = CliRunner().invoke(app, [*arguments, "--png", str(picture)])
    assert answer.exit_code == 0, answer.output
    lead = read_report(run).lead
    assert answer.output.splitlines()[1] == lead
    assert f'<p class="lead">{lead}</p>' in page.read_text()
    assert markdown.read_text().splitlines()[2] == lead
    return lead


def test_other_seats_are_named_and_never_joined_by_an_arrow(tmp_path: Path) -> None:
    run = run_of_15_steps(tmp_path)
    team = keep(run, "served", "random", TEAM)
    with_iggi = keep(run, "served,iggi", "hint-bot", WITH_IGGI, WITH_IGGI[::-1])
    lead = lead_of(run)
    assert "→" not in lead
    assert lead.startswith(
        f"held-out of 4: served,iggi (step 15) {with_iggi.mean:.2f}; "
        f"served (step 15) {team.mean:.2f}; "
    )
    picture = (run / "score.svg").read_text()
    assert f"served (step 15) {team.mean:.2f}" in picture
    assert f"(step 15) {with_iggi.mean:.2f}" in picture
    assert f"held-out tasks {team.mean:.2f}" not in picture
    assert f"held-out tasks {with_iggi.mean:.2f}" not in picture
    with pytest.raises(SettingsError, match="same seats"):
        read_report(run).shortfall(min_rise=0.1, min_sigma=None)


def test_the_same_seats_at_step_0_and_later_are_joined_by_an_arrow(tmp_path: Path) -> None:
    run = run_of_15_steps(tmp_path)
    before = keep(run, "base", "random", BASE)
    keep(run, "served,iggi", "blind", WITH_IGGI, WITH_IGGI[::-1])
    after = keep(run, "served", "hint-bot", TEAM)
    lead = lead_of(run)
    assert lead.startswith(f"held-out {before.mean:.2f} → {after.mean:.2f} of 4; ")
    assert f"held-out tasks {after.mean:.2f}" in (run / "score.svg").read_text()
    points = read_report(run).pictures.points
    assert [point.step for point in points] == [0, 15]
    assert read_report(run).shortfall(min_rise=0.1, min_sigma=None) is None


def test_a_gain_with_a_partner_names_the_partner(tmp_path: Path) -> None:
    run = run_of_15_steps(tmp_path)
    before = keep(run, "base,iggi", "random", BASE_WITH_IGGI, BASE_WITH_IGGI[::-1])
    after = keep(run, "served,iggi", "hint-bot", WITH_IGGI, WITH_IGGI[::-1])
    lead = f"held-out with iggi {before.mean:.2f} → {after.mean:.2f} of 4; "
    assert lead_of(run).startswith(lead)


@pytest.mark.parametrize(
    ("seats", "fields"),
    [
        (BASE, {"temperature": 0.0}),
        (BASE, {"top_p": 0.5}),
        (BASE, {"top_k": 1}),
        (BASE_WITH_IGGI, {}),
        (("base", "hint-bot"), {}),
        (("player_0@5", "player_1@5"), {}),
        (BASE, {"policies": {"base": "another"}}),
        (BASE, {"max_tokens": 64}),
        (BASE, {"env_config": {**LAPTOP.row()["env_config"], "observation": "full"}}),
    ],
)
def test_what_differs_in_more_than_training_is_no_before(
    tmp_path: Path, seats: tuple[str, ...], fields: dict[str, Any]
) -> None:
    run = run_of_15_steps(tmp_path)
    keep(run, "before", "random", seats, **fields)
    keep(run, "served", "hint-bot", TEAM, policies={"base": "f00d"}, max_tokens=512)
    assert "→" not in lead_of(run)


def test_another_model_behind_the_url_of_a_partner_is_another_opponent(tmp_path: Path) -> None:
    run = run_of_15_steps(tmp_path)
    with_url = ("player_0@15", "url:big")
    big = {"url:big": "http://localhost:1/v1#big"}
    keep(run, "before", "random", ("base", "url:big"), policies={**big, "base": "f00d"})
    keep(run, "after", "hint-bot", with_url, policies=big)
    assert differences_of(run) == ["after − before"]
    keep(run, "after", "hint-bot", with_url, policies={"url:big": "http://localhost:1/v1#small"})
    assert DIFFERENCES not in titles_of(run)


def test_what_an_earlier_version_did_not_record_may_be_the_same(tmp_path: Path) -> None:
    run = run_of_15_steps(tmp_path)
    keep(run, "before", "random", BASE, max_tokens=None)
    keep(run, "after", "hint-bot", TEAM, max_tokens=512)
    assert differences_of(run) == ["after − before"]


def test_only_lineups_that_differ_in_training_alone_have_a_difference(tmp_path: Path) -> None:
    run = run_of_15_steps(tmp_path)
    keep(run, "before", "random", BASE)
    keep(run, "mixed", "hint-bot", WITH_IGGI, WITH_IGGI[::-1], temperature=0.0)
    assert DIFFERENCES not in titles_of(run)
    keep(run, "middle", "blind", ("player_0@5", "player_1@5"))
    keep(run, "after", "hint-bot", TEAM)
    assert differences_of(run) == ["middle − before", "after − before", "after − middle"]
    # Of many results, each is compared only with the earliest of its seats.
    keep(run, "base,iggi", "random", BASE_WITH_IGGI, BASE_WITH_IGGI[::-1], temperature=0.0)
    assert set(differences_of(run)) == {
        "middle − before",
        "after − before",
        "mixed − base,iggi",
    }


def test_a_rise_without_any_variation_has_no_standard_error_to_exceed(tmp_path: Path) -> None:
    run = run_of_15_steps(tmp_path)
    keep(run, "before", "random", BASE, scores=(1.0,) * 20)
    keep(run, "after", "random", TEAM, scores=(2.0,) * 20)
    problem = read_report(run).shortfall(min_rise=0.5, min_sigma=3)
    reason = "no variation over 20 tasks, so there is no standard error"
    assert problem == f"the improvement on 20 tasks is too small: {reason}."
    assert read_report(run).shortfall(min_rise=0.5, min_sigma=None) is None
    [sheet] = [sheet for sheet in read_report(run).sheets if sheet.title == DIFFERENCES]
    assert list(sheet.groups[0][0][1:]) == ["+1.000 ± 0.000", "+1.000 to +1.000", "–"]


def test_an_exact_rise_is_more_than_any_number_of_standard_errors(tmp_path: Path) -> None:
    run = run_of_15_steps(tmp_path)
    starts = {
        "suite": ALL_STARTS,
        "starts": (*range(10), *range(10)),
        "temperature": 0.0,
        "is_sampled": False,
    }
    keep(run, "before", "random", BASE, scores=(1.0,) * 20, **starts)
    keep(run, "after", "random", TEAM, scores=(2.0,) * 20, **starts)
    assert read_report(run).shortfall(min_rise=None, min_sigma=99) is None
    keep(run, "after", "random", TEAM, scores=(0.5,) * 20, **starts)
    problem = read_report(run).shortfall(min_rise=None, min_sigma=99)
    assert problem is not None
    assert "the rise is exactly -0.500 (more than 0 required)" in problem


def test_results_that_differ_in_sampling_or_messages_have_names_that_say_it(tmp_path: Path) -> None:
    run = run_of_15_steps(tmp_path)
    config = LAPTOP.row()["env_config"]
    keep(run, "a", "random", TEAM)
    keep(run, "b", "hint-bot", TEAM, top_p=0.5)
    keep(run, "c", "blind", TEAM, env_config={**config, "observation": "full"})
    [group] = read_report(run).evaluations
    shown = config["observation"]
    assert list(group.named) == [
        f"a [observation {shown}] (step 15, T=1)",
        f"b [observation {shown}] (step 15, T=1, top-p 0.5)",
        "c [observation full] (step 15, T=1)",
    ]
    assert DIFFERENCES not in titles_of(run)


def keep_of_board(run: Path, preset: str, script: str, seats: tuple[str, ...]) -> None:
    """Keep a result of more tasks on some board."""
    setup = registry.setup("hanabi", {"preset": preset})
    result = evaluate_scripted(script, setup, 40)
    order = SeatOrder(words=seats, seats=seats, mean=0.0, standard_error=0.0)
    result = dataclasses.replace(result, label=seats[0], temperature=1.0, orders=(order,))
    write_document(run / "evaluations" / f"{preset}-{script}.json", result_to_json(result))


def test_a_run_leads_with_the_board_that_it_trained_on_and_names_others(tmp_path: Path) -> None:
    run = run_of_15_steps(tmp_path)
    keep_of_board(run, "marshal-mini", "random", BASE)
    keep_of_board(run, "marshal-mini", "hint-bot", TEAM)
    assert lead_of(run).startswith("held-out on marshal-mini with 2 players 1.40 → 2.58 of 4; ")
    pictures = read_report(run).pictures
    assert (pictures.points, pictures.levels) == ([], {}), "no figures of a board beside another's"
    assert levels_of(run) == {}
    before = keep(run, "base", "random", BASE)
    after = keep(run, "served", "hint-bot", TEAM)
    lead = f"held-out {before.mean:.2f} → {after.mean:.2f} of 4; "
    assert lead_of(run).startswith(lead)
    assert [point.mean for point in read_report(run).pictures.points] == [before.mean, after.mean]
    assert levels_of(run)["hint-bot"] == after.mean
    titles = [sheet.title for sheet in read_report(run).sheets if "tasks of suite" in sheet.title]
    assert [title.split(",")[0] for title in titles] == ["hanabi laptop", "hanabi marshal-mini"]


def test_a_run_of_several_games_names_the_one_that_its_first_line_is_of(tmp_path: Path) -> None:
    run = run_of_15_steps(tmp_path, DATASET="games.jsonl")
    figures = {"games/laptop": 8, "score/laptop": 1.0, "games/full": 8, "score/full": 2.0}
    add_row(run, 16, **figures)
    before = keep(run, "base", "random", BASE)
    after = keep(run, "served", "hint-bot", TEAM)
    gain = f"{before.mean:.2f} → {after.mean:.2f} of 4; "
    assert lead_of(run).startswith(f"held-out on laptop with 2 players {gain}")
    assert read_report(run).pictures.points == []


def test_files_of_one_name_in_the_run_folder_and_beside_it_are_both_shown(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "demo" / "train", steps=15, games=False)
    means = []
    for script, folder in (("random", run), ("hint-bot", run.parent)):
        means.append(keep(run, "after", script, TEAM).mean)
        (run / "evaluations" / "after-T1.json").rename(folder / "after.json")
    [group] = read_report(run.parent).evaluations
    by_name = {name: result.mean for name, result in group.named.items()}
    assert by_name == {"after (step 15)": means[0], "after (2) (step 15)": means[1]}


def test_base_is_no_before_of_a_run_that_started_from_a_checkpoint(tmp_path: Path) -> None:
    run = run_of_15_steps(tmp_path)
    settings = json.loads((run / "settings.json").read_text())
    settings["settings"]["HANABI_START_FROM"] = "outputs/earlier"
    (run / "settings.json").write_text(json.dumps(settings))
    keep(run, "base", "random", BASE)
    keep(run, "served", "hint-bot", TEAM)
    assert "→" not in lead_of(run)
    start = keep(run, "start", "blind", ("player_0@0", "player_1@0"))
    assert f"{start.mean:.2f} → " in lead_of(run)


class _Identity:
    """The client of a server whose session is a run."""

    def __init__(self, run: str | None) -> None:
        self._run = run

    def identity(self) -> dict[str, Any]:
        return {"run": self._run, "versions": {"player_0": 15, "player_1": 15}, "adapters": {}}


def served_by(run: str | None) -> Served:
    client: Any = _Identity(run)
    resolver = SeatResolver(client, Settings())
    return Served(client=client, resolver=resolver, max_tokens=4, temperature=1.0)


def test_a_result_of_base_is_kept_by_the_run_of_the_servers_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tracked_run(tmp_path / "outputs" / "my-run", steps=1, games=False)
    base = parse_lineup("base", 2)
    with_script = parse_lineup("base,iggi", 2)
    script = parse_lineup("iggi", 2)
    served = served_by(public_run(run_identity(run)))
    assert _runs_of(base, [base], served) == [run.resolve()]
    assert _runs_of(with_script, [with_script], served) == [run.resolve()]
    assert _runs_of(script, [script], served) == []
    assert _runs_of(base, [base], served_by(None)) == []


def versus_run(tmp_path: Path) -> Path:
    return tracked_run(
        tmp_path / "kuhn", steps=2, games=False, HANABI_ENV="kuhn_poker", HANABI_PRESET="kuhn_poker"
    )


def test_a_zero_sum_run_leads_with_exploitability(tmp_path: Path) -> None:
    run = versus_run(tmp_path)
    assert lead_of_versus(run) == ""
    profile = {
        "exploitability": 0.1341,
        "nash_conv": 0.2682,
        "best_responses": [0.1, 0.2],
        "values": [-0.05, 0.05],
        "illegal": [0.0, 0.0],
    }
    write_document(run / "exploit.json", {"profiles": {"average of 4": profile}})
    assert lead_of_versus(run) == "exploitability, exploit.json: average of 4 0.134"
    # A figure of another game is in the tables alone, under its name.
    leduc = {"env": "leduc_poker", "env_config": {"preset": "leduc_poker"}}
    other = {"profiles": {"served": {**profile, "exploitability": 2.5}}}
    write_document(run / "leduc.json", {**leduc, **other})
    assert lead_of_versus(run) == "exploitability, exploit.json: average of 4 0.134"
    assert "leduc_poker: what a best responder wins (leduc.json)" in str(read_report(run).sheets)
    # Lower bounds are in the tables, too, and never beside exact figures in the lead.
    bound = {"exploitability_bound": 0.0825, "standard_error": 0.01}
    write_document(run / "bounds.json", {"bounds": {"served": bound}, "tests": 5000})
    assert lead_of_versus(run) == "exploitability, exploit.json: average of 4 0.134"
    assert "0.083 ± 0.010" in str(read_report(run).sheets)
    add_row(run, 3, exploitability=0.376)
    add_row(run, 4, exploitability=0.2071)
    lead = "exploitability 0.376 at step 3 → 0.207 at step 4, 0 in an equilibrium"
    assert lead_of_versus(run) == f"{lead}; exploit.json: average of 4 0.134"
    page = (run / "page.html").read_text()
    assert "0.2682" in page
    assert "what a best responder wins against the players" in page
    assert "sampled training games" not in page
    assert "score of the last" not in page


def lead_of_versus(run: Path) -> str:
    page = run / "page.html"
    markdown = run / "report.md"
    arguments = ["report", str(run), "--html", str(page), "--markdown", str(markdown)]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    report: RunReport = read_report(run)
    if report.lead:
        assert answer.output.splitlines()[1] == report.lead
        assert f'<p class="lead">{report.lead}</p>' in page.read_text()
        assert markdown.read_text().splitlines()[2] == report.lead
    return report.lead


def test_a_zero_sum_run_without_exploitability_leads_with_wins_from_each_seat(
    tmp_path: Path,
) -> None:
    run = versus_run(tmp_path)
    setup = registry.setup("kuhn_poker", {"preset": "kuhn_poker"})
    example = evaluate_scripted("random", setup, 20)
    orders = {
        "before": (("base", "random"), ("random", "base")),
        "after": (("player_0@2", "random"), ("random", "player_1@2")),
    }
    wins = {"before": (0.25, 0.5), "after": (0.625, 0.75)}
    first, second = setup.spec.roles
    for name, seat_orders in orders.items():
        played = []
        for seats in seat_orders:
            words = tuple("served" if "@" in seat else seat for seat in seats)
            played.append(SeatOrder(words=words, seats=seats, mean=0.0, standard_error=0.1))
        figures = dict(example.figures)
        figures[f"win as {first}"], figures[f"win as {second}"] = wins[name]
        result = dataclasses.replace(
            example, label=name, temperature=1.0, orders=tuple(played), figures=figures
        )
        for outcome in ("draw", "loss", "bad-reply win", "return"):
            result.figures.setdefault(f"{outcome} as {first}", 0.0)
            result.figures.setdefault(f"{outcome} as {second}", 0.0)
        write_document(run / f"{name}.json", result_to_json(result))
    assert lead_of_versus(run) == (
        f"games won against random: 0.250 → 0.625 as {first}, 0.500 → 0.750 as {second}"
    )
