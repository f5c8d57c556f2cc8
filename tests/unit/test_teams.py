"""`hanabi-grpo teams`: a workflow beside one seat alone and beside a vote at as many sampled
tokens.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.client.lineups import SeatResolver, parse_lineup
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs import registry
from hanabi_grpo.errors import ServerError
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.evaluation.teams import evaluate_team, shared_setup
from hanabi_grpo.settings import Settings
from server_app import running_app


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def teams(*words: str, **environ: str) -> Any:
    return CliRunner().invoke(app, ["teams", *words], env=environ)


def test_one_table_and_one_file_for_all_workflows(tmp_path: Path) -> None:
    entries = ("debate=noisy", "vote=noisy", "summary=solver", "pioneer_observer=noisy")
    answer = teams(
        *entries, "--tasks", "60", "--out", "a.json", HANABI_ENV="debate", HANABI_CHAIN_TERMS="2"
    )
    assert answer.exit_code == 0, answer.output
    for part in (
        "chain_sum: 60 problems",
        "one seat alone",
        "vote of 4, as",
        "round 1",
        "debate of 2",
        "summary − that",
    ):
        assert part in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 120
    debate, vote, summary, cory = json.loads(Path("a.json").read_text())["results"]
    assert [row["name"] for row in debate["rows"]] == [
        "one seat alone",
        "vote of 4, as many tokens",
        "round 1",
        "debate of 2",
    ]
    assert [row["tokens"] for row in debate["rows"]] == [1.0, 4.0, 2.0, 4.0]
    alone, _, first, team = debate["rows"]
    assert alone["right"] == first["right"], (
        "of two that differ the one half is right, as on average"
    )
    figures = team["figures"]
    assert team["right"]["mean"] == pytest.approx(
        alone["right"]["mean"] + figures["corrected"] - figures["misled"]
    )
    assert [row["name"] for row in vote["rows"]] == ["one seat alone", "vote of 3"] and vote[
        "gain"
    ] is None
    assert summary["rows"][-1]["right"]["mean"] == 1.0 and summary["gain"]["mean"] == 0.0
    assert (
        cory["rows"][1]["name"] == "vote of 2, as many tokens" and cory["gain"]["num_tasks"] == 60
    )


def test_what_cannot_be_compared_is_refused_with_the_way_out() -> None:
    for words, message in (
        ((), "no WORKFLOW=LINEUP: give one, e.g. debate=served; workflows: vote, debate"),
        (("hanabi=iggi",), "'hanabi=iggi': give WORKFLOW=LINEUP"),
        (("debate=",), "'debate=': give WORKFLOW=LINEUP"),
        (("debate=iggi",), "iggi"),
        (("debate=noisy,noisy,noisy",), "3 policy specs for 2 players"),
        (("debate=noisy", "--tasks", "1"), "--tasks 1"),
    ):
        answer = teams(*words)
        assert answer.exit_code == 2 and message in " ".join(answer.stderr.split()), (
            words,
            answer.output,
        )


def test_a_vote_may_sample_as_many_tokens_as_the_team_and_has_the_same_problems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = registry.setup(
        "debate", {"preset": "debate", "style": "compact", "rounds": 3, "chain_terms": 4}
    )
    vote = shared_setup(setup, "vote")
    assert (vote.config.chain_terms, vote.config.style, vote.spec.num_players) == (4, "compact", 3)
    team = parse_lineup("base", 2, env="debate")
    with running_app() as server, RolloutClient(server.url) as client:
        served = Served(
            client=client, resolver=SeatResolver(client, Settings()), max_tokens=4, temperature=1.0
        )
        done: list[int] = []
        result = evaluate_team(team, setup, 30, suite="eval", served=served, progress=done.append)
        alone, voted, *_, whole = result.rows
        count = int(voted.name.removesuffix(", as many tokens").split()[-1])
        # Six replies of a debate, or so many first answers as have as many tokens.
        assert count == round(whole.tokens / alone.tokens) and alone.tokens > 1
        assert voted.tokens == pytest.approx(whole.tokens, rel=0.2) and done[-1] == 60
        assert len(result.rows) == 5 and [row.tokens for row in result.rows[2:]] == sorted(
            row.tokens for row in result.rows[2:]
        )

        def broken(*_: object) -> float:
            raise KeyError("units")

        monkeypatch.setattr("hanabi_grpo.envs.workflows.problems.normalize", broken)
        with pytest.raises(
            ServerError,
            match=r"all .* games failed.*VerifierError: chain_sum: its verifier",
        ):
            evaluate_team(team, setup, 2, suite="eval", served=served)
