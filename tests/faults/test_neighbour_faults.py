"""Other programs of the same machine: servers in containers, pages in its browser, users who read what is public."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from guarded import guarded, http_of

from hanabi_grpo.rollout.handshake import session_headers
from hanabi_grpo.runs.run_folder import public_run
from hanabi_grpo.server import adapter_loader
from server_app import JSON, rollout_body, session_body

UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
"""A PID namespace of its own: as a container that shares /dev/shm, it sees none of our process numbers."""


def test_a_server_in_another_pid_namespace_leaves_the_adapters_of_a_living_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("unshare") or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets no user make a PID namespace")
    monkeypatch.setattr(adapter_loader, "adapter_home", lambda: tmp_path)
    start = "import sys, pathlib; from hanabi_grpo.server.adapter_folders import OwnedFolder as F; "
    with guarded() as one:
        again = [sys.executable, "-c", start + "print(F(pathlib.Path(sys.argv[1])).path)", str(tmp_path)]
        other = subprocess.run([*UNSHARE, *again], capture_output=True, text=True, check=True)
        one.check()
        killed = Path(other.stdout.strip())
        assert killed.is_dir() and killed != one.app.store.folder.path
        subprocess.run([*UNSHARE, *again], capture_output=True, check=True)
        assert not killed.exists(), "what a killed server left is removed across namespaces too"


def test_what_a_web_page_can_send_is_neither_answered_nor_played() -> None:
    valid = json.dumps(rollout_body()).encode()
    with guarded() as one, http_of(one.app) as http:
        played = one.app.engine.num_samples
        for what, sent in (
            ("a name that resolves to this machine", {"host": f"evil.example:{one.app.port}", **JSON}),
            ("a form", {"content-type": "text/plain", "origin": "https://evil.example"}),
            ("a blob without a type", {"origin": "https://evil.example"}),
            ("a browser that says who asks", {"sec-fetch-site": "cross-site", **JSON}),
        ):
            for path, body in (
                ("/rollout/", valid),
                ("/session/", json.dumps(session_body(one.app.identity)).encode()),
            ):
                answer = http.post(path, content=body, headers=sent)
                assert answer.status_code in (403, 415), (what, answer.text)
                assert answer.json()["detail"].endswith((".", "/json"))
        assert http.get("/identity/", headers={"host": "evil.example"}).status_code == 403
        assert one.app.engine.num_samples == played


def test_what_is_public_of_a_run_takes_nothing_from_its_trainer() -> None:
    with guarded() as one, http_of(one.app) as http:
        mine = session_body(one.app.identity)
        theft = {**mine, "trainer_id": "7" * 32, "secret": "6" * 64}
        refused = http.post("/session/", json={**theft, "run_id": "another"}).json()["detail"]
        public = http.get("/identity/").text + http.get("/log/").text + http.get("/health/").text + refused
        assert mine["secret"] not in public and mine["trainer_id"] not in public
        for body in (theft, {**theft, "secret": public_run(mine["run_id"]).ljust(64, "0")}):
            answer = http.post("/session/", json=body)
            assert answer.status_code == 409 and "not the secret of its folder" in answer.json()["detail"]
        named = session_headers(mine["run_id"], "7" * 32)
        for method, path in (("POST", "/adapters/commit?version=5"), ("DELETE", "/session/")):
            answer = http.request(method, path, headers=named)
            assert answer.status_code == 409 and mine["trainer_id"] not in answer.text


def test_a_body_of_millions_of_empty_tasks_costs_a_few_times_its_size_and_is_told_why() -> None:
    with guarded() as one, http_of(one.app) as http:
        for megabytes, status, reason in (
            (60, 413, "bytes; allowed are at most 8388608. Send less at once."),
            (7, 422, "tasks.0.env_config: this field is missing"),
        ):
            body = b'{"tasks":[{}' + b",{}" * (megabytes * (1 << 20) // 3 - 20) + b"]}"
            _peak()
            before = _peak()
            answer = http.post("/rollout/", content=body, headers=JSON)
            assert (answer.status_code, reason in answer.json()["detail"]) == (status, True), answer.text
            # The two million rows of each refusal would be 2 GiB of objects.
            assert _peak() - before < 200 << 20
            assert http.get("/health/").status_code == 200


def _peak() -> int:
    """Largest memory of this process since the last call, in bytes."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10  # type: ignore[index]
