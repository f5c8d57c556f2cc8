"""`hanabi-grpo adhoc`: pools, exact bounds in a file, shares of bounds, and whom a run has met."""

import json
import shutil
import signal
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adhoc_parts import adhoc_plan, adhoc_summary, play_adhoc
from crossplay_parts import save_checkpoint
from hanabi_grpo.cli import app
from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.adhoc.bounds import (
    ExactBound,
    bounds_file,
    compute_bounds,
    read_bounds,
)
from hanabi_grpo.evaluation.adhoc.plan import parse_adhoc
from hanabi_grpo.evaluation.adhoc.provenance import (
    OWN_RUN,
    STARTED_FROM,
    TAUGHT_BY,
    TRAINED_WITH,
    History,
    history_of,
)
from hanabi_grpo.evaluation.adhoc.summary import (
    adhoc_json,
    adhoc_sheets,
    describe_adhoc,
    seat_means,
    summarise_adhoc,
)
from hanabi_grpo.evaluation.evaluate import evaluate_lineup
from hanabi_grpo.report.adhoc_page import heat_map
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.runs.evaluation_result import write_document
from hanabi_grpo.settings.refs import CheckpointRef, ScriptRef, parse_checkpoint
from hanabi_grpo.token_filter import TokenFilter
from toy_kuhn import KUHN
from training_runs import LAPTOP
from waiting import wait_until

BLIND = ExactBound(seats=(1.4, 0.9))
FULL = registry.setup("hanabi", {"preset": "full"})


def test_the_pool_is_every_script_that_can_play_in_time() -> None:
    adhoc = parse_adhoc(["iggi"], ["mine=piers"], [], LAPTOP)
    labels = [entry.label for entry in adhoc.partners]
    assert labels[0] == "mine"
    # A bot that thinks aloud makes the same moves as its original, and hat bots need three players.
    is_playable = {name for name in LAPTOP.environment.policies if "hat" not in name}
    originals = is_playable - set(LAPTOP.environment.variants)
    assert set(labels) == {"mine", *originals} - {"piers"}
    assert adhoc.left_out == ()
    # On a board whose decks cannot all be played, what searches has to be named.
    large = parse_adhoc(["iggi"], ["search"], [], FULL)
    assert "search" in [entry.label for entry in large.partners]
    assert set(large.left_out) == {"search-hint-bot", "search-piers", "search-focus-bot"}
    assert not set(large.left_out) & {entry.label for entry in large.partners}


def test_a_named_variant_takes_the_place_of_its_original() -> None:
    labels = [entry.label for entry in parse_adhoc([], ["iggi-aloud"], [], LAPTOP).partners]
    assert "iggi-aloud" in labels and "iggi" not in labels


@pytest.mark.parametrize(("candidates", "partners"), [(["hat-bot"], ["iggi"]), ([], ["hat-bot"])])
def test_a_script_that_cannot_play_is_refused_before_the_first_game(
    candidates: list[str], partners: list[str]
) -> None:
    with pytest.raises(SettingsError, match=r"hat-bot on laptop with 2 players"):
        parse_adhoc(candidates, partners, [], LAPTOP)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (["outer=2"], "one of iggi, blind"),
        (["iggi"], "give NAME=SCORE or NAME=RUN"),
        (["iggi=5"], "a score must be above 0 and at most 4"),
        (["iggi=0"], "a score must be above 0 and at most 4"),
        (["iggi=2", "iggi=3"], "iggi already has a bound"),
        (["iggi=nobody"], "'nobody' is unknown"),
    ],
)
def test_a_bound_is_of_a_partner_and_within_the_scores(bounds: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_adhoc(["piers"], ["iggi", "blind"], bounds, LAPTOP, only=True)


def test_how_models_sampled_is_said_with_the_tokens_that_they_could_draw(tmp_path: Path) -> None:
    plan = adhoc_summary(tmp_path, "iggi", pool=("blind",), tasks=2).plan
    told = {
        (None, 1.0): "the same for every lineup",
        (0.0, 1.0): "the same for every lineup, greedy",
        (0.7, 1.0): "the same for every lineup, temperature 0.7",
        (0.7, 0.9): "the same for every lineup, temperature 0.7, top-p 0.9",
    }
    for (temperature, top_p), end in told.items():
        sampled = replace(plan, temperature=temperature, token_filter=TokenFilter(top_p=top_p))
        summary = summarise_adhoc(sampled, {}, {})
        assert describe_adhoc(summary)[1].endswith(end)


def test_the_heat_map_says_which_candidate_has_met_a_partner(tmp_path: Path) -> None:
    summary = adhoc_summary(tmp_path, "iggi", "piers", pool=("blind", "outer"), tasks=2)
    met = History(met={"blind": TRAINED_WITH})
    marks = [
        ((met, History()), ["blind (best known) [iggi: trained with]", "outer (best known)"]),
        ((met, met), ["blind (best known) [trained with]", "outer (best known)"]),
    ]
    for histories, names in marks:
        plan = replace(summary.plan, histories=histories)
        figure = heat_map(summarise_adhoc(plan, summary.results, {}))
        drawn = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        assert [" ".join(name.split()) for name in drawn] == names


def test_means_of_candidates_over_different_partners_say_so(tmp_path: Path) -> None:
    # A candidate is no partner of itself.
    summary = adhoc_summary(tmp_path, "iggi", "piers", pool=("blind", "outer", "iggi"), tasks=2)
    met = History(met={"outer": TRAINED_WITH})
    warning = (
        "The candidates' means are not over the same partners; held out for only some of them: "
    )
    told = [
        ((History(), History()), f"{warning}iggi."),
        ((met, History()), f"{warning}outer, iggi."),
    ]
    for histories, end in told:
        plan = replace(summary.plan, histories=histories)
        sheet = adhoc_sheets(summarise_adhoc(plan, summary.results, {}))[0]
        assert sheet.note.endswith(end)
    alike = adhoc_summary(tmp_path / "alike", "iggi", "piers", pool=("blind", "outer"), tasks=2)
    assert warning not in adhoc_sheets(alike)[0].note


def test_games_without_a_common_score_and_empty_pools_are_refused() -> None:
    with pytest.raises(SettingsError, match="do not share a score"):
        parse_adhoc(["random"], [], [], Setup(KUHN, KUHN.presets["kuhn"]))
    with pytest.raises(SettingsError, match="the pool of partners is empty"):
        parse_adhoc(["iggi"], [], [], LAPTOP, only=True)


def test_shares_are_scores_over_bounds_and_seats_are_told_apart(tmp_path: Path) -> None:
    summary = adhoc_summary(
        tmp_path,
        "iggi",
        "random",
        pool=("blind", "outer", "hint-bot"),
        bounds=("hint-bot=3.2",),
        exact={"blind": BLIND},
        tasks=40,
    )
    exact, known, given = summary.bounds
    assert exact is not None and known is not None and given is not None
    assert (exact.kind, exact.mean, exact.seats) == ("exact", pytest.approx(1.15), (1.4, 0.9))
    assert (given.kind, given.mean) == ("given", 3.2)
    # The best of outer with itself, with IGGI and with random play.
    means = {name: result.mean for name, result in summary.results.items()}
    best = max(means[name] for name in ("partner-1", "candidate-0-with-1", "candidate-1-with-1"))
    assert (known.kind, known.mean) == ("best known", best)
    iggi, random = summary.candidates
    for i, candidate in enumerate((iggi, random)):
        for pairing in candidate.pairings:
            bound = summary.bounds[pairing.partner]
            assert bound is not None
            mean = means[f"candidate-{i}-with-{pairing.partner}"]
            assert pairing.score.mean == mean
            assert pairing.share.mean == pytest.approx(mean / bound.mean)
            assert pairing.share.low <= pairing.share.mean <= pairing.share.high
        # Being the best one seen here with outer is no share of a bound.
        shares = [candidate.pairings[partner].share.mean for partner in (0, 2)]
        assert candidate.num_held_out == 3
        assert candidate.share.mean == pytest.approx(sum(shares) / 2)
        assert candidate.worst.mean == pytest.approx(min(shares))
    note = adhoc_sheets(summary)[0].note
    assert "because their bound is only the best score seen here: outer." in note
    assert iggi.share.mean > random.share.mean
    # Seat by seat what those very seat orders score.
    by_seat = []
    for text in ("iggi,hint-bot", "hint-bot,iggi"):
        lineup = parse_lineup(text, 2)
        by_seat.append(evaluate_lineup(lineup, LAPTOP, 40, rotate=False).mean)
    assert seat_means(summary.results["candidate-0-with-2"]) == pytest.approx(tuple(by_seat))


def test_with_three_players_a_candidate_takes_each_seat_beside_two_of_a_partner(
    tmp_path: Path,
) -> None:
    mini = registry.setup("hanabi", {"preset": "mini", "players": 3})
    summary = adhoc_summary(tmp_path, "iggi", pool=("blind",), setup=mini, tasks=12)
    by_seat = []
    for text in ("iggi,blind,blind", "blind,iggi,blind", "blind,blind,iggi"):
        by_seat.append(evaluate_lineup(parse_lineup(text, 3), mini, 12, rotate=False).mean)
    [pairing] = summary.candidates[0].pairings
    assert pairing.seats == pytest.approx(tuple(by_seat))


def test_a_best_response_that_was_trained_is_played_and_its_score_is_the_bound(
    tmp_path: Path,
) -> None:
    summary = adhoc_summary(tmp_path, "random", pool=("outer",), bounds=("outer=iggi",), tasks=20)
    [bound] = summary.bounds
    assert bound is not None
    assert (bound.kind, bound.source) == ("trained", "iggi")
    assert bound.mean == summary.results["response-to-0"].mean
    # The candidate itself against it is 100 %, on every resample of the tasks.
    same = adhoc_summary(tmp_path, "iggi", pool=("outer",), bounds=("outer=iggi",), tasks=20)
    share = same.candidates[0].share
    assert (share.mean, share.low, share.high) == (1.0, 1.0, 1.0)


def test_where_nobody_scores_there_is_no_share(tmp_path: Path) -> None:
    summary = adhoc_summary(tmp_path, "iggi", pool=("random", "outer"), setup=FULL, tasks=3)
    none = summary.bounds[0]
    assert none is not None and none.mean == 0.0
    [candidate] = summary.candidates
    assert adhoc_json(summary)["candidates"][0]["num_held_out"] == 2
    assert candidate.share.mean == candidate.pairings[1].share.mean
    assert candidate.pairings[0].share.mean != candidate.pairings[0].share.mean


def test_partners_that_a_run_trained_with_are_no_strangers(tmp_path: Path) -> None:
    run = tmp_path / "run"
    other = save_checkpoint(tmp_path / "other", 5, [0.5, 0.6])
    for folder in (run, tmp_path / "other"):
        folder.mkdir(exist_ok=True)
        settings = {"HANABI_TEACHER": "player_0=piers", "HANABI_PARTNERS": "outer*2"}
        (folder / "settings.json").write_text(json.dumps({"settings": settings}))
    save_checkpoint(run, 5, [0.1, 0.2])

    def relations(checkpoint: Path) -> list[str]:
        history = history_of(parse_checkpoint(str(checkpoint)), None)
        partners = [ScriptRef(name=name) for name in ("iggi", "outer", "piers")]
        checkpoints = [CheckpointRef(place=place) for place in (other, run / "checkpoint-5")]
        return [history.relation(partner) for partner in (*partners, *checkpoints)]

    # Without a count of games, what the run was set to counts.
    assert relations(run) == ["", TRAINED_WITH, TAUGHT_BY, "", OWN_RUN]
    met = {"iggi": 8, f"{tmp_path}/other/checkpoint-3:player_1": 4}

    def fill(folder: Path) -> None:
        (folder / "empty").write_text("")

    write_checkpoint(run, 9, fill, {"trained_with": met}, needed_bytes=0)
    # Another checkpoint of a run that it met is none either.
    assert relations(run) == [TRAINED_WITH, "", TAUGHT_BY, TRAINED_WITH, OWN_RUN]
    # A warm start, such as a clone of people, has no settings beside its checkpoint.
    clone = save_checkpoint(tmp_path / "clone", 0, [0.5, 0.6])
    write_checkpoint(run, 10, fill, {"trained_with": {f"{clone.parent}": 4}}, needed_bytes=0)
    history = history_of(parse_checkpoint(str(run)), None)
    assert history.relation(CheckpointRef(place=clone)) == TRAINED_WITH


def write_manifest(folder: Path, step: int, facts: dict[str, object]) -> None:
    def fill(partial: Path) -> None:
        (partial / "empty").write_text("")

    folder.mkdir(exist_ok=True)
    write_checkpoint(folder, step, fill, facts, needed_bytes=0)


def history(run: Path) -> History:
    return history_of(parse_checkpoint(str(run)), None, LAPTOP.environment.variants)


def test_a_partner_is_recognised_by_every_name_that_a_run_has_for_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    best = save_checkpoint(tmp_path / "best", 5, [0.5, 0.6])
    (best.parent / "settings.json").write_text("{}")
    hub = save_checkpoint(tmp_path / "downloads" / "hf", 5, [0.5, 0.6])
    used = {"folder": str(hub), "version": "hf:org/repo@abc", "step": 5, "sha256": {}}
    document = {"settings": {}, "remote_checkpoints": {"hf:org/repo": used}}
    write_manifest(run, 9, {"trained_with": {f"{best.parent}@best": 4, "hf:org/repo": 2}})
    (run / "settings.json").write_text(json.dumps(document))
    for place in (best, hub):
        assert history(run).relation(CheckpointRef(place=place)) == TRAINED_WITH
    other = save_checkpoint(tmp_path / "other", 5, [0.5, 0.6])
    assert history(run).relation(CheckpointRef(place=other)) == ""


def test_a_bot_that_thinks_aloud_is_no_stranger_to_who_met_it_silent(tmp_path: Path) -> None:
    taught_by = {"player_0": {"teacher": "save-bot-aloud", "labels": "replies"}}
    # Without settings, as after a download.
    write_manifest(tmp_path, 9, {"trained_with": {"iggi": 4}, "taught_by": taught_by})
    met = history(tmp_path)
    assert met.relation(ScriptRef(name="iggi-aloud")) == TRAINED_WITH
    assert met.relation(ScriptRef(name="save-bot")) == TAUGHT_BY
    assert met.relation(ScriptRef(name="piers")) == ""


def test_whom_a_run_met_before_it_became_another_run_is_no_stranger(tmp_path: Path) -> None:
    first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
    write_manifest(first, 5, {"trained_with": {"iggi": 4}})
    start = {"player_0": {"folder": str(first / "checkpoint-5")}}
    write_manifest(second, 5, {"trained_with": {"outer": 4}, "started_from": start})
    start = {"player_0": {"folder": str(second / "checkpoint-5")}}
    write_manifest(third, 5, {"started_from": start})
    met = history(third)
    assert met.relation(ScriptRef(name="iggi")) == TRAINED_WITH
    assert met.relation(ScriptRef(name="outer")) == TRAINED_WITH
    for run in (first, second):
        assert met.relation(CheckpointRef(place=run / "checkpoint-5")) == STARTED_FROM
    assert met.missing == ()
    shutil.rmtree(first)
    met = history(third)
    assert met.missing == (first / "checkpoint-5",)
    assert met.relation(ScriptRef(name="iggi")) == ""
    plan = replace(adhoc_plan("iggi", pool=("outer",), tasks=2), histories=(met,))
    lines = describe_adhoc(summarise_adhoc(plan, play_adhoc(plan, tmp_path / "games"), {}))
    assert any("is not on this disk: partners that it met there" in line for line in lines)


def test_partners_that_were_met_are_marked_and_in_no_mean(tmp_path: Path) -> None:
    plan = adhoc_plan("iggi", pool=("blind", "outer"), tasks=10)
    results = play_adhoc(plan, tmp_path)
    [unmet] = plan.histories
    plan = replace(plan, histories=(replace(unmet, met={"blind": TRAINED_WITH}),))
    summary = summarise_adhoc(plan, results, {})
    [candidate] = summary.candidates
    assert [pairing.relation for pairing in candidate.pairings] == [TRAINED_WITH, ""]
    assert candidate.num_held_out == 1
    assert candidate.share.mean == candidate.pairings[1].share.mean
    table = next(sheet for sheet in adhoc_sheets(summary) if "with each partner" in sheet.title)
    assert [row[0] for group in table.groups for row in group] == [
        "outer",
        "blind (trained with)",
    ]
    assert adhoc_json(summary)["candidates"][0]["partners"][0]["relation"] == TRAINED_WITH


def test_an_interrupt_does_not_wait_for_bounds_that_take_minutes(tmp_path: Path) -> None:
    workers = []
    of_other_tests = active_children()

    def interrupt(*_: object) -> None:
        workers.extend(child for child in active_children() if child not in of_other_tests)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.alarm(3)
        with pytest.raises(KeyboardInterrupt):
            compute_bounds(LAPTOP, ["iggi"], folder=tmp_path)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert workers
    # Not by joining them: the pool's own thread joins them too, and where it was first, this
    # one's join returns before the exit code is set.
    wait_until(lambda: all(worker.exitcode is not None for worker in workers), seconds=60)
    assert {worker.exitcode for worker in workers} == {-signal.SIGKILL}


def test_exact_bounds_are_computed_once_and_hold_for_self_play(tmp_path: Path) -> None:
    calls = []
    found = compute_bounds(
        LAPTOP, ["blind", "search"], folder=tmp_path, progress=lambda *done: calls.append(done)
    )
    assert set(found) == {"blind"}, "search draws worlds, and has no chances of moves"
    assert len(calls) == 4
    itself = evaluate_lineup(parse_lineup("blind", 2), LAPTOP, 200).mean
    assert found["blind"].mean > itself
    path = bounds_file(LAPTOP, tmp_path)
    assert path is not None and read_bounds(path) == found
    calls.clear()
    assert compute_bounds(
        LAPTOP, ["blind"], folder=tmp_path, progress=lambda *done: calls.append(done)
    ) == {"blind": found["blind"]}
    assert calls == []
    # What prompts look like is another game for players, and the same for bounds.
    counted = registry.setup("hanabi", {"preset": "laptop", "deductions": "counted"})
    assert bounds_file(counted, tmp_path) == path
    keeps = registry.setup("hanabi", {"preset": "laptop", "bomb_rule": "keep"})
    assert bounds_file(keeps, tmp_path) != path
    assert bounds_file(FULL, tmp_path) is None
    path.write_text("torn")
    assert read_bounds(path) == {}


def test_the_command_leaves_every_file_and_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = bounds_file(LAPTOP)
    assert path is not None
    write_document(path, {"scripts": {"blind": {"seats": [1.4, 0.9]}}})
    out = tmp_path / "out"
    command = ["adhoc", "mine=iggi", "--only", "--with", "blind", "--preset", "laptop"]
    command += ["--tasks", "20", "--out", str(out)]
    answer = CliRunner().invoke(app, [*command, "--json"])
    assert answer.exit_code == 0, answer.output
    assert {one.name for one in out.iterdir()} == {
        "lineups",
        "adhoc.json",
        "adhoc.html",
        "heat_map.png",
    }
    data = json.loads(answer.stdout)
    assert data == json.loads((out / "adhoc.json").read_text())
    assert data["complete"] is True
    [partner] = data["partners"]
    assert partner["bound"] == {"kind": "exact", "mean": 1.15, "seats": [1.4, 0.9], "source": None}
    [candidate] = data["candidates"]
    assert candidate["label"] == "mine"
    score = candidate["partners"][0]["score"]["mean"]
    assert candidate["share"]["mean"] == pytest.approx(score / 1.15)
    assert str(tmp_path) not in (out / "adhoc.html").read_text()
    # Further partners are added; half of all decks have no exact bound.
    num_played = len(list((out / "lineups").iterdir()))
    again = CliRunner().invoke(app, [*command, "--with", "outer", "--bound", "outer=3"])
    assert again.exit_code == 0, again.output
    assert len(list((out / "lineups").iterdir())) == num_played + 2
    for text in ("20 tasks of suite eval", "With held-out partners", f"wrote {out}"):
        assert text in again.output
    assert "replaced" not in again.output
    other = CliRunner().invoke(app, ["adhoc", "hint-bot", *command[2:]])
    assert other.exit_code == 0, other.output
    assert f"replaced {out / 'adhoc.json'}, which held iggi" in other.output
    half = CliRunner().invoke(
        app, [*command[:-2], "--suite", "split-eval", "--out", str(tmp_path / "half"), "--json"]
    )
    assert half.exit_code == 0, half.output
    assert json.loads(half.stdout)["partners"][0]["bound"]["kind"] == "best known"
