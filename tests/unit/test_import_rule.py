import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hanabi_grpo

PACKAGE = Path(__file__).parents[2] / "src" / "hanabi_grpo"
FILES = sorted(PACKAGE.rglob("*.py"))
OWNERS = {"vllm": "server", "swift": "training", "wandb": "tracking", "matplotlib": "report"}
"""Library to the room that may import it; a room is a folder or a file of the package."""
ROOMS = (
    ("", "errors", "files", "logs", "processes", "terminal", "texts", "token_filter", "types"),
    # The settings take the choices of HANABI_ADVANTAGE from the registry of estimators, so that a
    # new one is one file. They compare finished episodes, for which `types` is enough.
    ("training.estimators",),
    ("envs",),
    ("settings",),
    ("runs",),
    ("rollout",),
    ("tracking",),
    ("client",),
    ("agents",),
    ("server",),
    ("training",),
    ("sft",),
    ("evaluation",),
    ("report",),
    ("api",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
"""From the ground up. A room is a folder or a file of the package, or a folder in one of its
folders, as "training.estimators".
"""
FLOOR = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms}


def imported_modules(source: str) -> set[str]:
    """Return what a module imports; blocks for type checkers alone do not run and do not count."""
    found: set[str] = set()
    tree = ast.parse(source)
    unread = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            unread |= {inner for child in node.body for inner in ast.walk(child)}
    for node in ast.walk(tree):
        if node in unread:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
            assert node.level == 0, "imports are absolute, so that this test can read them"
    return found


def room(path: Path) -> str:
    parts = [part.removesuffix(".py") for part in path.relative_to(PACKAGE).parts]
    inner_room = ".".join(parts[:2])
    if inner_room in FLOOR:
        return inner_room
    return "".join(parts[:1]).replace("__init__", "")


def name(path: Path) -> str:
    """Return the module of a file."""
    parts = ("hanabi_grpo", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def test_only_its_rooms_import_a_heavy_library() -> None:
    for path in FILES:
        libraries = {name.split(".")[0] for name in imported_modules(path.read_text())} & set(
            OWNERS
        )
        assert all(room(path) == OWNERS[library] for library in libraries), path


def test_a_room_imports_only_rooms_below_it() -> None:
    upwards, modules = [], {name(path) for path in FILES}
    for path in FILES:
        for target in imported_modules(path.read_text()) & modules:
            above = PACKAGE / target.removeprefix("hanabi_grpo").strip(".").replace(".", "/")
            if FLOOR[room(above)] > FLOOR[room(path)]:
                upwards.append(f"{name(path)} -> {target}")
    assert upwards == []


def test_the_package_around_the_estimators_imports_nothing() -> None:
    # Importing `training.estimators` runs it, in the settings too.
    assert imported_modules((PACKAGE / "training" / "__init__.py").read_text()) == set()


def test_estimators_import_types_and_errors_and_nothing_else_of_the_package() -> None:
    allowed = ("hanabi_grpo.types", "hanabi_grpo.errors", "hanabi_grpo.training.estimators")
    found = {
        f"{name(path)} -> {target}"
        for path in FILES
        if room(path) == "training.estimators"
        for target in imported_modules(path.read_text())
        if target.startswith("hanabi_grpo.") and not target.startswith(allowed)
    }
    assert found == set()


def test_environments_import_the_ground_floor_and_nothing_else_of_the_package() -> None:
    allowed = ("envs", "errors", "files", "logs", "texts", "types")
    found = {
        f"{name(path)} -> {target}"
        for path in FILES
        if room(path) == "envs"
        for target in imported_modules(path.read_text())
        if target.startswith("hanabi_grpo.") and target.split(".")[1] not in allowed
    }
    assert found == set()


def test_nothing_in_the_package_unpickles_or_loads_yaml_objects() -> None:
    modules = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
    calls = {"torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "eval", "exec"}
    for path in FILES:
        source = path.read_text()
        called = {
            ast.unparse(node.func)
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Call)
        }
        assert (imported_modules(source) & modules, called & calls) == (set(), set()), path


def test_the_package_itself_is_loaded_without_anything_else_of_it() -> None:
    code = (
        "import sys, hanabi_grpo; print([name for name in sys.modules if name.startswith("
        "('hanabi_grpo.', 'torch', 'vllm', 'pandas', 'numpy'))], len(hanabi_grpo.__all__))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.startswith("[] ")


def test_every_public_name_is_loaded_from_the_module_that_type_checkers_are_told() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    told = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hanabi_grpo."):
            told |= {alias.name: node.module for alias in node.names}
    assert told == hanabi_grpo._HOMES
    assert sorted([*told, "__version__"]) == sorted(hanabi_grpo.__all__)
    for public in hanabi_grpo.__all__:
        assert getattr(hanabi_grpo, public) is not None
    with pytest.raises(AttributeError, match="no attribute 'plays'"):
        hanabi_grpo.plays  # noqa: B018


@pytest.mark.parametrize(
    "module",
    [
        "api.environments",
        "api.playing",
        "api.runs",
        "api.training",
        "cli",
        "settings",
        "rollout.datasets",
        "envs.registry",
        "training.estimators",
        "agents.served_model",
    ],
)
def test_light_modules_load_no_heavy_library(module: str) -> None:
    heavy = ("torch", "vllm", "swift", "transformers", "wandb", "matplotlib", "openai", "pandas")
    code = (
        f"import sys, hanabi_grpo.{module}; print([name for name in {heavy} if name in "
        "sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
