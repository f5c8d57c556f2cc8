"""GPUs: what they can do, and which ones a terminal takes.

If both terminals get the same list of GPUs, they divide it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.load import LoadedSettings
from hanabi_grpo.settings.pass_through import Terminal
from hanabi_grpo.settings.sources import PROFILE

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SIZES: dict[Terminal, tuple[str, ...]] = {
    "server": ("VLLM_TENSOR_PARALLEL_SIZE", "VLLM_DATA_PARALLEL_SIZE"),
    "trainer": ("NPROC_PER_NODE",),
}
"""The settings whose product is the number of GPUs that a terminal uses."""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, by its maker's data sheet."""

    bandwidth: float
    """Memory bandwidth, bytes per second."""
    operations: float
    """bfloat16 operations per second, without sparsity."""


CARDS = {
    "B200": Card(8.0e12, 2250e12),
    "H200": Card(4.8e12, 989e12),
    "H100 PCIe": Card(2.0e12, 756e12),
    "H100": Card(3.35e12, 989e12),
    "A100-SXM4-40GB": Card(1.555e12, 312e12),
    "A100-PCIE-40GB": Card(1.555e12, 312e12),
    "A100": Card(2.0e12, 312e12),
    "L40S": Card(0.864e12, 362e12),
    "L4": Card(0.3e12, 121e12),
    "RTX A6000": Card(0.768e12, 155e12),
    "RTX 4090": Card(1.008e12, 165e12),
    "RTX 3090": Card(0.936e12, 71e12),
}
"""By a part of the name that nvidia-smi reports; the first match counts."""


@dataclass(frozen=True, slots=True)
class SoldCard:
    """A GPU as it is sold, in the words of nvidia-smi."""

    name: str
    mebibytes: int
    """Memory."""


SOLD = {
    "B200-180GB": SoldCard("NVIDIA B200", 183_359),
    "H200-141GB": SoldCard("NVIDIA H200", 143_771),
    "H100-80GB": SoldCard("NVIDIA H100 80GB HBM3", 81_559),
    "H100-PCIe-80GB": SoldCard("NVIDIA H100 PCIe", 81_559),
    "A100-80GB": SoldCard("NVIDIA A100-SXM4-80GB", 81_920),
    "A100-40GB": SoldCard("NVIDIA A100-SXM4-40GB", 40_960),
    "L40S-48GB": SoldCard("NVIDIA L40S", 46_068),
    "L4-24GB": SoldCard("NVIDIA L4", 23_034),
    "RTXA6000-48GB": SoldCard("NVIDIA RTX A6000", 49_140),
    "RTX4090-24GB": SoldCard("NVIDIA GeForce RTX 4090", 24_564),
    "RTX3090-24GB": SoldCard("NVIDIA GeForce RTX 3090", 24_576),
}
"""The GPUs of `CARDS` by their common names; the memory may be left out if only one size exists.

nvidia-smi reports somewhat more or less than the name, depending on the driver; these values are
common.
"""


def find_card(name: str) -> Card | None:
    """Return the GPU with this name; None if it is not in `CARDS`.

    Args:
        name: As nvidia-smi reports it, e.g. "NVIDIA H100 80GB HBM3".
    """
    # A part must end there, so that "L4" does not match "L40S".
    ended = f"{name} "
    for part, card in CARDS.items():
        if f"{part} " in ended or f"{part}-" in ended:
            return card
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShare:
    """The GPUs of one terminal."""

    names: tuple[str, ...]
    """As CUDA takes them: numbers or UUIDs."""
    reason: str = ""
    """One line for the terminal; empty if they are those of CUDA_VISIBLE_DEVICES."""
    idle: tuple[str, ...] = ()
    """GPUs of the terminal's own list that it does not use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """How many GPUs one terminal uses."""

    count: int
    settings: str
    """The settings that determine the count, e.g. "NPROC_PER_NODE=4"."""
    is_given: bool
    """Whether one of them was set, and is not a default."""


def gpu_share(loaded: LoadedSettings, terminal: Terminal) -> GpuShare | None:
    """Return the GPUs of a terminal; None if the user did not choose any.

    CUDA_VISIBLE_DEVICES_SERVER and _TRAINER win; those of a profile yield to a list of the shell or
    `.env`. A list of more GPUs than the terminal uses, as schedulers export it, is divided: the
    server takes the first ones, the trainer the last ones. The trainer takes the first ones of its
    own list, because ms-swift (4.6) would spread a process's model over all GPUs that it sees, and
    refuses to train that way.

    Raises:
        SettingsError: One list is too short for both terminals.
    """
    name = f"{_VISIBLE}_{terminal.upper()}"
    own_list = loaded.passed_through.get(name)
    both_list = loaded.passed_through.get(_VISIBLE)
    if own_list is not None and not _yields(own_list, both_list):
        share = _own_share(name, own_list, both_list)
        if terminal == "server":
            # vLLM does not touch the others, and one of its own options may use them.
            return share
        return _cut_share(share, name, own_list, _gpu_use(loaded, terminal))
    if both_list is None:
        return None

    value, origin = both_list
    names = _split(value)
    given = f"{_VISIBLE}={value} ({origin})"
    use = _gpu_use(loaded, terminal)
    if len(names) <= max(1, use.count):
        return GpuShare(names=names)
    other = _gpu_use(loaded, "trainer" if terminal == "server" else "server")
    part = names[: use.count] if terminal == "server" else names[-use.count :]
    # The other terminal's shell may have another value than the default that this one sees.
    if other.is_given and use.count + other.count > len(names):
        raise SettingsError(
            f"{given}: too short for both terminals: {use.settings} uses {use.count} and "
            f"{other.settings} uses {other.count}. Lower one of them, or list this terminal's "
            f"GPUs: {name}={','.join(part)}."
        )
    reason = (
        f"GPUs {','.join(part)}: {given} lists more than {use.settings} uses; the server takes "
        f"the first ones, the trainer the last ones, {name} overrides this"
    )
    return GpuShare(names=part, reason=reason)


def check_enough_gpus(
    loaded: LoadedSettings, terminal: Terminal, count: Callable[[], int] | None = None
) -> None:
    """Refuse to start a terminal that has fewer GPUs than its sizes use.

    vLLM and torch would report this only after loading the model, without the list or the sizes.
    Nothing is checked if everything runs on the CPU.

    Args:
        loaded: The settings.
        terminal: The terminal.
        count: Returns the number of GPUs of this machine, 0 if unknown; called only if no list
            names the terminal's GPUs. None: such a terminal is not checked.

    Raises:
        SettingsError: It has fewer GPUs.
    """
    settings = loaded.settings
    if settings.device != "gpu":
        return
    share = gpu_share(loaded, terminal)
    if share is not None:
        num_gpus = len(share.names)
        has = f"the {terminal}'s list has {num_gpus} ({','.join(share.names)})"
    else:
        num_gpus = count() if count is not None else 0
        has = f"this machine has {num_gpus}"
    use = _gpu_use(loaded, terminal)
    is_known = share is not None or num_gpus > 0
    if num_gpus >= use.count or not is_known:
        return
    if terminal == "trainer":
        fitting = f"NPROC_PER_NODE={num_gpus}"
    elif settings.vllm_tensor_parallel_size <= num_gpus:
        num_copies = num_gpus // settings.vllm_tensor_parallel_size
        fitting = f"VLLM_DATA_PARALLEL_SIZE={num_copies}"
    else:
        fitting = f"VLLM_TENSOR_PARALLEL_SIZE={num_gpus} VLLM_DATA_PARALLEL_SIZE=1"
    more = f"list more GPUs in {_VISIBLE}_{terminal.upper()}, " if share is not None else ""
    raise SettingsError(
        f"{use.settings} uses {use.count} GPUs, but {has}: set {fitting}, {more}or use a profile "
        "of docs/hardware.md in both terminals."
    )


def _yields(own_list: tuple[str, str], both_list: tuple[str, str] | None) -> bool:
    """Tell whether a terminal's own list, from a profile, yields to the shell's or `.env`'s list.

    Args:
        own_list: Value and origin of the terminal's own list.
        both_list: Value and origin of CUDA_VISIBLE_DEVICES; None if it is unset.
    """
    return own_list[1] == PROFILE and both_list is not None and both_list[1] != PROFILE


def _own_share(name: str, own_list: tuple[str, str], both_list: tuple[str, str] | None) -> GpuShare:
    value, origin = own_list
    names = _split(value)
    if both_list is None or names == _split(both_list[0]):
        return GpuShare(names=names)
    both_value, both_origin = both_list
    reason = (
        f"GPUs {','.join(names)}: {name} ({origin}) wins over "
        f"{_VISIBLE}={both_value} ({both_origin})"
    )
    return GpuShare(names=names, reason=reason)


def _cut_share(share: GpuShare, name: str, own_list: tuple[str, str], use: _Use) -> GpuShare:
    """Return the GPUs of a terminal's own list, at most as many as it uses.

    Args:
        share: All GPUs of its list.
        name: The variable that lists them.
        own_list: Value and origin of the list.
        use: How many it uses.
    """
    names = share.names[: use.count]
    if names == share.names:
        return share
    value, origin = own_list
    reason = (
        f"GPUs {','.join(names)}: {name}={value} ({origin}) lists more than {use.settings} uses"
    )
    return GpuShare(names=names, reason=reason, idle=share.names[use.count :])


def _gpu_use(loaded: LoadedSettings, terminal: Terminal) -> _Use:
    """Return how many GPUs a terminal uses, and which settings determine that.

    The text omits sizes of 1, except for the first.
    """
    count = 1
    texts: list[str] = []
    is_given = False
    for env in _SIZES[terminal]:
        field = env.lower()
        size = getattr(loaded.settings, field)
        count *= size
        if not texts or size > 1:
            texts.append(f"{env}={size}")
        if not loaded.origins[field].startswith("default"):
            is_given = True
    return _Use(count=count, settings=" × ".join(texts), is_given=is_given)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
