"""GPUs: what they can do, and which a terminal takes, also where both terminals were given the same
list.
"""

import math
from typing import NamedTuple

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.load import LoadedSettings
from hanabi_grpo.settings.pass_through import Terminal
from hanabi_grpo.settings.sources import PROFILE

_BOTH = "CUDA_VISIBLE_DEVICES"
_USED_BY: dict[Terminal, tuple[str, ...]] = {
    "server": ("VLLM_TENSOR_PARALLEL_SIZE", "VLLM_DATA_PARALLEL_SIZE"),
    "trainer": ("NPROC_PER_NODE",),
}


class Card(NamedTuple):
    """A GPU, by its maker's data sheet: memory bandwidth in bytes/s, bfloat16 operations/s without
    sparsity.
    """

    bandwidth: float
    operations: float


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
"""By a part of the name that nvidia-smi tells; the first that fits."""


def find_card(name: str) -> Card | None:
    """Return the GPU of a name; None where its data sheet is not written here."""
    words = f"{name} "
    return next(
        (card for part, card in CARDS.items() if f"{part} " in words or f"{part}-" in words), None
    )


def gpu_share(loaded: LoadedSettings, terminal: Terminal) -> tuple[tuple[str, ...], str] | None:
    """Return the GPUs of a terminal, as CUDA takes them (numbers or UUIDs); None where nobody
    chose.

    Beside them one line for the terminal, empty where they are those of CUDA_VISIBLE_DEVICES. A
    SettingsError where one list is too short for both.

    CUDA_VISIBLE_DEVICES_SERVER and _TRAINER win; those of a profile yield to a list of the shell or
    `.env`. A list of more GPUs than the terminal uses, as schedulers export it, is divided: the
    server takes its beginning, the trainer its end."""
    name = f"{_BOTH}_{terminal.upper()}"
    own, both = loaded.passed_through.get(name), loaded.passed_through.get(_BOTH)
    if own and (both is None or own[1] != PROFILE or both[1] == PROFILE):
        names, why = _listed(own[0]), ""
        if both and names != _listed(both[0]):
            why = (
                f"GPUs {','.join(names)}: {name} ({own[1]}) wins over {_BOTH}={both[0]} ({both[1]})"
            )
        return names, why
    if both is None:
        return None
    names, said = _listed(both[0]), f"{_BOTH}={both[0]} ({both[1]})"
    mine, my_uses, _ = _uses(loaded, terminal)
    other, other_uses, is_given = _uses(loaded, "trainer" if terminal == "server" else "server")
    if len(names) <= max(1, mine):
        return names, ""
    is_short = is_given and mine + other > len(names)
    names = names[:mine] if terminal == "server" else names[-mine:]
    if is_short:
        raise SettingsError(
            f"{said}: too short for both terminals, {my_uses} uses {mine} and {other_uses} "
            f"{other}. Lower one of them, "
            f"or name this terminal's GPUs: {name}={','.join(names)}."
        )
    why = (
        f"{said} has more than {my_uses} uses: the server takes its beginning, the trainer its "
        f"end, {name} wins"
    )
    return names, f"GPUs {','.join(names)}: {why}"


def _uses(loaded: LoadedSettings, terminal: Terminal) -> tuple[int, str, bool]:
    """Return how many GPUs a terminal uses, the settings that say so, and whether one of them was
    given.
    """
    sizes = {env: getattr(loaded.settings, env.lower()) for env in _USED_BY[terminal]}
    said = [
        f"{env}={size}"
        for number, (env, size) in enumerate(sizes.items())
        if number == 0 or size > 1
    ]
    # The other terminal's shell may have another value than the default that this one sees.
    is_given = any(not loaded.origins[env.lower()].startswith("default") for env in sizes)
    return math.prod(sizes.values()), " × ".join(said), is_given


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
