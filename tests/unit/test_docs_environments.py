"""docs/environments.md: its environment is the example file, conforms, and prints what the page
says.
"""

import re
import sys
from pathlib import Path

import pytest

from doctor_machines import ROOT
from hanabi_grpo.envs import registry

TEXT = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "docs" / "examples" / "lighthouse.py"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)


def test_the_page_shows_the_example_file_which_is_short() -> None:
    assert blocks("python")[0] == EXAMPLE.read_text(encoding="utf-8")
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 170


def test_the_example_is_found_by_its_entry_point_and_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [project] = blocks("toml")
    [entry] = re.findall(
        r'^\[project\.entry-points\."hanabi_grpo\.environments"\]\nlighthouse = "(.*)"$',
        project,
        re.M,
    )
    info = tmp_path / "lighthouse_env-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lighthouse-env\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hanabi_grpo.environments]\nlighthouse = {entry}\n")
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._load.cache_clear()
    names: dict[str, object] = {}
    for code, printed in zip(blocks("python")[1:], blocks("text"), strict=True):
        exec(compile(code, "docs/environments.md", "exec"), names)
        assert capsys.readouterr().out == printed
    assert registry.origin("lighthouse").distribution == "lighthouse-env"
    registry._load.cache_clear()
    sys.modules.pop("lighthouse")
