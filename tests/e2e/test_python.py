"""The Python interface with real processes: the training of docs/python.md, and a reward."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rewarded_environments
from conftest_e2e import ROOT, TRAINER_SECONDS, clean_environment

pytestmark = [pytest.mark.e2e, pytest.mark.rest]
TEXT = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
[TRAIN] = re.findall(
    r"^```python\n((?:(?!^```).)*?hg\.serve.*?)^```$", TEXT, re.DOTALL | re.MULTILINE
)
OWN_SERVER = """
import sys
import hanabi_grpo as hg

trainer = hg.Trainer(
    env="hanabi_brief", preset="laptop", model=sys.argv[1], max_steps=2, report_to="none",
    output_dir="run",
)
run = trainer.train()
print(run.folder, list(run.checkpoints), run.metrics["reward/brief"].tolist())
assert "torch" not in sys.modules and "vllm" not in sys.modules
"""


def run(code: str, folder: Path, *arguments: str, **variables: str) -> str:
    """Run Python in a folder to its successful end and return what it printed."""
    environment = {**clean_environment(), **variables}
    process = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TRAINER_SECONDS,
        check=False,
    )
    assert process.returncode == 0, (process.stdout + process.stderr)[-4000:]
    return process.stdout


def test_a_team_is_evaluated_trained_and_evaluated_again_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(ROOT / "data")
    code = TRAIN.replace("max_steps=60", "max_steps=2").replace("tasks=100", "tasks=10")
    assert code.count("tasks=10,") == 1 and "max_steps=2" in code
    last = run(code, tmp_path).splitlines()[-1]
    folder, before, after = last.split()
    assert folder == "outputs/my-run"
    assert 0 <= float(before) <= 4 and 0 <= float(after) <= 4
    checkpoints = [path.name for path in (tmp_path / folder).glob("checkpoint-*")]
    assert checkpoints == ["checkpoint-2"]
    # The base model is what the run was before its first step.
    kept = sorted(path.name for path in (tmp_path / folder / "evaluations").iterdir())
    assert [name.partition("-")[0] for name in kept] == ["base", "served"]


def test_a_reward_is_paid_by_the_server_and_shown_by_the_run(tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    rewarded_environments.write_package(installed)
    # The function notes in which process it runs.
    example = (ROOT / "docs/examples/hanabi_brief.py").read_text(encoding="utf-8")
    note = (
        "    import os, pathlib\n"
        "    with open(os.environ['WITNESS'], 'a') as file:\n"
        "        file.write(pathlib.Path('/proc/self/cmdline').read_text() + '\\n')\n"
    )
    body = "    rewards = []\n"
    assert body in example
    code = example.replace(body, note + body).replace(
        "FREE_CHARACTERS = 200", "FREE_CHARACTERS = 0"
    )
    (installed / "hanabi_brief.py").write_text(code, encoding="utf-8")
    witness = tmp_path / "witness.txt"
    printed = run(
        OWN_SERVER,
        tmp_path,
        str(ROOT / "data/tiny-model"),
        PYTHONPATH=os.pathsep.join([str(installed), str(ROOT / "tests")]),
        WITNESS=str(witness),
    )
    # Every reply has characters, and none of them is free.
    [figures] = re.findall(r"^run \[2\] \[(.*), (.*)\]$", printed, re.MULTILINE)
    for figure in figures:
        # A player without a turn is charged nothing.
        assert -1.0 <= float(figure) < -0.9
    commands = set(witness.read_text().splitlines())
    assert commands
    assert all("hanabi_grpo.server.workers.fork_server" in command for command in commands)
    games = [json.loads(line) for line in next((tmp_path / "run/episodes").iterdir()).open()]
    assert all(game["turns"][-1]["rewards"][0]["brief"] == -1.0 for game in games)
    command = [sys.executable, "-m", "hanabi_grpo.cli", "view", "run", "--game", "0"]
    view = subprocess.run(
        command,
        cwd=tmp_path,
        env={**clean_environment(), "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "brief -1" in view.stdout
