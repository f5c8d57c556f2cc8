"""`hanabi-grpo teams`: a workflow beside one seat alone and beside a vote that costs no less."""

import json
import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hanabi_grpo.cli import app
from hanabi_grpo.client.lineups import SeatResolver, parse_lineup
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs import registry
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.evaluation.teams import Problems, evaluate_team, shared_setup, votes_for
from hanabi_grpo.settings import Settings
from hanabi_grpo.types import Episode, EpisodeStatus
from made_games import made_turn
from server_app import RunningApp, running_app

DEBATE = registry.setup(
    "debate", {"preset": "debate", "style": "compact", "rounds": 3, "chain_terms": 4}
)
BASE_TEAM = parse_lineup("base", 2, env="debate")


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def teams(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(app, ["teams", *arguments], env=environ)


def served_by(server: RunningApp) -> Served:
    client = RolloutClient(server.url)
    return Served(
        client=client, resolver=SeatResolver(client, Settings()), max_tokens=4, temperature=1.0
    )


def test_one_table_and_one_file_for_all_workflows() -> None:
    entries = ("debate=noisy", "vote=noisy", "summary=solver", "pioneer_observer=noisy")
    answer = teams(
        *entries, "--tasks", "60", "--out", "a.json", HANABI_ENV="debate", HANABI_CHAIN_TERMS="2"
    )
    assert answer.exit_code == 0, answer.output
    for part in (
        "chain_sum: 60 problems",
        "one seat alone",
        "vote of 4, at",
        "round 1",
        "debate of 2",
        "summary − vote",
    ):
        assert part in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 120
    debate, vote, summary, pioneer = json.loads(Path("a.json").read_text())["results"]
    assert [row["name"] for row in debate["rows"]] == [
        "one seat alone",
        "vote of 4, at least as many tokens",
        "round 1",
        "debate of 2",
    ]
    assert [row["tokens"] for row in debate["rows"]] == [1.0, 4.0, 2.0, 4.0]
    alone, _, first_round, team = debate["rows"]
    assert alone["right"] == first_round["right"], (
        "of two that differ the one half is right, as on average"
    )
    figures = team["figures"]
    gained = figures["corrected"] - figures["misled"]
    assert team["right"]["mean"] == pytest.approx(alone["right"]["mean"] + gained)
    assert [row["name"] for row in vote["rows"]] == ["one seat alone", "vote of 3"]
    assert vote["gain"] is None
    assert summary["rows"][-1]["right"]["mean"] == 1.0
    assert summary["gain"]["mean"] == 0.0
    assert pioneer["rows"][1]["name"] == "vote of 2, at least as many tokens"
    assert pioneer["gain"]["num_tasks"] == 60


def test_the_gain_over_the_vote_is_clustered_by_problem() -> None:
    """Sums of two terms up to 3 are few, so most of 200 tasks ask what another one asks."""
    options = ("--tasks", "200", "--out", "few.json")
    answer = teams(
        "debate=noisy",
        *options,
        HANABI_ENV="debate",
        HANABI_CHAIN_TERMS="2",
        HANABI_CHAIN_HIGHEST="3",
    )
    assert answer.exit_code == 0, answer.output
    [result] = json.loads(Path("few.json").read_text())["results"]
    sums = registry.setup("debate", {"preset": "debate", "chain_terms": 2, "chain_highest": 3})
    questions = set()
    for seed in range(200):
        problem = sums.environment.problem(sums.config, split="eval", seed=seed)
        questions.add(problem.question)
    num_different = len(questions)
    assert num_different < 60
    for estimate in (result["gain"], *(row["right"] for row in result["rows"])):
        assert estimate["num_tasks"] == 200
        assert estimate["num_starts"] == num_different
    assert f"200 problems ({num_different} different) of suite eval" in answer.stdout


def test_rounds_of_a_solver_and_its_critic_count_the_tokens_of_both() -> None:
    setup = registry.setup(
        "revise", {"preset": "revise", "style": "compact", "rounds": 3, "feedback": "comment"}
    )
    lineup = parse_lineup("noisy,solver", 2, env="revise")
    result = evaluate_team(lineup, setup, 40, suite="eval")
    rows = {row.name: row for row in result.rows}
    names = [
        "one seat alone",
        "vote of 5, at least as many tokens",
        "round 1",
        "round 2",
        "revise of 2",
    ]
    assert list(rows) == names
    assert [rows[name].tokens for name in names] == [1.0, 5.0, 1.0, 3.0, 5.0]
    assert rows["one seat alone"].right == rows["round 1"].right
    # It takes over what the critic says, who knows.
    assert rows["revise of 2"].right.mean == 1.0
    assert result.gain is not None and result.gain.num_tasks == 40


def test_calls_of_a_tool_count_as_tokens_and_not_as_answers_and_the_vote_may_call_too() -> None:
    names = {
        "debate": [
            "one seat alone",
            "vote of 4, at least as many tokens",
            "round 1",
            "debate of 2",
        ],
        "summary": ["one seat alone", "vote of 3, at least as many tokens", "summary of 3"],
        "revise": [
            "one seat alone",
            "vote of 2, at least as many tokens",
            "round 1",
            "revise of 1",
        ],
    }
    for workflow, expected in names.items():
        preset = registry.get(workflow).presets[f"{workflow}-calculator"]
        setup = registry.setup(workflow, preset.model_dump())
        lineup = parse_lineup("noisy", setup.spec.num_players, env=workflow)
        result = evaluate_team(lineup, setup, 60, suite="eval")
        rows = {row.name: row for row in result.rows}
        assert list(rows) == expected
        alone, vote, *_, team = result.rows
        # The script calls in half of its turns, and each reply counts as one token.
        assert 1.2 < alone.tokens < 1.8
        assert vote.tokens == pytest.approx(team.tokens, rel=0.15)
        assert team.figures["no answer"] == 0.0
    vote_setup = shared_setup(setup, "vote")
    assert [tool.name for tool in vote_setup.tools] == ["calculator"]
    [alone, team] = evaluate_team(
        parse_lineup("noisy", 3, env="vote"), vote_setup, 60, suite="eval"
    ).rows
    assert alone.tokens == pytest.approx(team.tokens / 3)


def test_the_vote_beside_it_has_the_instructions_of_its_own_seats() -> None:
    instruction = "Be brief.\nplayer_0=Add.\nplayer_1=Check."
    fields = {"preset": "debate", "style": "full", "instruction": instruction, "verify": "text"}
    debate = registry.setup("debate", fields)
    vote = shared_setup(debate, "vote", players=1)
    assert vote.config.instruction == "Be brief.\nplayer_0=Add."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no WORKFLOW=LINEUP is given: give one, e.g. debate=served; workflows: vote, debate"),
        (["hanabi=iggi"], "'hanabi=iggi': give WORKFLOW=LINEUP"),
        (["debate="], "'debate=': give WORKFLOW=LINEUP"),
        (["debate=iggi"], "iggi"),
        (["debate=noisy,noisy,noisy"], "lineup 'noisy,noisy,noisy': 3 "),
        (["debate=noisy", "--tasks", "1"], "--tasks 1"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_way_out(
    arguments: list[str], message: str
) -> None:
    answer = teams(*arguments)
    assert answer.exit_code == 2
    assert message in " ".join(answer.stderr.split())


def test_another_workflow_has_the_same_problems_and_its_own_seats() -> None:
    vote = shared_setup(DEBATE, "vote")
    assert vote.config.chain_terms == 4
    assert vote.config.style == "compact"
    assert vote.spec.num_players == 3


def test_a_vote_has_the_fewest_answers_that_cost_no_less_than_the_team() -> None:
    assert votes_for(cost_of_team=2.4, cost_of_answer=1.0) == 3
    assert 3 * 0.1 / 0.1 > 3, "a rounding error"
    assert votes_for(cost_of_team=3 * 0.1, cost_of_answer=0.1) == 3
    assert votes_for(cost_of_team=0.1, cost_of_answer=1.0) == 1


def test_a_vote_may_sample_at_least_as_many_tokens_as_the_team() -> None:
    done: list[int] = []
    with running_app() as server:
        result = evaluate_team(
            BASE_TEAM, DEBATE, 30, suite="eval", served=served_by(server), progress=done.append
        )
    alone, vote, *rounds_and_team = result.rows
    team = rounds_and_team[-1]
    num_votes = int(vote.name.removesuffix(", at least as many tokens").split()[-1])
    # Six replies of a debate, or as many first answers as cost no less.
    assert num_votes == math.ceil(team.tokens / alone.tokens)
    assert alone.tokens > 1
    assert vote.tokens == pytest.approx(team.tokens, rel=0.2)
    assert done[-1] == 60
    assert len(result.rows) == 5
    tokens = [row.tokens for row in rounds_and_team]
    assert tokens == sorted(tokens), "each round needs more"


def test_a_verifier_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> float:
        raise KeyError("units")

    monkeypatch.setattr("hanabi_grpo.envs.workflows.problems.is_same", broken)
    message = r"VerifierError: chain_sum: its verifier"
    with running_app() as server, pytest.raises(ServerError, match=message):
        evaluate_team(BASE_TEAM, DEBATE, 2, suite="eval", served=served_by(server))


def with_long_problems(monkeypatch: pytest.MonkeyPatch, numbers: Collection[int]) -> None:
    """Let some problems be too long for the context, as the server plays them."""
    play = Problems.play

    def played(self: Problems, *arguments: Any) -> Iterator[list[Episode]]:
        for number, games in enumerate(play(self, *arguments)):
            cut = []
            for game in games:
                result = dict.fromkeys(game.result, 0.0)
                status = EpisodeStatus.TRUNCATED_TOKENS
                cut.append(replace(game, turns=(), status=status, result=result))
            yield cut if number in numbers else games

    monkeypatch.setattr(Problems, "play", played)


def test_a_problem_that_is_too_long_counts_as_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    lineup = parse_lineup("solver", 2, env="debate")
    whole = evaluate_team(lineup, DEBATE, 10, suite="eval")
    assert whole.num_too_long == 0
    with_long_problems(monkeypatch, {3})
    result = evaluate_team(lineup, DEBATE, 10, suite="eval")
    assert result.num_too_long == 1
    for row, row_of_whole in zip(result.rows, whole.rows, strict=True):
        assert row.name == row_of_whole.name
        assert row.right.mean == pytest.approx(0.9 * row_of_whole.right.mean)
    answer = teams("debate=solver", "--tasks", "10")
    assert answer.exit_code == 0, answer.output
    assert "1 of 10 problems leave no room for a reply" in " ".join(answer.stderr.split())


def test_where_no_problem_fits_the_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with_long_problems(monkeypatch, range(10))
    lineup = parse_lineup("solver", 2, env="debate")
    with pytest.raises(SettingsError, match="none of 10 problems fits into HANABI_MAX_MODEL_LEN"):
        evaluate_team(lineup, DEBATE, 10, suite="eval")


def test_beside_a_model_behind_a_url_every_reply_costs_the_same() -> None:
    turns = [made_turn(0, 1, 2, 3), made_turn(1)]

    def cost(lineup: str) -> tuple[int, str]:
        refs = parse_lineup(lineup, 2, env="debate")
        problems = Problems(lineup=refs, suite="eval", num_tasks=1, starts=(0,), served=None)
        return problems.cost(turns), problems.unit

    assert cost("base,noisy") == (4, "tokens")
    assert cost("base,url:big") == (2, "replies")
