"""The options that are refused exist in ms-swift and vLLM, and no other one is refused."""

from argparse import Action
from collections.abc import Iterable
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from swift.arguments import RLHFArguments
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from doctor_machines import empty_model
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.pass_through import (
    SOFTWARE,
    Terminal,
    check_options,
    option_tables,
)
from hanabi_grpo.training.pipeline import swift_options

try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ImportError:
    # Before 0.33.
    from vllm.entrypoints.launchers.cli_args import make_arg_parser

OURS = {"hanabi_settings"}
"""Options that the project adds to ms-swift's."""
OF_VLLMS_OWN_SERVER = {"config", "host", "port", "api_key", "chat_template", "served_model_name"}
"""Our engine does not know them, but users of `vllm serve` may type them."""


def names_of(actions: list[Action]) -> set[str]:
    """Return option names as the table writes them, e.g. "max_model_len".

    The switches that argparse makes of them, --no-…, are left out.
    """
    names = set()
    for action in actions:
        for option in action.option_strings:
            name = option.lstrip("-").replace("-", "_")
            if name != "help" and not name.startswith("no_"):
                names.add(name)
    return names


def is_refused(terminal: Terminal, option: str) -> bool:
    try:
        check_options(terminal, [option])
    except SettingsError:
        return True
    return False


def refused_patterns(terminal: Terminal) -> list[str]:
    rows, _ = option_tables(terminal)
    patterns: list[str] = []
    for row in rows:
        patterns += row.options
    return patterns


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@pytest.fixture(scope="module")
def known() -> dict[Terminal, set[str]]:
    """The options of the installed ms-swift and vLLM."""
    with pytest.MonkeyPatch.context() as patch:
        # As `prepare_environment` has it: no plugin of other packages.
        patch.setenv("VLLM_PLUGINS", "")
        engine = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(add_help=False))
    return {
        "trainer": {field.name for field in fields(RLHFArguments)},
        "server": names_of(engine._actions),
    }


@pytest.mark.parametrize("terminal", SOFTWARE)
def test_every_option_that_the_table_names_exists(
    terminal: Terminal, known: dict[Terminal, set[str]]
) -> None:
    _, passed = option_tables(terminal)
    patterns = {*refused_patterns(terminal), *passed}
    existing = known[terminal] | (OURS if terminal == "trainer" else OF_VLLMS_OWN_SERVER)
    gone = set()
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in existing):
            gone.add(pattern)
    assert gone == set(), "no such option any more: what took its place?"


def test_vllms_own_server_has_the_options_that_only_it_knows() -> None:
    parser = make_arg_parser(FlexibleArgumentParser(add_help=False))
    assert names_of(parser._actions) >= OF_VLLMS_OWN_SERVER


@pytest.mark.parametrize("terminal", SOFTWARE)
def test_no_other_option_is_taken_for_a_refused_one(
    terminal: Terminal, known: dict[Terminal, set[str]]
) -> None:
    patterns = refused_patterns(terminal)
    others = {name for name in known[terminal] if not matches_any(name, patterns)}
    assert len(others) > 50
    refused = {name for name in others if is_refused(terminal, f"--{name}")}
    assert refused == set(), "add them to those passed through"


def test_what_the_settings_say_to_ms_swift_cannot_be_said_again(tmp_path: Path) -> None:
    settings = Settings(
        model=str(empty_model(tmp_path / "model", model_type="qwen3")),
        sampler_correction="token_mask",
        deepspeed="zero1",
        dataset="tasks.jsonl",
    )
    arguments = swift_options(settings, tmp_path, tmp_path, 10)
    options = [argument for argument in arguments if argument.startswith("--")]
    allowed = {option for option in options if not is_refused("trainer", option)}
    assert allowed == {
        "--attn_impl",
        "--model_type",
        "--weight_decay",
        "--gradient_checkpointing",
        "--dataloader_num_workers",
        "--disable_tqdm",
        "--check_model",
        "--use_hf",
    }
