"""All that touches PEFT: make, select, switch off, export and save the players' adapters.

PEFT's own selection also toggles `requires_grad`, which would take the other players' parameters
out of the optimizer's groups. Here only the layers' selection changes; every adapter stays
trainable."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from safetensors.torch import save as to_safetensors

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.runs.adapter_config import adapter_config_for_wire
from hanabi_grpo.types import SHARED_ADAPTER, player_names


def adapter_names(num_players: int, mode: str) -> tuple[str, ...]:
    """Return the adapters of a run: one per player, or the shared one."""
    return (SHARED_ADAPTER,) if mode == SHARED_ADAPTER else player_names(num_players)


def add_adapters(
    model: torch.nn.Module, names: Sequence[str], *, rank: int, alpha: int, seed: int
) -> PeftModel:
    """Wrap a base model with one trainable adapter per name.

    The weights are float32 whatever the base model's type, and depend on `seed` and the name's
    position only."""

    def config() -> LoraConfig:
        return LoraConfig(
            r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM"
        )

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft_model = get_peft_model(model, config(), adapter_name=names[0])
        for position, name in enumerate(names[1:], start=1):
            torch.manual_seed(seed + position)
            peft_model.add_adapter(name, config())
    for name, parameter in peft_model.named_parameters():
        is_lora = "lora_" in name
        parameter.requires_grad_(is_lora)
        if is_lora:
            parameter.data = parameter.data.float()
    use_adapter(peft_model, names[0])
    return peft_model


def lora_layers(model: torch.nn.Module) -> list[LoraLayer]:
    """Return every layer that carries adapters."""
    return [module for module in model.modules() if isinstance(module, LoraLayer)]


def use_adapter(model: torch.nn.Module, name: str) -> None:
    """Let the next forward pass use one player's adapter."""
    for layer in lora_layers(model):
        layer._active_adapter = [name]


@contextlib.contextmanager
def base_only(model: torch.nn.Module) -> Iterator[None]:
    """Switch every adapter off: the reference policy is the base model."""
    layers = lora_layers(model)
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def base_checksum(model: torch.nn.Module) -> str:
    """Return a checksum of every frozen parameter's bits, computed where the parameters are.

    Under ZeRO-3 it covers this rank's shards.
    """
    views = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    total = 0
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            bits = parameter.detach().contiguous().view(views[parameter.element_size()])
            # Position counts too, so that two swapped parameters do not cancel.
            total = (total * 1_000_003 + int(bits.sum(dtype=torch.int64))) % 2**61
    return f"{total:016x}"


def adapter_tensors(model: PeftModel, name: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return one adapter's tensors in PEFT's file naming, on the CPU.

    PEFT's own call copies the whole model's state first, which is most of the time of a weight
    sync."""
    parameters = _parameters_of(model, name)
    return {
        key: value.detach().to(dtype=dtype, device="cpu").contiguous()
        for key, value in parameters.items()
    }


def _parameters_of(model: PeftModel, name: str) -> dict[str, torch.nn.Parameter]:
    infix = f".{name}.weight"
    return {
        key.removesuffix(infix) + ".weight": value
        for key, value in model.named_parameters()
        if key.endswith(infix)
    }


def export_adapter(model: PeftModel, name: str, dtype: torch.dtype) -> tuple[bytes, dict[str, Any]]:
    """Return one adapter as (safetensors bytes, PEFT configuration) for the rollout server."""
    config = adapter_config_for_wire(model.peft_config[name].to_dict())
    return to_safetensors(adapter_tensors(model, name, dtype)), config


def load_adapter(model: PeftModel, name: str, folder: Path) -> None:
    """Put the tensors of a saved adapter into the model, see `put_tensors`."""
    put_tensors(model, name, load_file(folder / "adapter_model.safetensors"), str(folder))


def put_tensors(
    model: PeftModel, name: str, saved: Mapping[str, torch.Tensor], source: str
) -> None:
    """Put tensors in PEFT's file naming into one adapter, bit by bit; a message says `source`,
    where they come from.

    Raises:
        RunFolderError: They are others than this adapter has.
    """
    parameters = _parameters_of(model, name)
    if {key: value.shape for key, value in saved.items()} != {
        key: value.shape for key, value in parameters.items()
    }:
        raise RunFolderError(
            f"{source}: {len(saved)} tensors that are not those of adapter {name} of this model "
            f"({len(parameters)} "
            "tensors); take the MODEL and LORA_RANK that they were trained with."
        )
    fill(parameters, saved)


def copied(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies of parameters on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in parameters.items()}


@torch.no_grad()
def fill(parameters: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    """Copy values into parameters in place, because optimizers and DeepSpeed hold on to the tensors
    themselves.
    """
    for name, value in values.items():
        parameters[name].copy_(value)


@contextlib.contextmanager
def holding(
    parameters: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]
) -> Iterator[None]:
    """Let parameters hold other values for a while; those of now come back bit by bit."""
    now = copied(parameters)
    try:
        fill(parameters, values)
        yield
    finally:
        fill(parameters, now)


def save_adapter(model: PeftModel, name: str, folder: Path) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors` (float32) that plain PEFT and
    vLLM load.
    """
    folder.mkdir(parents=True)
    config = model.peft_config[name]
    was_inference, config.inference_mode = config.inference_mode, True
    config.save_pretrained(str(folder))
    config.inference_mode = was_inference
    tensors = adapter_tensors(model, name, torch.float32)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
