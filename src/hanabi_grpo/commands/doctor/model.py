"""Checks of the model folder and of its chat template."""

import shlex
from pathlib import Path

from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import Context, amount, broken_weights
from hanabi_grpo.commands.doctor.experts import experts_of
from hanabi_grpo.commands.doctor.memory import ModelSizes
from hanabi_grpo.commands.doctor.published import PUBLISHED, unknown_part
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.vocabulary import boards_of
from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model
from hanabi_grpo.server.adapter_files import linear_shapes
from hanabi_grpo.settings.defaults import LAPTOP, is_local_model, tiny_model_command

_MAX_PROBLEMS = 3
"""Maximum number of broken files in a finding."""
_PLAN_OTHER = "or plan with a model of similar size"


def model_checks(context: Context) -> Check:
    """Check that the folder holds a complete model that both processes can load."""
    settings = context.settings
    folder = context.located_folder
    name = settings.model
    if context.planned_gpus and context.model_folder is None:
        return _planned_model(context)
    if folder is None:
        return _missing_model(context)
    try:
        resolve_model(str(folder))
        model_fingerprint(folder)
    except SettingsError as error:
        return fail("model", str(error), _other_model(context))
    broken = broken_weights(folder)
    if broken:
        remedy = f".venv/bin/hf download {shlex.quote(name)} --force-download"
        if Path(name).is_dir():
            remedy = _other_model(context)
        return fail("model", f"{name}: {'; '.join(broken[:_MAX_PROBLEMS])}", remedy)
    modules = {module.rpartition(".")[-1] for module in linear_shapes(folder)}
    if not modules:
        finding = f"{name}: no linear layers for adapters in its weights"
        return fail("model", finding, _other_model(context))
    finding = (
        f"{name}: {context.config.get('model_type')}, {_model_size(context)}; "
        f"{context.num_adapters} adapters of rank {settings.lora_rank}, "
        f"{_adapter_size(context)}, on {', '.join(sorted(modules))}"
    )
    return ok("model", finding)


def _model_size(context: Context) -> str:
    """Return the model's size as text; for a mixture, also the parameters active per token."""
    size = f"{amount(context.num_parameters)} parameters"
    experts = experts_of(context.config)
    sizes = ModelSizes.from_config(context.config)
    if experts is None or sizes is None:
        return size
    active = amount(sizes.active_parameters(context.num_parameters))
    return f"{size}, {active} active per token ({experts.per_token} of {experts.count} experts)"


def _adapter_size(context: Context) -> str:
    """Return the size of an adapter, or of the largest one, as text."""
    size = amount(context.adapter_parameters)
    is_same_for_all = not isinstance(context.settings.lora_rank, str)
    return f"{size} each" if is_same_for_all else f"at most {size} each"


def _planned_model(context: Context) -> Check:
    """Report the sizes that a plan uses for a model without weights on this machine."""
    settings = context.settings
    name = settings.model
    if context.found_config is not None and context.planned_config is None:
        finding = (
            f"MODEL={name}: its weights are not here, and its config.json does not give its size: "
            f"{unknown_part(context.found_config)}"
        )
        return fail(
            "model",
            finding,
            f".venv/bin/hf download HUB_NAME   # its weights give the size; {_PLAN_OTHER}",
        )
    if context.planned_config is None:
        known = ", ".join(PUBLISHED)
        finding = (
            f"MODEL={name}: not on this machine, and its sizes are not known here; known "
            f"models: {known}, and any folder with a config.json"
        )
        return fail(
            "model",
            finding,
            f".venv/bin/hf download {shlex.quote(name)} config.json --local-dir FOLDER",
        )
    source = "its config.json (its weights are not here)"
    if context.located_folder is None:
        source = "the config.json that huggingface.co publishes (a copy in published.py)"
    covered = ", on attention only" if experts_of(context.planned_config) else ""
    finding = (
        f"{name}: sizes from {source}: {_model_size(context)}; "
        f"{context.num_adapters} adapters of rank {settings.lora_rank}, "
        f"{_adapter_size(context)}{covered}"
    )
    return ok("model", finding)


def _missing_model(context: Context) -> Check:
    """Report what happens if the model is not on this machine, and how to get it."""
    name = context.settings.model
    if is_local_model(name):
        finding = f"MODEL={name}: no such folder"
        remedy = f"{_make_tiny_model(context)} --out {shlex.quote(name)}"
        if context.loaded.origins["model"].startswith("default"):
            # The script of terminal 1 makes the default model itself.
            return warn("model", finding, remedy)
        return fail("model", finding, remedy)
    if "HF_HUB_OFFLINE" in context.shell:
        finding = f"MODEL={name}: not on this machine, and HF_HUB_OFFLINE forbids downloading it"
        return fail("model", finding, f"HF_HUB_OFFLINE=0 .venv/bin/hf download {shlex.quote(name)}")
    finding = f"MODEL={name}: not on this machine; both terminals would download it from the hub"
    return warn("model", finding, f".venv/bin/hf download {shlex.quote(name)}")


def chat_checks(context: Context) -> Check:
    """Check that conversations can grow token by token with the model's chat template."""
    try:
        chat = context.chat
    except SettingsError as error:
        return fail("chat template", str(error), _other_model(context))
    if chat is None:
        return skip("chat template", "needs the model")
    if context.planned_config is not None:
        return ok("chat template", "not here: the tokens of prompts are estimated from their words")
    finding = f"usable; replies end with {chat.eos}, vocabulary of {len(chat.tokenizer)} tokens"
    return ok("chat template", finding)


def _other_model(context: Context) -> str:
    """Return what to type for a model that works: on a CPU a tiny one, else the default."""
    if context.settings.device == "cpu":
        return f"{_make_tiny_model(context)}; unset MODEL"
    return "unset MODEL"


def _make_tiny_model(context: Context) -> str:
    """Return the command that makes a tiny model for the dataset's games."""
    if context.setups:
        return tiny_model_command(*boards_of(context.setups))
    settings = context.settings
    return tiny_model_command([settings.board or LAPTOP], settings.players, settings.env)
