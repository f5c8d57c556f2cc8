"""A run whose games are scored by a judge behind a URL, which goes away and comes back."""

from pathlib import Path
from typing import Any

import pytest

from conftest_e2e import ROOT, read_json_lines, read_metrics, start_server, stop, train
from local_service import LocalService, served
from url_service import Handler, Partner, completion

pytestmark = [pytest.mark.e2e, pytest.mark.rest]
NUM_GAMES = 2 * 8
"""Tasks of a step, games of a task."""
JUDGED = {"HANABI_JUDGE": "url:big", "HANABI_JUDGE_WEIGHT": 2, "HANABI_JUDGE_TEMPLATE": "episode"}


def score(body: dict[str, Any]) -> Any:
    """Like games in which much is played."""
    text = body["messages"][-1]["content"]
    return completion(f"I have read it.\n**Score: {min(10, text.count('answered:'))}/10**")


def judge_calls() -> set[Path]:
    return set((ROOT / "outputs").glob("judge_calls-*.jsonl"))


class PartnerAt(Partner):
    """A `Partner` on a port that was in use a moment ago."""

    def __init__(self, port: int) -> None:
        # Like `Partner`, but not on any free port.
        super(LocalService, self).__init__(("127.0.0.1", port), Handler)
        self.answer = score
        self.bodies = []
        self.headers = []


def test_its_score_is_paid_and_without_it_the_run_stops_and_can_go_on(
    tiny_model: Path, tmp_path: Path
) -> None:
    calls_before = judge_calls()
    folder = tmp_path / "run"
    judge = Partner(score)
    port = judge.server_port
    variables = {**JUDGED, "HANABI_PARTNER_URLS": judge.entry()}
    # Validations are not judged.
    plan = {**JUDGED, "HANABI_EVAL_STEPS": 2, "HANABI_EVAL_TASKS": 4, "SAVE_STEPS": 2}
    server = start_server(tiny_model, tmp_path / "server.log", **variables)
    try:
        with served(judge):
            trainer = train(server, folder, MAX_STEPS=2, **plan)
        assert trainer.returncode == 0, trainer.stdout[-4000:]
        rows = read_metrics(folder)
        assert [row["games_dropped"] for row in rows] == [0, 0]
        assert all(0.2 <= row["reward/judge"] <= 2.0 for row in rows), rows
        assert all(row["judge/missing"] == 0.0 for row in rows)
        episodes = []
        for path in folder.glob("episodes/*.jsonl"):
            episodes += read_json_lines(path)
        assert episodes
        for episode in episodes:
            num_answers = min(10, len(episode["turns"]))
            paid = [parts.get("judge") for parts in episode["turns"][-1]["rewards"]]
            assert num_answers / 5 in paid
        [transcript] = judge_calls() - calls_before
        calls = read_json_lines(transcript)
        assert {call["task"].split()[1] for call in calls} == {"train"}
        assert len(calls) <= 2 * NUM_GAMES
        assert not any(call["error"] for call in calls)

        # It is gone: the run stops, says why, and loses nothing.
        trainer = train(server, folder, MAX_STEPS=4, RESUME="latest", **plan)
        assert trainer.returncode != 0
        assert "calls in a row failed like this" in trainer.stdout, trainer.stdout[-4000:]
        assert "RESUME=latest" in trainer.stdout
        assert len(read_metrics(folder)) == 2

        with served(PartnerAt(port)):
            trainer = train(server, folder, MAX_STEPS=4, RESUME="latest", **plan)
        assert trainer.returncode == 0, trainer.stdout[-4000:]
        assert [row["step"] for row in read_metrics(folder)] == [1, 2, 3, 4]
        # Another judge is another reward.
        other = {**plan, "HANABI_JUDGE_WEIGHT": 1}
        trainer = train(server, folder, MAX_STEPS=5, RESUME="latest", **other)
        assert trainer.returncode != 0
        assert "HANABI_JUDGE_WEIGHT" in trainer.stdout, trainer.stdout[-4000:]
    finally:
        stop(server.process)
        for path in judge_calls() - calls_before:
            path.unlink()
