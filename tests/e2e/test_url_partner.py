"""A partner behind vLLM's own OpenAI server, and behind a second rollout server: in training and in
evaluation.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from conftest_e2e import (
    ROOT,
    SERVER_SECONDS,
    Server,
    clean_environment,
    free_port,
    start_server,
    stop,
    train,
)

pytestmark = [pytest.mark.e2e, pytest.mark.rest]
KEY = "sk-0123456789abcdef"


@pytest.fixture(scope="module")
def openai(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of vLLM's own server, which serves the tiny model as `tiny`."""
    log, port = tmp_path_factory.mktemp("openai") / "openai.log", free_port()
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(tiny_model),
        "--port",
        str(port),
    ]
    command += [
        "--host",
        "127.0.0.1",
        "--served-model-name",
        "tiny",
        "--dtype",
        "float32",
        "--max-model-len",
        "1024",
    ]
    command += ["--enforce-eager", "--block-size", "32", "--api-key", KEY]
    environment = {
        **clean_environment(),
        "VLLM_PLUGINS": "",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    environment |= {
        "VLLM_CPU_OMP_THREADS_BIND": str(min(os.sched_getaffinity(0))),
        "VLLM_NO_USAGE_STATS": "1",
    }
    environment.pop("OMP_NUM_THREADS", None)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + SERVER_SECONDS
        while not _is_up(port):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        stop(process)


def _is_up(port: int) -> bool:
    try:
        return (
            httpx.get(f"http://127.0.0.1:{port}/health", timeout=2.0, trust_env=False).status_code
            == 200
        )
    except httpx.TransportError:
        return False


def run(environment: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "hanabi_grpo.cli", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)


def test_it_plays_in_training_and_evaluation_and_stops_the_run_when_it_is_gone(
    openai: str, server: Server, tmp_path: Path
) -> None:
    urls = f"big={openai}#tiny,other={server.url}/v1#base"
    given = {"HANABI_PARTNER_URLS": urls, "HANABI_PARTNER_KEY": KEY, "HANABI_PARTNER_TIMEOUT": 30}
    before = set((ROOT / "outputs").glob("partner_calls-*.jsonl"))
    table = start_server(server.model, tmp_path / "server.log", **given)
    try:
        environment = table.environment(**given)
        checks = json.loads(run(environment, "doctor", "--role", "server", "--json").stdout)[
            "checks"
        ]
        asked = [(one["status"], one["finding"]) for one in checks if one["name"] == "partner urls"]
        assert [status for status, _ in asked] == ["ok", "ok"], asked
        folder = tmp_path / "run"
        pool = {"HANABI_PARTNERS": "url:big,url:other", "HANABI_PARTNER_SHARE": 1, "MAX_STEPS": 2}
        done = train(table, folder, **pool)
        assert done.returncode == 0, done.stdout[-4000:]
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [row["games_dropped"] for row in rows] == [0, 0]
        names = {name.split("/")[1] for row in rows for name in row if name.startswith("partners/")}
        assert names <= {"big", "other"} and names
        # The adapters moved, and only turns of the run's own players have tokens.
        episodes = [
            json.loads(line)
            for file in folder.glob("episodes/*.jsonl")
            for line in file.read_text().splitlines()
        ]
        seats = Counter(seat.split("@")[0] for one in episodes for seat in one["seats"])
        assert seats["url:big"] + seats["url:other"] == len(episodes) == 2 * 2 * 8
        for one in episodes:
            for turn in one["turns"]:
                is_url = one["seats"][turn["player"]].startswith("url:")
                assert bool(turn["reply_ids"]) != is_url and bool(turn["reply"]) >= is_url
        out = tmp_path / "result.json"
        done = run(environment, "evaluate", "url:big,served", "--tasks", "4", "--out", str(out))
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        assert "url:big" in out.read_text()
        [transcript] = set((ROOT / "outputs").glob("partner_calls-*.jsonl")) - before
        calls = [json.loads(line) for line in transcript.read_text().splitlines()]
        assert {call["partner"] for call in calls} >= {"big"} and not any(
            call["error"] for call in calls
        )
        files = [table.log, transcript, folder / "settings.json", folder / "server.log", out]
        assert all(KEY not in file.read_text() for file in files)
        # A partner that is no longer there stops the run with the sentence.
        stop(table.process)
        nobody = f"big=http://127.0.0.1:{free_port()}/v1#tiny"
        table = start_server(
            server.model, tmp_path / "second.log", **{**given, "HANABI_PARTNER_URLS": nobody}
        )
        pool |= {"HANABI_PARTNERS": "url:big", "MAX_STEPS": 3}
        done = train(table, tmp_path / "new", **pool)
        assert done.returncode != 0 and "calls in a row failed like this" in done.stdout, (
            done.stdout[-4000:]
        )
        transcript.unlink()
        for left in set((ROOT / "outputs").glob("partner_calls-*.jsonl")) - before:
            left.unlink()
    finally:
        stop(table.process)
