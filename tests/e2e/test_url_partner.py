"""A partner behind vLLM's own OpenAI server, and one behind a second rollout server.

Both play in training and in evaluation.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from conftest_e2e import (
    ROOT,
    SERVER_SECONDS,
    Server,
    clean_environment,
    read_json_lines,
    read_metrics,
    run_cli,
    start_server,
    stop,
    train,
)
from ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.rest]
KEY = "sk-0123456789abcdef"
NUM_GAMES = 2 * 2 * 8
"""Steps, tasks of a step, games of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIServer:
    """vLLM's own server."""

    url: str
    """Its address, with the version."""
    process: "subprocess.Popen[bytes]"
    """Its process, which a test may stop."""


@pytest.fixture
def openai_server(tiny_model: Path, tmp_path: Path) -> Iterator[OpenAIServer]:
    """vLLM's own server, which serves the tiny model as `tiny`."""
    log = tmp_path / "openai.log"
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(tiny_model)]
    command += ["--port", str(port)]
    command += ["--host", "127.0.0.1"]
    command += ["--served-model-name", "tiny"]
    command += ["--dtype", "float32"]
    command += ["--max-model-len", "1024"]
    command += ["--enforce-eager"]
    command += ["--block-size", "32"]
    command += ["--api-key", KEY]
    environment = clean_environment()
    environment["VLLM_PLUGINS"] = ""
    environment["VLLM_CPU_KVCACHE_SPACE"] = "1"
    environment["HF_HUB_OFFLINE"] = "1"
    environment["VLLM_CPU_OMP_THREADS_BIND"] = str(min(os.sched_getaffinity(0)))
    environment["VLLM_NO_USAGE_STATS"] = "1"
    environment.pop("OMP_NUM_THREADS", None)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + SERVER_SECONDS
        while not _is_up(port):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.5)
        yield OpenAIServer(url=f"http://127.0.0.1:{port}/v1", process=process)
    finally:
        stop(process)


def _is_up(port: int) -> bool:
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/health", timeout=2.0, trust_env=False)
    except httpx.TransportError:
        return False
    return answer.status_code == 200


def transcripts() -> set[Path]:
    """Return the files in which servers and evaluations record the calls to partners."""
    return set((ROOT / "outputs").glob("partner_calls-*.jsonl"))


def assert_doctor_reaches_both(environment: dict[str, str]) -> None:
    output = run_cli(environment, "doctor", "--role", "server", "--json").stdout
    checks = json.loads(output)["checks"]
    partner_checks = [check for check in checks if check["name"] == "partner urls"]
    statuses = [check["status"] for check in partner_checks]
    assert statuses == ["ok", "ok"], partner_checks


def assert_only_the_runs_own_players_have_tokens(episodes: list[dict[str, Any]]) -> None:
    seats: Counter[str] = Counter()
    for episode in episodes:
        seats.update(seat.split("@")[0] for seat in episode["seats"])
        for turn in episode["turns"]:
            is_partner = episode["seats"][turn["player"]].startswith("url:")
            assert bool(turn["reply_ids"]) != is_partner
            if is_partner:
                assert turn["reply"]
    assert len(episodes) == NUM_GAMES
    assert seats["url:big"] + seats["url:other"] == NUM_GAMES


def test_it_plays_in_training_and_evaluation_and_stops_the_run_when_it_is_gone(
    openai_server: OpenAIServer, server: Server, tmp_path: Path
) -> None:
    variables = {
        "HANABI_PARTNER_URLS": f"big={openai_server.url}#tiny,other={server.url}/v1#base",
        "HANABI_PARTNER_KEY": KEY,
        "HANABI_PARTNER_TIMEOUT": 30,
    }
    transcripts_before = transcripts()
    second_server = start_server(server.model, tmp_path / "server.log", **variables)
    try:
        environment = second_server.environment(**variables)
        assert_doctor_reaches_both(environment)

        folder = tmp_path / "run"
        trainer = train(
            second_server,
            folder,
            HANABI_PARTNERS="url:big,url:other",
            HANABI_PARTNER_SHARE=1,
            MAX_STEPS=2,
        )
        assert trainer.returncode == 0, trainer.stdout[-4000:]
        rows = read_metrics(folder)
        assert [row["games_dropped"] for row in rows] == [0, 0]
        partners = set()
        for row in rows:
            partners |= {name.split("/")[1] for name in row if name.startswith("partners/")}
        assert partners
        assert partners <= {"big", "other"}
        episodes = []
        for path in folder.glob("episodes/*.jsonl"):
            episodes += read_json_lines(path)
        assert_only_the_runs_own_players_have_tokens(episodes)

        out = tmp_path / "result.json"
        evaluation = run_cli(
            environment, "evaluate", "url:big,served", "--tasks", "4", "--out", str(out)
        )
        assert evaluation.returncode == 0, (evaluation.stdout + evaluation.stderr)[-4000:]
        assert "url:big" in out.read_text()

        [transcript] = transcripts() - transcripts_before
        calls = read_json_lines(transcript)
        assert "big" in {call["partner"] for call in calls}
        assert not any(call["error"] for call in calls)
        written = [
            second_server.log,
            transcript,
            folder / "settings.json",
            folder / "server.log",
            out,
        ]
        for file in written:
            assert KEY not in file.read_text(), file

        # A partner that is no longer there stops the run with a message.
        stop(openai_server.process)
        trainer = train(
            second_server,
            tmp_path / "new",
            HANABI_PARTNERS="url:big",
            HANABI_PARTNER_SHARE=1,
            MAX_STEPS=3,
        )
        assert trainer.returncode != 0
        assert "calls in a row failed like this" in trainer.stdout, trainer.stdout[-4000:]

        for path in transcripts() - transcripts_before:
            path.unlink()
    finally:
        stop(second_server.process)
