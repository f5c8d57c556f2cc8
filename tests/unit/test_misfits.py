"""Libraries that are built for another torch are hidden before anything imports them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = (
    "import hanabi_grpo.cli, importlib.util; "
    "print(importlib.util.find_spec('torchvision') is None)\n"
    "try:\n    import torchvision\nexcept ImportError:\n    print('as if not installed')"
)


@pytest.mark.parametrize(
    ("torch", "torchvision", "printed"),
    [
        ("2.13.0+cpu", "0.28.0", "True\nas if not installed\n"),
        ("2.13.0+cpu", "0.28.0+cpu", "False\n"),
        ("2.13.0", "0.28.0", "False\n"),
    ],
)
def test_a_cuda_build_beside_a_torch_for_cpus_is_hidden_and_a_fitting_one_is_not(
    torch: str, torchvision: str, printed: str, tmp_path: Path
) -> None:
    for name, version in (("torch", torch), ("torchvision", torchvision)):
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (tmp_path / "torchvision.py").write_text("")
    answer = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == printed
