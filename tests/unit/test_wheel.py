"""The package as an index would have it: built, installed beside the libraries, and run."""

import os
import re
import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest
from packaging.metadata import Metadata

import hanabi_grpo
from doctor_machines import ROOT

PAGE = (ROOT / "PACKAGE.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the pinned backend without a network."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    subprocess.run([*command, str(folder)], cwd=ROOT, capture_output=True, check=True)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`hanabi-grpo` of a fresh environment that has the wheel, and sees our libraries."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(home)
    python = home / "bin" / "python"
    [packages] = home.glob("lib/python*/site-packages")
    # A line of a *.pth file adds a folder, but obeys no *.pth file in it: our checkout stays out.
    libraries = [path for path in site.getsitepackages() if Path(path).is_dir()]
    (packages / "libraries.pth").write_text("\n".join(libraries) + "\n")
    command = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps"]
    installed = subprocess.run(
        [*command, "--python", str(python), str(wheel)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert installed.returncode == 0, installed.stderr
    return home / "bin" / "hanabi-grpo"


def run(program: Path, folder: Path, *arguments: str, timeout: float = 120) -> str:
    """Run the installed command in a folder that is no checkout."""
    environ = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    environ["PATH"] = os.defpath
    process = subprocess.run(
        [str(program), *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert process.returncode == 0, (process.stdout + process.stderr)[-4000:]
    return process.stdout


def test_the_metadata_are_complete_and_invent_no_address(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(name)
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    metadata = Metadata.from_email(text)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    [author] = re.findall(r"^  - name: (.*)$", citation, flags=re.MULTILINE)
    assert metadata.author == author
    assert str(metadata.version) == hanabi_grpo.__version__
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.description_content_type == "text/markdown"
    assert "Typing :: Typed" in (metadata.classifiers or [])
    assert metadata.provides_extra == sorted(PROJECT["optional-dependencies"])
    assert BytesParser().parsebytes(text).get_payload() == PAGE
    assert not metadata.project_urls


def test_what_an_index_shows_has_no_link_that_it_could_not_follow() -> None:
    targets = re.findall(r"\]\(([^)]*)\)", PAGE)
    assert [target for target in targets if not target.startswith("https://")] == []


@pytest.mark.parametrize("page", ["PACKAGE.md", "README.md"])
def test_every_extra_is_named(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    missing = [name for name in PROJECT["optional-dependencies"] if f"`{name}`" not in text]
    assert missing == []


def test_the_wheel_has_the_package_and_the_shipped_models_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for model in ("tiny-model", "tiny-model-counted"):
            shipped = {name for name in names if name.startswith(f"hanabi_grpo/shipped/{model}/")}
            files = list((ROOT / "data" / model).iterdir())
            for path in files:
                name = f"hanabi_grpo/shipped/{model}/{path.name}"
                assert archive.read(name) == path.read_bytes()
            assert len(shipped) == len(files)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hanabi_grpo"}
    assert "hanabi_grpo/py.typed" in names
    assert not any(name.endswith((".pyc", ".lock")) for name in names)


def test_the_installed_command_runs_scripts_without_a_checkout(
    program: Path, tmp_path: Path
) -> None:
    assert run(program, tmp_path, "--version") == f"hanabi-grpo {hanabi_grpo.__version__}\n"
    arguments = ["evaluate", "iggi", "hint-bot", "--preset", "laptop", "--tasks", "20"]
    printed = run(program, tmp_path, *arguments)
    assert "iggi" in printed and "hint-bot" in printed


def test_the_installed_package_is_what_python_imports(program: Path, tmp_path: Path) -> None:
    code = (
        "import hanabi_grpo as hg; "
        "print(hg.__file__, hg.Trainer(preset='laptop').settings.model, "
        "len(hg.play('iggi', hg.make_env('hanabi', preset='laptop'), tasks=2)))"
    )
    python = program.with_name("python")
    file, model, num_games = run(python, tmp_path, "-c", code).split()
    packages = program.parents[1] / "lib"
    assert Path(file).is_relative_to(packages)
    assert Path(model).is_relative_to(packages)
    assert (Path(model) / "model.safetensors").is_file()
    assert num_games == "2"


@pytest.mark.rest
def test_the_demo_runs_without_a_checkout(program: Path, tmp_path: Path) -> None:
    arguments = ["demo", "--steps", "2", "--tasks", "10", "--out", "demo"]
    printed = run(program, tmp_path, *arguments, timeout=900)
    assert "step 2 of 2" in printed
    assert "after − before" in printed
    for name in ("before.json", "after.json", "report.html", "learning_curve.png"):
        assert (tmp_path / "demo" / name).stat().st_size > 0
    assert (tmp_path / "demo/train/checkpoint-2/manifest.json").is_file()


def test_the_demo_refuses_a_folder_that_is_there(program: Path, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    with pytest.raises(AssertionError, match="--out demo: already exists"):
        run(program, tmp_path, "demo", "--out", "demo")
