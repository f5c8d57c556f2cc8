"""docs/environments.md: its environment is the example file, and prints what the page says.

Beside such an installed environment the tests that list environments still pass.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from doctor_machines import ROOT
from hanabi_grpo.envs import registry

TEXT = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "docs" / "examples" / "lighthouse.py"
ENTRY_POINT = re.compile(
    r'^\[project\.entry-points\."hanabi_grpo\.environments"\]\nlighthouse = "(.*)"$', re.MULTILINE
)
TESTS_THAT_LIST_ENVIRONMENTS = (
    "test_environments.py::test_an_installed_package_registers_an_environment_by_an_entry_point",
    "test_settings.py::test_every_variable_is_described_once_in_a_known_section",
)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with what the installed package of the page leaves behind."""
    [project] = blocks("toml")
    [entry] = ENTRY_POINT.findall(project)
    info = tmp_path / "lighthouse_env-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lighthouse-env\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hanabi_grpo.environments]\nlighthouse = {entry}\n")
    registry._load.cache_clear()
    yield tmp_path
    registry._load.cache_clear()
    sys.modules.pop("lighthouse", None)


def test_the_page_shows_the_example_file() -> None:
    assert blocks("python")[0] == EXAMPLE.read_text(encoding="utf-8")


def test_the_example_is_found_by_its_entry_point_and_prints_what_the_page_says(
    installed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    monkeypatch.syspath_prepend(str(installed))
    names: dict[str, object] = {}
    for code, printed in zip(blocks("python")[1:], blocks("text"), strict=True):
        exec(compile(code, "docs/environments.md", "exec"), names)
        assert capsys.readouterr().out == printed
    assert registry.origin("lighthouse").distribution == "lighthouse-env"


@pytest.mark.rest
def test_tests_that_list_environments_pass_where_a_foreign_one_is_installed(
    installed: Path,
) -> None:
    folders = [str(installed), str(EXAMPLE.parent), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    tests = [f"tests/unit/{name}" for name in TESTS_THAT_LIST_ENVIRONMENTS]
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*pytest_command, *tests],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
