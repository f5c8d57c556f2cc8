"""HANABI_SLEEP: where it can work."""

from typing import TYPE_CHECKING

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.base_models import base_models

if TYPE_CHECKING:
    from hanabi_grpo.settings.model import Settings


def check_sleep(settings: "Settings") -> None:
    """Refuse HANABI_SLEEP=1 where the engine cannot sleep, or the trainer would not gain by it.

    Raises:
        SettingsError: With the reason and the way out.
    """
    if not settings.sleep:
        return
    if settings.device != "gpu":
        raise SettingsError(
            "HANABI_SLEEP=1 without a GPU: the engine hands back a GPU's memory, and on a CPU it "
            "shares the machine's with the trainer anyway; unset HANABI_SLEEP."
        )
    if settings.overlap:
        raise SettingsError(
            f"HANABI_SLEEP=1 with HANABI_OVERLAP={settings.overlap}: then games are played while "
            "the trainer learns, so the engine never sleeps; unset one of them."
        )
    if len(base_models(settings)) > 1:
        raise SettingsError(
            f"HANABI_SLEEP=1 with MODEL={settings.model}: it is for one engine, and a server has "
            "one for each base model; unset HANABI_SLEEP, or set one MODEL."
        )
    sizes = {
        "VLLM_TENSOR_PARALLEL_SIZE": settings.vllm_tensor_parallel_size,
        "VLLM_DATA_PARALLEL_SIZE": settings.vllm_data_parallel_size,
        "NPROC_PER_NODE": settings.nproc_per_node,
    }
    for variable, size in sizes.items():
        if size > 1:
            raise SettingsError(
                f"HANABI_SLEEP=1 with {variable}={size}: it is for one GPU that one engine process "
                "and one trainer process share, as in tools/profiles/gpu-1.env; give server and "
                "trainer GPUs of their own and unset HANABI_SLEEP."
            )
