"""tools/gpu/check.sh where there is a Python with packages, and nothing else: as on a lent GPU.

No environment, no `.venv`, no network, and no variables but a PATH.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from doctor_machines import ROOT

pytestmark = pytest.mark.rest

SECONDS = 1200
"""Limit of the two calls on a busy machine."""
WITHOUT_NETWORK = ("unshare", "--net", "--map-root-user")


def may_leave_the_network() -> str:
    """Return why this machine allows no network namespace; "" where it does."""
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    answer = subprocess.run([*WITHOUT_NETWORK, "true"], capture_output=True, text=True, check=False)
    return answer.stderr.strip()


def base_python() -> str:
    """Return the interpreter that this environment was made from; it has no packages."""
    return str(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))


def test_the_checks_reach_their_first_calls_without_environment_network_and_venv(
    tmp_path: Path,
) -> None:
    reason = may_leave_the_network()
    if reason:
        pytest.skip(f"NOT TESTED: check.sh without a network: {reason}")
    checkout = tmp_path / "checkout"
    for name in ("tools", "src", "data"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", checkout)
    # As tools/gpu/pack.sh says: parts, here none, are unpacked into a folder, which has commands.
    site = tmp_path / "site"
    pack = checkout / "tools" / "gpu" / "pack.py"
    subprocess.run([base_python(), "-I", "-S", pack, "unpack", site], check=True)
    # In the place of what parts would bring.
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    python_path = f"src:tools:{site}:{packages}"
    process = subprocess.run(
        [
            *WITHOUT_NETWORK,
            "env",
            "-i",
            f"PATH={site}/bin:/usr/bin:/bin",
            f"PYTHONPATH={python_path}",
            "SETUP_EXTRA=none",
            f"CHECK_SECONDS={SECONDS // 2}",
            "bash",
            "tools/gpu/check.sh",
            "--cpu",
            "B",
            "A",
        ],
        cwd=checkout,
        env={},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    folder = checkout / "outputs" / "gpu-check"
    logs = "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
    assert process.returncode == 0, f"{process.stdout}\n{process.stderr}\n{logs}"
    assert "set-up: installing nothing (SETUP_EXTRA=none)" in process.stdout
    assert not (checkout / ".venv").exists()
    machine = json.loads((folder / "B.json").read_text())
    assert machine["python"] == sys.version.split()[0]
    assert {"torch", "transformers", "peft"} <= set(machine["packages"])
    # The doctor ran; what it finds is another matter.
    assert json.loads((folder / "B-doctor.json").read_text())["checks"]
    alone = json.loads((folder / "A.json").read_text())
    assert [case["tokens"] for case in alone["cases"]] == [2048, 4096]
    parts = json.loads((folder / "A-parts.json").read_text())
    assert parts["optimizer"]["resumed equals not resumed"] is True
    assert os.environ.get("SETUP_EXTRA") is None
