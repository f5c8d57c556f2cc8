"""The options that are not handed on exist in the installed ms-swift and vLLM, and no other option
is taken for one.
"""

import json
from argparse import Action
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from swift.arguments import RLHFArguments
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.pass_through import (
    SOFTWARE,
    Terminal,
    check_options,
    option_tables,
)
from hanabi_grpo.training.pipeline import swift_options

OURS = {"hanabi_settings"}
OF_VLLMS_OWN_SERVER = {"config", "host", "port", "api_key", "chat_template", "served_model_name"}
"""Our engine does not know them, but who knows `vllm serve` may type them."""


def names_of(actions: list[Action]) -> set[str]:
    """Return option names as the table writes them, without the switches that argparse makes of
    them.
    """
    typed = [
        one.lstrip("-").replace("-", "_") for action in actions for one in action.option_strings
    ]
    return {name for name in typed if name != "help" and not name.startswith("no_")}


def refused(terminal: Terminal, word: str) -> bool:
    try:
        check_options(terminal, [word])
    except SettingsError:
        return True
    return False


@pytest.fixture(scope="module")
def known() -> dict[Terminal, set[str]]:
    with pytest.MonkeyPatch.context() as patch:
        # As `prepare_environment` has it: no plugin of other packages.
        patch.setenv("VLLM_PLUGINS", "")
        engine = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(add_help=False))
    return {
        "trainer": {one.name for one in fields(RLHFArguments)},
        "server": names_of(engine._actions),
    }


@pytest.mark.parametrize("terminal", SOFTWARE)
def test_every_option_that_the_table_names_exists(
    terminal: Terminal, known: dict[Terminal, set[str]]
) -> None:
    rows, passed = option_tables(terminal)
    named = {one for row in rows for one in row.options} | set(passed)
    there = known[terminal] | (OURS if terminal == "trainer" else OF_VLLMS_OWN_SERVER)
    gone = {one for one in named if not any(fnmatchcase(name, one) for name in there)}
    assert gone == set(), "no such option any more: what took its place?"


def test_vllms_own_server_has_the_options_that_only_it_knows() -> None:
    served = names_of(make_arg_parser(FlexibleArgumentParser(add_help=False))._actions)
    assert served >= OF_VLLMS_OWN_SERVER


@pytest.mark.parametrize("terminal", SOFTWARE)
def test_no_other_option_is_taken_for_a_refused_one(
    terminal: Terminal, known: dict[Terminal, set[str]]
) -> None:
    named = [one for row in option_tables(terminal)[0] for one in row.options]
    others = {name for name in known[terminal] if not any(fnmatchcase(name, one) for one in named)}
    assert len(others) > 50
    assert {name for name in others if refused(terminal, f"--{name}")} == set(), (
        "add them to those handed on"
    )


def test_what_the_settings_say_to_ms_swift_cannot_be_said_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    settings = Settings(
        model=str(tmp_path),
        sampler_correction="token_mask",
        deepspeed="zero1",
        dataset="tasks.jsonl",
    )
    words = [
        word for word in swift_options(settings, tmp_path, tmp_path, 10) if word.startswith("--")
    ]
    handed_on = {word for word in words if not refused("trainer", word)}
    assert handed_on == {
        *("--attn_impl", "--model_type", "--weight_decay", "--gradient_checkpointing"),
        *("--dataloader_num_workers", "--disable_tqdm", "--check_model", "--use_hf"),
    }
