"""A trainer on several machines: what torchrun is told, and what cannot be."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.commands.nodes import Nodes, check_nodes, read_nodes, trainer_argv
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import Settings, batch_plan

TWO = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}


def test_one_machine_is_as_before_whatever_else_is_set() -> None:
    assert read_nodes({}) == read_nodes({"NNODES": "1", "MASTER_ADDR": "x", "NODE_RANK": "7"}) == Nodes()
    assert "--standalone" in trainer_argv(Settings(nproc_per_node=2), Path("s.json"), [], Nodes())


def test_torchrun_is_told_of_every_machine_also_with_one_process_on_each() -> None:
    nodes = read_nodes({**TWO, "MASTER_PORT": "29600"})
    assert nodes == Nodes(count=2, rank=1, address="10.0.0.1", port=29600)
    assert trainer_argv(Settings(nproc_per_node=1), Path("run/settings.json"), ["--x"], nodes) == [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", "1"),
        *("--master_addr", "10.0.0.1", "--master_port", "29600", "--nproc_per_node", "1"),
        *("-m", "hanabi_grpo.training.main", "--settings", "run/settings.json", "--x"),
    ]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"NNODES": "0"}, "NNODES='0'"),
        ({"NNODES": "two"}, "NNODES='two'"),
        ({"NODE_RANK": "2"}, "NODE_RANK='2': a whole number from 0 to 1"),
        ({"NODE_RANK": ""}, "NODE_RANK=''"),
        ({"MASTER_ADDR": " "}, "MASTER_ADDR must be"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT='70000'"),
    ],
)
def test_variables_that_say_nothing_clear_are_refused(changes: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        read_nodes({**TWO, **changes})


def test_what_several_machines_need_is_said() -> None:
    def check(nodes: Nodes, **settings: Any) -> None:
        made = Settings(**settings)
        check_nodes(nodes, made, batch_plan(made))

    first, second = Nodes(count=2, address="a"), Nodes(count=2, rank=1, address="a")
    with pytest.raises(SettingsError, match="NNODES=2 DEEPSPEED=none"):
        check(first)
    with pytest.raises(SettingsError, match="micro-batches must be cut by tokens"):
        check(first, deepspeed="zero2", per_device_train_batch_size=64)
    with pytest.raises(SettingsError, match="NODE_RANK=1: OUTPUT_DIR must name the run folder of node 0"):
        check(second, deepspeed="zero2")
    check(first, deepspeed="zero2")
    check(second, deepspeed="zero2", output_dir=Path("run"))
    check(Nodes(), per_device_train_batch_size=64)


def test_a_machine_that_joins_makes_no_run_folder_and_waits_for_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    run = tmp_path / "run"
    environ = {"MODEL": str(tmp_path / "model"), "OUTPUT_DIR": str(run), "DEEPSPEED": "zero2", **TWO}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    became: list[Any] = []
    monkeypatch.setattr(os, "execvpe", lambda *call: became.append(call))
    said = CliRunner().invoke(app, ["train", "--weight_decay", "0"])
    assert said.exit_code == 0, said.output
    assert "joining node 0\nstarting " in said.output and "waiting for" not in said.output
    argv = became[0][1]
    assert argv[1:9] == [
        *("-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", "1", "--master_addr", "10.0.0.1")
    ]
    assert argv[-4:] == ["--settings", str(run / "settings.json"), "--weight_decay", "0"]
    assert not run.exists()
