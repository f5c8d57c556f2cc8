"""What the server sets before vLLM is imported."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from hanabi_grpo.server.assembly import prepare_environment
from hanabi_grpo.server.plugin import PLUGIN_NAME

BIND = "VLLM_CPU_OMP_THREADS_BIND"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("VLLM_", "OMP_"))]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("cores", "bound"), [({3}, "3"), ({0, 1}, "0"), ({7, 2, 4, 6}, "2,4,6")])
def test_the_engine_leaves_a_core_to_the_games_where_there_is_another(
    cores: set[int], bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores)
    prepare_environment(on_cpu=True)
    assert os.environ[BIND] == bound


def test_what_the_user_set_stays_but_for_what_ties_the_engine_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BIND, "0-1")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.setenv("VLLM_PLUGINS", "some,others")
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    prepare_environment(on_cpu=True)
    assert (os.environ[BIND], os.environ["VLLM_CPU_KVCACHE_SPACE"]) == ("0-1", "7")
    assert os.environ["VLLM_PLUGINS"] == PLUGIN_NAME
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


def test_a_gpu_gets_no_settings_of_a_cpu() -> None:
    prepare_environment(on_cpu=False)
    assert BIND not in os.environ
    assert "OMP_WAIT_POLICY" not in os.environ


@pytest.mark.parametrize(("length", "gathered"), [(30, True), (70, False)])
def test_vllms_sockets_have_a_folder_where_their_paths_fit(
    length: int, gathered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp", suffix="x" * (length - len("/tmp/tmp12345678"))))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    prepare_environment(on_cpu=False)
    sockets = os.environ.get("VLLM_RPC_BASE_PATH")
    assert (sockets is not None) == gathered
    assert [str(path) for path in folder.iterdir()] == ([sockets] if gathered else [])
    shutil.rmtree(folder)


def test_a_folder_for_sockets_that_the_user_named_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/somewhere")
    prepare_environment(on_cpu=False)
    assert os.environ["VLLM_RPC_BASE_PATH"] == "/somewhere"
