"""All uses of PEFT: create, select, disable, export and save the players' adapters.

PEFT's own selection also toggles `requires_grad`, which would remove the other players' parameters
from the optimizer's groups. Here only the layers' selection changes; every adapter stays trainable.
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.layer import ParamWrapper
from safetensors.torch import load_file, save_file
from safetensors.torch import save as to_safetensors

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.runs.adapter_config import adapter_config_for_wire, is_covered, is_mixture
from hanabi_grpo.training.model.team_model import TeamModel
from hanabi_grpo.types import SHARED_ADAPTER, player_names

ALL_LINEAR = "all-linear"
"""PEFT's `target_modules` for every linear layer except the output head."""
WEIGHTS_FILE = "adapter_model.safetensors"
"""PEFT's name of an adapter's weight file."""
_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32}
"""By the bytes of an element: the integer type with which its bits enter a checksum."""
_CHECKSUM_FACTOR = 1_000_003
_CHECKSUM_MODULUS = 2**61


def adapter_names(num_players: int, mode: str) -> tuple[str, ...]:
    """Return the adapters of a run: one per player, or the shared one.

    Args:
        num_players: HANABI_PLAYERS.
        mode: HANABI_ADAPTERS.
    """
    if mode == SHARED_ADAPTER:
        return (SHARED_ADAPTER,)
    return player_names(num_players)


def add_adapters(
    model: torch.nn.Module,
    names: Sequence[str],
    *,
    rank: int | Mapping[str, int],
    alpha: int | Mapping[str, int],
    seed: int,
) -> PeftModel:
    """Wrap a base model with one trainable adapter per name.

    The weights are float32 for any type of the base model, and depend only on `seed` and the name's
    position.

    Args:
        model: The base model; its own parameters are frozen.
        names: Names of the adapters; the first one is active afterwards.
        rank: LORA_RANK, for all adapters or by adapter.
        alpha: LORA_ALPHA, for all adapters or by adapter.
        seed: Seed of the first adapter's weights, incremented for each further adapter.
    """
    configs = _lora_configs(dict.fromkeys(names, covered_layers(model)), rank, alpha)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft_model = get_peft_model(model, configs[names[0]], adapter_name=names[0])
        for position, name in enumerate(names[1:], start=1):
            torch.manual_seed(seed + position)
            peft_model.add_adapter(name, configs[name])
    _train_adapters_alone(peft_model)
    use_adapter(peft_model, names[0])
    return peft_model


def add_team_adapters(
    models: Mapping[str, torch.nn.Module],
    base_of: Mapping[str, str],
    *,
    rank: Mapping[str, int],
    alpha: Mapping[str, int],
    seed: int,
) -> TeamModel:
    """Wrap several base models, each with the trainable adapters of its players, as one model.

    An adapter's weights are those that `add_adapters` would give it on its base model.

    Args:
        models: The base models by name, starting with that of the first adapter.
        base_of: The name of each adapter's base model, in the order of the adapters.
        rank: LORA_RANK by adapter.
        alpha: LORA_ALPHA by adapter.
        seed: Seed of the first adapter's weights, incremented for each further adapter.
    """
    positions = {name: position for position, name in enumerate(base_of)}
    layers_of = {base: covered_layers(model) for base, model in models.items()}
    layers = {name: layers_of[base] for name, base in base_of.items()}
    configs = _lora_configs(layers, rank, alpha)
    team: TeamModel | None = None
    with torch.random.fork_rng(devices=[]):
        for base, model in models.items():
            first, *others = [name for name in base_of if base_of[name] == base]
            torch.manual_seed(seed + positions[first])
            if team is None:
                config = configs[first]
                config.base_model_name_or_path = str(getattr(model, "name_or_path", base))
                team = TeamModel(model, config, adapter_name=first)
                part: PeftModel = team
            else:
                part = get_peft_model(model, configs[first], adapter_name=first)
            for name in others:
                torch.manual_seed(seed + positions[name])
                part.add_adapter(name, configs[name])
            if part is not team:
                team.add(part)
    assert team is not None, "a team has a base model"
    _train_adapters_alone(team)
    use_adapter(team, next(iter(base_of)))
    return team


def covered_layers(model: torch.nn.Module) -> str | list[str]:
    """Return the `target_modules` for which servers accept adapters, see `is_covered`.

    For a dense model, these are all linear layers. For a mixture of experts, PEFT would also adapt
    the experts and the router, as parameters.

    Args:
        model: A base model.
    """
    if not is_mixture(model.config.to_dict()):
        return ALL_LINEAR
    names = set()
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and is_covered(path, mixture=True):
            names.add(path.rpartition(".")[2])
    return sorted(names)


def _lora_configs(
    layers: Mapping[str, str | list[str]],
    rank: int | Mapping[str, int],
    alpha: int | Mapping[str, int],
) -> dict[str, LoraConfig]:
    """Return a configuration for each adapter.

    Args:
        layers: The layers of each adapter, see `covered_layers`.
        rank: LORA_RANK, for all adapters or by adapter.
        alpha: LORA_ALPHA, for all adapters or by adapter.
    """
    configs = {}
    for name, target_modules in layers.items():
        configs[name] = LoraConfig(
            r=rank if isinstance(rank, int) else rank[name],
            lora_alpha=alpha if isinstance(alpha, int) else alpha[name],
            target_modules=target_modules,
            task_type="CAUSAL_LM",
        )
    return configs


def _train_adapters_alone(model: torch.nn.Module) -> None:
    """Freeze the base models' parameters, and make the adapters trainable in float32."""
    for name, parameter in model.named_parameters():
        is_lora = "lora_" in name
        parameter.requires_grad_(is_lora)
        if is_lora:
            parameter.data = parameter.data.float()


def part_of(model: PeftModel, adapter: str) -> PeftModel:
    """Return an adapter's base model with its adapters; the model itself if there is only one."""
    return model.part_of(adapter) if isinstance(model, TeamModel) else model


def parts_of(model: PeftModel) -> list[PeftModel]:
    """Return every base model with its adapters, player_0's first."""
    return list(model.parts()) if isinstance(model, TeamModel) else [model]


def lora_layers(model: torch.nn.Module) -> list[LoraLayer]:
    """Return every layer that carries adapters."""
    return [module for module in model.modules() if isinstance(module, LoraLayer)]


def check_served(model: PeftModel) -> None:
    """Refuse a model whose adapters rollout servers do not support.

    PEFT adapts experts and routers as parameters if `is_mixture` did not recognize them.

    Args:
        model: A base model with its adapters.

    Raises:
        SettingsError: Some adapters are not on linear layers.
    """
    parameters = {
        layer.parameter_name for layer in lora_layers(model) if isinstance(layer, ParamWrapper)
    }
    if parameters:
        name = getattr(model.get_base_model(), "name_or_path", "")
        raise SettingsError(
            f"MODEL={name}: its adapters would be on parameters that are not linear layers "
            f"({', '.join(sorted(parameters))}), which rollout servers do not support. The model "
            "seems to be an unsupported kind of mixture of experts. Choose another model, e.g. "
            "Qwen/Qwen3-8B."
        )


def use_adapter(model: torch.nn.Module, name: str) -> None:
    """Make the next forward pass use one player's adapter, on its base model."""
    for layer in lora_layers(model):
        layer._active_adapter = [name]
    if isinstance(model, TeamModel):
        model.choose(name)


def use_adapters(model: torch.nn.Module, names: Sequence[str]) -> None:
    """Make the next forward pass serve several players, whose rows `row_owners` distinguishes.

    PEFT's own layers would add all of these adapters to every row.
    """
    for layer in lora_layers(model):
        layer._active_adapter = list(names)


@contextlib.contextmanager
def using_in(layer: LoraLayer, name: str) -> Iterator[None]:
    """Temporarily make one layer use one player's adapter."""
    before = layer._active_adapter
    layer._active_adapter = [name]
    try:
        yield
    finally:
        layer._active_adapter = before


@contextlib.contextmanager
def base_only(model: torch.nn.Module) -> Iterator[None]:
    """Disable every adapter: the reference policy is the base model."""
    layers = lora_layers(model)
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


@contextlib.contextmanager
def scaled_by(model: torch.nn.Module, name: str, factor: float) -> Iterator[None]:
    """Temporarily scale an adapter's output by a factor."""
    layers = [layer for layer in lora_layers(model) if name in layer.scaling]
    scales = [layer.scaling[name] for layer in layers]
    for layer in layers:
        layer.scaling[name] *= factor
    try:
        yield
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scaling[name] = scale


def trainable_parameters(
    model: torch.nn.Module, adapter: str | None = None
) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that an optimizer may change, by their names in the model.

    Args:
        model: With or without adapters.
        adapter: Only the parameters of this adapter; None: of the whole model.
    """
    parameters = {}
    for name, parameter in model.named_parameters():
        is_included = adapter is None or f".{adapter}." in name
        if is_included and parameter.requires_grad:
            parameters[name] = parameter
    return parameters


def base_checksum(model: torch.nn.Module) -> str:
    """Return a checksum of every frozen parameter's bits, computed on the parameters' device.

    For a team, it covers all base models; `base_checksums` has each player's.

    With ZeRO-3, it covers this rank's shards and therefore depends on the number of processes.
    """
    total = 0
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            continue
        # ZeRO-3 replaces a sharded weight by an empty tensor.
        held = getattr(parameter, "ds_tensor", parameter)
        integer = _INTEGER_OF_SIZE[held.element_size()]
        bits = held.detach().contiguous().view(integer)
        # Positions count, too, so that two swapped parameters change the checksum.
        total = total * _CHECKSUM_FACTOR + int(bits.sum(dtype=torch.int64))
        total %= _CHECKSUM_MODULUS
    return f"{total:016x}"


def base_checksums(model: PeftModel, names: Sequence[str]) -> dict[str, str]:
    """Return the checksum of each adapter's base model; empty if all have the same one."""
    if not isinstance(model, TeamModel):
        return {}
    return {name: base_checksum(part_of(model, name).base_model) for name in names}


def adapter_tensors(model: PeftModel, name: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return one adapter's tensors in PEFT's file naming, on the CPU.

    PEFT's own function first copies the whole model's state, which would take most of the time of a
    weight sync.

    Args:
        model: The model with the adapter.
        name: Name of the adapter.
        dtype: Type of the returned tensors.
    """
    tensors = {}
    for key, value in _parameters_of(model, name).items():
        tensors[key] = value.detach().to(dtype=dtype, device="cpu").contiguous()
    return tensors


def _parameters_of(model: PeftModel, name: str) -> dict[str, torch.nn.Parameter]:
    """Return one adapter's parameters in PEFT's file naming, which leaves out its name."""
    suffix = f".{name}.weight"
    parameters = {}
    for key, value in part_of(model, name).named_parameters():
        if key.endswith(suffix):
            parameters[key.removesuffix(suffix) + ".weight"] = value
    return parameters


def export_adapter(model: PeftModel, name: str, dtype: torch.dtype) -> tuple[bytes, dict[str, Any]]:
    """Return one adapter for the rollout server, as safetensors bytes and PEFT's configuration.

    Args:
        model: The model with the adapter.
        name: Name of the adapter.
        dtype: Type of the weights that are sent.
    """
    config = adapter_config_for_wire(part_of(model, name).peft_config[name].to_dict())
    return to_safetensors(adapter_tensors(model, name, dtype)), config


def load_adapter(model: PeftModel, name: str, folder: Path) -> None:
    """Load the tensors of a saved adapter into the model, see `put_tensors`."""
    put_tensors(model, name, load_file(folder / WEIGHTS_FILE), str(folder))


def put_tensors(
    model: PeftModel, name: str, saved: Mapping[str, torch.Tensor], source: str
) -> None:
    """Copy tensors in PEFT's file naming into one adapter, bit for bit.

    Args:
        model: The model with the adapter.
        name: Name of the adapter.
        saved: The tensors.
        source: Where they come from, for the error message.

    Raises:
        RunFolderError: Their names or shapes differ from those of the adapter.
    """
    parameters = _parameters_of(model, name)
    saved_shapes = {key: value.shape for key, value in saved.items()}
    own_shapes = {key: value.shape for key, value in parameters.items()}
    if saved_shapes != own_shapes:
        raise RunFolderError(
            f"{source}: its {len(saved)} tensors do not match those of adapter {name} of this "
            f"model ({len(parameters)} tensors); use the MODEL and LORA_RANK that they were "
            "trained with."
        )
    fill(parameters, saved)


def copy_parameters(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies of parameters on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in parameters.items()}


@torch.no_grad()
def fill(parameters: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    """Copy values into parameters in place.

    In place, because optimizers and DeepSpeed keep references to the tensors.
    """
    for name, value in values.items():
        parameters[name].copy_(value)


@contextlib.contextmanager
def holding(
    parameters: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]
) -> Iterator[None]:
    """Temporarily give parameters other values; the present ones are restored bit for bit.

    A signal that arrives while they are restored raises its exception there, so it leaves some of
    the other values behind. Fill the parameters again before they are used after an interrupt.
    """
    present = copy_parameters(parameters)
    try:
        fill(parameters, values)
        yield
    finally:
        fill(parameters, present)


def save_adapter(model: PeftModel, name: str, folder: Path) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors`, which plain PEFT and vLLM load.

    The weights are float32.
    """
    folder.mkdir(parents=True)
    config = copy.copy(part_of(model, name).peft_config[name])
    config.inference_mode = True
    if isinstance(config.target_modules, set):
        # The order of a set differs between processes; the same adapter should be the same bytes.
        config.target_modules = sorted(config.target_modules)
    config.save_pretrained(str(folder))
    tensors = adapter_tensors(model, name, torch.float32)
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
