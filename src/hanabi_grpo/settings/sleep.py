"""HANABI_SLEEP: where it is supported."""

from typing import TYPE_CHECKING

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.base_models import base_models

if TYPE_CHECKING:
    from hanabi_grpo.settings.model import Settings


def check_sleep(settings: "Settings") -> None:
    """Refuse HANABI_SLEEP=1 if the engine cannot sleep, or if it would not help the trainer.

    Raises:
        SettingsError: With the reason and what to do.
    """
    if not settings.sleep:
        return
    if settings.device != "gpu":
        raise SettingsError(
            "HANABI_SLEEP=1 without a GPU: a sleeping engine releases GPU memory, and on a CPU "
            "engine and trainer share the machine's memory anyway; unset HANABI_SLEEP."
        )
    if settings.overlap:
        raise SettingsError(
            f"HANABI_SLEEP=1 with HANABI_OVERLAP={settings.overlap}: games are played while the "
            "trainer learns, so the engine would never sleep; unset one of them."
        )
    if len(base_models(settings)) > 1:
        raise SettingsError(
            f"HANABI_SLEEP=1 with MODEL={settings.model}: only a single engine can sleep, and a "
            "server has one for each base model; unset HANABI_SLEEP, or set one MODEL."
        )
    sizes = {
        "VLLM_TENSOR_PARALLEL_SIZE": settings.vllm_tensor_parallel_size,
        "VLLM_DATA_PARALLEL_SIZE": settings.vllm_data_parallel_size,
        "NPROC_PER_NODE": settings.nproc_per_node,
    }
    for variable, size in sizes.items():
        if size > 1:
            raise SettingsError(
                f"HANABI_SLEEP=1 with {variable}={size}: it requires one GPU, shared by one engine "
                "process and one trainer process, as in tools/profiles/gpu-1.env; give server and "
                "trainer separate GPUs and unset HANABI_SLEEP."
            )
