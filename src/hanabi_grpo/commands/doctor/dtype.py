"""The check whether the GPUs can compute in HANABI_DTYPE."""

from collections.abc import Collection, Iterator, Mapping

from hanabi_grpo.commands.doctor import nvidia_smi
from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip
from hanabi_grpo.settings import Settings

_LEAST_FOR_BFLOAT16 = 8.0
"""Compute capability from which GPUs have bfloat16 (Ampere); vLLM (0.32) refuses it below."""


def check_dtype(
    settings: Settings, gpus: Collection[str], path: str | None = None
) -> Iterator[Check]:
    """Check that the GPUs of both terminals have bfloat16; nothing for another data type.

    Args:
        settings: The settings of the run.
        gpus: The GPUs of both terminals: numbers or UUIDs. If nvidia-smi lists none of them under
            these names, all GPUs count.
        path: The PATH to search for nvidia-smi; None: that of this process.
    """
    if settings.dtype != "bfloat16":
        return
    try:
        known = nvidia_smi.compute_capabilities(path)
    except nvidia_smi.NoAnswerError as error:
        yield skip("dtype", str(error))
        return
    own = {gpu: value for gpu, value in known.items() if gpu in gpus} or known
    if not own:
        yield skip("dtype", "nvidia-smi does not report the compute capability of these GPUs")
        return
    yield _compare(own)


def _compare(capabilities: Mapping[str, float]) -> Check:
    """Compare the oldest of these GPUs with what bfloat16 needs."""
    oldest = min(capabilities, key=capabilities.__getitem__)
    finding = f"GPU {oldest} has compute capability {capabilities[oldest]:.1f}"
    if capabilities[oldest] >= _LEAST_FOR_BFLOAT16:
        return ok("dtype", f"{finding}; HANABI_DTYPE=bfloat16 needs {_LEAST_FOR_BFLOAT16:.1f}")
    finding += (
        f", but HANABI_DTYPE=bfloat16 needs {_LEAST_FOR_BFLOAT16:.1f}: the engine would not start"
    )
    return fail("dtype", finding, "export HANABI_DTYPE=float16   # in both terminals")
