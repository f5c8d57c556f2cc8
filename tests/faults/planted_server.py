"""The real server with one fault at a time, chosen by the word in the file that `PLANT_FILE` names.

Every receipt, version and stamp stays right; only what is sampled is wrong. Nothing but the
logprobs can tell.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from hanabi_grpo.agents.served_model import ServedPlayer
from hanabi_grpo.cli import app
from hanabi_grpo.rollout.loop import Player
from hanabi_grpo.rollout.messages import RequestedTask
from hanabi_grpo.server import plugin
from hanabi_grpo.server.adapter_store import PROBE
from hanabi_grpo.server.engine import VllmSampler
from hanabi_grpo.server.seats import Tables
from hanabi_grpo.settings.refs import is_frozen

FAULTS = {
    "none": "",
    "swapped": "player 0's weights sit under player 1 and the other way round",
    "base": "the base model is sampled, no adapter is attached",
    "skipped": "the commit loads nothing and goes on with the old weights",
    "stale": "player 1's first upload is loaded at every version",
    "cache": (
        "an adapter is reloaded under its old name, so that cached prefixes of the old version "
        "are reused"
    ),
    "alpha": "LoRA's alpha is loaded doubled",
}
"""Each fault and its description in the table of injections."""

ADAPTER_FAULTS = {
    "stale_by_one": "every adapter is one step old",
    "scaled_0.9": "every adapter × .9",
    "scaled_0.99": "every adapter × .99",
    "layer": "the first layer without its adapter",
    "rolled": "q_proj's A rolled by one row, in every layer",
    "noise": "noise of 1e-4 on all of an adapter's weights",
}
"""Faults of the weights that are loaded, and their descriptions in the table of docs/trust.md."""

SAMPLING_FAULTS: dict[str, dict[str, float]] = {
    "temperature_0.7": {"temperature": 0.7},
    "temperature_0.9": {"temperature": 0.9},
    "temperature_0.97": {"temperature": 0.97},
    "temperature_1.1": {"temperature": 1.1},
    "top_p_0.95": {"top_p": 0.95},
    "greedy": {"temperature": 0.0},
    "fixed_seed": {"seed": 7},
}
"""Faults of how tokens are drawn: what changes in vLLM's parameters. Which logprobs are reported,
those of the policy or those of what is sampled, is `PLANT_LOGPROBS`: vLLM's "raw_logprobs" or
"processed_logprobs"."""

WRAPPER_FAULTS = {
    "wrapper": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "wrapper_k": ("k_proj",),
    "wrapper_mlp": ("gate_proj", "down_proj"),
}
"""Kinds of modules whose names the engine does not find, because of a wrapper's prefix; it loads
the rest and says nothing. It holds for probes as well."""

OVERFLOW = "overflow"
"""Guest adapters are loaded with values so large that they overflow, though each is finite."""

PREVIOUS = "previous"
"""Player 1's upload of the version before is loaded at every version."""

HUGE = 1e30
"""A finite value whose products overflow."""
FIRST_FIXED_NUMBER = 900
"""Ids of adapters that keep their name; ids of the server's own are smaller."""

_real_register = plugin.register
_real_load = VllmSampler.load_adapter
_real_unload = VllmSampler.unload_adapter
_real_seat = Tables.seat
_real_output = VllmSampler._final_output
_real_init = VllmSampler.__init__
_first_uploads: dict[str, str] = {}
"""Copies of the uploads of version 0, by adapter."""
_previous_uploads: dict[str, str] = {}
"""Copies of the uploads of the version before, by adapter."""
_handles: dict[str, Any] = {}
"""What the engine returned for the newest load of each adapter."""


def planted_fault() -> str:
    """Return the fault that is planted now."""
    fault = Path(os.environ["PLANT_FILE"]).read_text().strip()
    if fault in FAULTS or fault in WRAPPER_FAULTS or fault in (OVERFLOW, PREVIOUS):
        return fault
    if fault in ADAPTER_FAULTS or fault in SAMPLING_FAULTS:
        return fault
    return "none"


async def load_adapter(engine: VllmSampler, name: str, number: int, path: str) -> Any:
    """Load an adapter with the planted fault; takes what `VllmSampler.load_adapter` takes.

    Files are changed in copies: the store compares the upload's own files with their digests.

    Args:
        engine: The engine.
        name: Adapter and version, e.g. "player_0@3".
        number: The engine's id for it.
        path: The folder of the upload.
    """
    adapter, _, version = name.partition("@")
    fault = planted_fault()
    if fault in WRAPPER_FAULTS:
        path = _under_a_wrapper(path, WRAPPER_FAULTS[fault])
    if name.startswith(PROBE):
        return await _real_load(engine, name, number, path)
    if fault == OVERFLOW and is_frozen(name):
        path = _with_huge_values(path)
    if not is_frozen(name):
        upload = _copy(path, "uploaded")
        # With version 0 another run begins.
        previous = path if version == "0" else _previous_uploads.get(adapter, path)
        _previous_uploads[adapter] = upload
        if fault == "stale_by_one" or (fault == PREVIOUS and adapter == "player_1"):
            path = previous
        elif fault in ADAPTER_FAULTS:
            path = _with_changed_weights(path, fault)
    if version == "0" and not is_frozen(name):
        _first_uploads[adapter] = _copy(path, "kept")
    elif fault == "stale" and adapter == "player_1":
        path = _first_uploads[adapter]
    elif fault == "skipped":
        return _handles[adapter]
    if fault == "alpha":
        path = _with_doubled_alpha(path)
    if fault == "cache":
        folder = Path(path).parent / f"fixed-{adapter}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(path, folder)
        path = str(folder)
        name = adapter
        number = FIRST_FIXED_NUMBER + int(adapter.removeprefix("player_"))
        await _real_unload(engine, number)
    _handles[adapter] = await _real_load(engine, name, number, path)
    return _handles[adapter]


def _copy(path: str, suffix: str) -> str:
    """Copy an upload beside itself and return the copy's folder."""
    return shutil.copytree(path, f"{path}-{suffix}")


def _with_doubled_alpha(path: str) -> str:
    """Return a copy of an upload whose LoRA alpha is doubled."""
    copy = _copy(path, "doubled")
    file = Path(copy) / "adapter_config.json"
    config = json.loads(file.read_text())
    config["lora_alpha"] *= 2
    file.write_text(json.dumps(config))
    return copy


def _under_a_wrapper(path: str, kinds: Sequence[str]) -> str:
    """Return a copy of an upload in which modules of some kinds have another prefix."""
    copy = _copy(path, "wrapped")
    file = Path(copy) / "adapter_model.safetensors"
    tensors = {}
    for name, tensor in load_file(file).items():
        kind = name.split(".")[-3]
        if kind in kinds:
            name = name.replace("base_model.model.", "base_model.model.wrapper.")
        tensors[name] = tensor
    save_file(tensors, file)
    return copy


def _with_huge_values(path: str) -> str:
    """Return a copy of an upload all of whose values are huge."""
    copy = _copy(path, "huge")
    file = Path(copy) / "adapter_model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        tensors[name] = torch.full_like(tensor, HUGE)
    save_file(tensors, file)
    return copy


def _with_changed_weights(path: str, fault: str) -> str:
    """Return a copy of an upload whose weights have one of `ADAPTER_FAULTS`."""
    copy = _copy(path, fault)
    file = Path(copy) / "adapter_model.safetensors"
    tensors = load_file(file)
    generator = torch.Generator().manual_seed(0)
    for name, tensor in tensors.items():
        if fault.startswith("scaled") and "lora_B" in name:
            tensors[name] = (tensor.float() * float(fault.removeprefix("scaled_"))).to(tensor.dtype)
        elif fault == "layer" and ".layers.0." in name and "lora_B" in name:
            tensors[name] = torch.zeros_like(tensor)
        elif fault == "rolled" and "q_proj.lora_A" in name:
            tensors[name] = tensor.roll(1, 0).contiguous()
        elif fault == "noise":
            noise = 1e-4 * torch.randn(tensor.shape, generator=generator)
            tensors[name] = (tensor.float() + noise).to(tensor.dtype)
    save_file(tensors, file)
    return copy


async def final_output(
    engine: VllmSampler, ids: list[int], params: Any, *others: Any, **options: Any
) -> Any:
    """Sample with the planted fault; takes what `VllmSampler._final_output` takes."""
    from vllm import SamplingParams

    changed = SAMPLING_FAULTS.get(planted_fault())
    if changed:
        values = {
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "logprobs": params.logprobs,
            "flat_logprobs": params.flat_logprobs,
            "detokenize": params.detokenize,
            "output_kind": params.output_kind,
        }
        params = SamplingParams(**{**values, **changed})
    return await _real_output(engine, ids, params, *others, **options)


def start_engine(engine: VllmSampler, options: Any, *others: Any, **more: Any) -> None:
    """Start the engine so that it reports the logprobs of `PLANT_LOGPROBS`."""
    mode = os.environ.get("PLANT_LOGPROBS", options["logprobs_mode"])
    _real_init(engine, {**options, "logprobs_mode": mode}, *others, **more)


def register() -> None:
    """Load our plugin, and with `PLANT_LOGPROBS` let vLLM report logprobs as it does: behind top-p.

    The engine core imports this module anew before it loads plugins.
    """
    _real_register()
    if "PLANT_LOGPROBS" not in os.environ:
        return
    from hanabi_grpo.server import vllm_cpu, vllm_filter

    vllm_filter.TopKTopPSampler.forward_native = vllm_filter.stock_forward
    vllm_cpu.whole_logprobs = lambda *_: None


plugin.register = register


async def unload_adapter(engine: VllmSampler, number: int) -> None:
    """Unload an adapter, unless the planted fault still needs it."""
    if planted_fault() not in ("skipped", "cache"):
        await _real_unload(engine, number)


def seat_players(tables: Tables, task: RequestedTask) -> list[Player]:
    """Return the players of a task with the adapters that the planted fault gives them."""
    players = _real_seat(tables, task)
    with_adapter = []
    for index, player in enumerate(players):
        if isinstance(player, ServedPlayer) and player.lora:
            with_adapter.append(index)
    adapters = [players[index].lora for index in with_adapter]
    fault = planted_fault()
    if fault == "base":
        adapters = [None] * len(adapters)
    if fault == "swapped" and len(adapters) == 2:
        adapters.reverse()
    seated = list(players)
    for index, lora in zip(with_adapter, adapters, strict=True):
        seated[index] = replace(players[index], lora=lora)
    return seated


if __name__ == "__main__":
    VllmSampler.load_adapter = load_adapter
    VllmSampler.unload_adapter = unload_adapter
    VllmSampler._final_output = final_output
    VllmSampler.__init__ = start_engine
    Tables.seat = seat_players
    app(["serve"])
