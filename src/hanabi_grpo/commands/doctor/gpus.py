"""Checks of the GPUs: which exist, how both terminals share them, and how much memory is free.

A driver that is too old for torch is reported by `tools/setup.sh`, before anything is downloaded.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.commands.doctor.dtype import check_dtype
from hanabi_grpo.commands.doctor.nvidia_smi import Gpu, list_gpus
from hanabi_grpo.commands.doctor.slices import check_slices
from hanabi_grpo.commands.doctor.software import cuda_build, installed_version
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.adapter_config import text_config_of
from hanabi_grpo.settings.gpus import Terminal, gpu_share
from hanabi_grpo.settings.shell import ROLLOUT_SCRIPT, TRAIN_SCRIPT
from hanabi_grpo.settings.sources import PROFILE

_MAX_SHARE_ON_ONE_GPU = 0.6
"""Largest share for the engine if the trainer uses the same GPU."""
_UNCOUNTED_MIB = 1536
"""Memory of a shared GPU outside both shares: the trainer's CUDA context and the driver."""
_ASLEEP_MIB = 3072
"""Estimated maximum that a sleeping engine keeps: CUDA context, CUDA graphs and buffers."""
_OF_GPUS = ("gpu_memory_utilization", "trainer_memory")
"""Settings that only a profile for GPUs has."""
_VISIBLE = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES_SERVER",
    "CUDA_VISIBLE_DEVICES_TRAINER",
)
_LEAST_SPLIT = 2
"""Fewest GPUs that the scripts divide."""
_PROFILE_SIZES = (1, 2, 4, 8)
"""Numbers of GPUs that have a profile."""


def gpus_of_machine(context: Context) -> tuple[tuple[Gpu, ...], str]:
    """Return the planned GPUs, else those of this machine, and the reason if there are none."""
    if context.planned_gpus:
        return context.planned_gpus, ""
    return list_gpus(context.shell.get("PATH"))


def smallest_gpu(context: Context, terminal: Terminal) -> tuple[int, str]:
    """Return the MiB of the smallest GPU that a terminal uses.

    If nvidia-smi does not list the terminal's GPUs under the names in use, all GPUs count.

    Returns:
        The MiB, or 0 if they are unknown, and the reason for that.
    """
    gpus, reason = gpus_of_machine(context)
    try:
        names = _gpus_of(context, terminal, gpus)
    except SettingsError:
        # The check of the split reports it.
        names = []
    own = [gpu for gpu in gpus if gpu.number in names]
    total = min((gpu.total for gpu in own or gpus), default=0)
    return total, reason if not gpus else "nvidia-smi does not report it"


def gpu_checks(context: Context) -> Iterator[Check]:
    """Check that engine, torch and both terminals fit the GPUs of this machine."""
    gpus, reason = gpus_of_machine(context)
    has_cuda_engine = installed_version("vllm") is not None
    if gpus:
        listed = f"{len(gpus)} × {gpus[0].name}, {gpus[0].total / 1024:.0f} GiB each"
    else:
        listed = f"none ({reason})"
    if context.planned_gpus:
        yield ok("gpus", f"planned: {listed}")
        yield from _check_split(context, gpus)
    elif has_cuda_engine and not gpus:
        remedy = "nvidia-smi\nrm -rf .venv && SETUP_EXTRA=cpu bash tools/setup.sh"
        yield fail("gpus", f"{listed}, but the engine is vllm for CUDA", remedy)
    elif not gpus and _has_gpu_profile(context):
        num_gpus = _num_named(context)
        finding = (
            f"{listed}, but HANABI_PROFILE is for GPUs: everything would run on the CPU, with "
            "the sizes of the profile"
        )
        plan = f".venv/bin/hanabi-grpo doctor --as {num_gpus}xH100-80GB   # plan it; or another GPU"
        yield warn(
            "gpus", finding, f"{plan}\nunset HANABI_PROFILE   # or remove its line from .env"
        )
    elif not gpus:
        yield ok("gpus", f"{listed}; everything runs on the CPU")
    elif not has_cuda_engine:
        finding = f"{listed}, but the engine for CUDA is not installed, so they stay idle"
        yield warn("gpus", finding, "rm -rf .venv && SETUP_EXTRA=serve bash tools/setup.sh")
    else:
        yield ok("gpus", listed)
        # If torch is not a CUDA build, the check of torch reports it.
        if cuda_build() is not None:
            yield _check_torch_sees(context, len(gpus))
        yield from _check_split(context, gpus)


def _has_gpu_profile(context: Context) -> bool:
    """Tell whether the profile sets values that only apply to GPUs."""
    loaded = context.loaded
    origins = [loaded.origins[name] for name in _OF_GPUS]
    origins += [origin for name, (_, origin) in loaded.passed_through.items() if name in _VISIBLE]
    return PROFILE in origins


def _num_named(context: Context) -> int:
    """Return how many GPUs the settings name, or 1 if they name none."""
    names: set[str] = set()
    for variable in _VISIBLE:
        value, _ = context.loaded.passed_through.get(variable, ("", ""))
        names.update(part.strip() for part in value.split(",") if part.strip())
    return max(1, len(names))


def _check_torch_sees(context: Context, num_gpus: int) -> Check:
    """Compare the GPUs that torch can open with those that it should see."""
    import torch

    visible = context.environ.get("CUDA_VISIBLE_DEVICES")
    expected = num_gpus
    suffix = ""
    if visible is not None:
        expected = len([name for name in visible.split(",") if name.strip()])
        suffix = f" of CUDA_VISIBLE_DEVICES={visible}"
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if seen == expected:
        return ok("torch gpus", f"torch sees {seen}{suffix}")
    finding = f"torch sees {seen} GPUs, but {expected} are expected{suffix}"
    show_error = (
        '.venv/bin/python -c "import torch; torch.cuda.init(); print(torch.cuda.device_count())"'
    )
    return fail("torch gpus", finding, f"nvidia-smi\n{show_error}")


def _check_split(context: Context, gpus: Sequence[Gpu]) -> Iterator[Check]:
    """Check how both terminals share the GPUs, and whether these suit the settings of each."""
    settings = context.settings
    use_profile = _propose_profile(len(gpus))
    terminals: list[Terminal] = []
    if context.serves:
        terminals.append("server")
    if context.trains:
        terminals.append("trainer")
    gpus_of: dict[Terminal, list[str]] = {}
    try:
        for terminal in terminals:
            gpus_of[terminal] = _gpus_of(context, terminal, gpus)
    except SettingsError as error:
        yield fail("gpu split", str(error), use_profile)
        return
    if not all(gpus_of.values()):
        finding = "the scripts are not in this folder, so their shares of GPUs are unknown"
        yield skip("gpu split", finding)
        return
    missing = _find_missing(gpus, gpus_of)
    if missing:
        source = "profile or .env"
        given = context.environ.get("CUDA_VISIBLE_DEVICES")
        if given:
            source = f"CUDA_VISIBLE_DEVICES={given}"
        finding = f"{source} names GPU {', '.join(missing)}, but there are only {len(gpus)}"
        yield fail("gpu split", finding, use_profile)
        return
    if not context.planned_gpus:
        yield from check_slices(gpus_of, context.shell.get("PATH"))
        names = {name for own in gpus_of.values() for name in own}
        yield from check_dtype(settings, names, context.shell.get("PATH"))
    if len(gpus_of) > 1:
        yield _check_shared(context, gpus_of, gpus[0].total, use_profile)
    if "server" in gpus_of:
        server_gpus = gpus_of["server"]
        tensor = settings.vllm_tensor_parallel_size
        data = _size(
            context,
            "server",
            "vllm_data_parallel_size",
            server_gpus,
            "vllm_tensor_parallel_size",
        )
        sizes = f"VLLM_TENSOR_PARALLEL_SIZE={tensor} × VLLM_DATA_PARALLEL_SIZE={data}"
        fitting = f"export VLLM_DATA_PARALLEL_SIZE={len(server_gpus) // tensor}"
        if tensor > len(server_gpus):
            fitting = f"export VLLM_TENSOR_PARALLEL_SIZE={len(server_gpus)}"
        yield _check_sizes("server gpus", sizes, tensor * data, server_gpus, fitting)
        yield from _check_heads(context, tensor * data)
        measured = [gpu for gpu in gpus if gpu.number in server_gpus and gpu.total]
        yield _check_free_memory(context, measured)
    if "trainer" in gpus_of:
        processes = _size(context, "trainer", "nproc_per_node", gpus_of["trainer"])
        sizes = f"NPROC_PER_NODE={processes}"
        fitting = f"export NPROC_PER_NODE={len(gpus_of['trainer'])}"
        yield _check_sizes("trainer gpus", sizes, processes, gpus_of["trainer"], fitting)


def _propose_profile(num_gpus: int) -> str:
    """Return the line that selects the largest profile for `num_gpus` GPUs."""
    size = max(size for size in _PROFILE_SIZES if size <= num_gpus)
    export = f"export HANABI_PROFILE=tools/profiles/gpu-{size}.env"
    return f"{export}   # in both terminals; docs/hardware.md has others"


def _find_missing(gpus: Sequence[Gpu], gpus_of: Mapping[Terminal, Sequence[str]]) -> list[str]:
    """Return the numbers of GPUs that a terminal names but this machine does not have."""
    known = {gpu.number for gpu in gpus}
    wanted: set[str] = set()
    for names in gpus_of.values():
        wanted.update(names)
    # Other names are UUIDs, which were not requested from nvidia-smi.
    return sorted(name for name in wanted - known if name.isdecimal())


def _check_shared(
    context: Context,
    gpus_of: Mapping[Terminal, Sequence[str]],
    total: int,
    use_profile: str,
) -> Check:
    """Check GPUs that both terminals use: only a single one may be shared, with fitting shares.

    Args:
        context: What is checked.
        gpus_of: Each terminal's GPUs.
        total: MiB of one GPU; 0 if unknown.
        use_profile: What to type if they do not fit.
    """
    settings = context.settings
    shared = sorted(set(gpus_of["server"]) & set(gpus_of["trainer"]))
    if not shared:
        parts = [f"{terminal} on {','.join(names)}" for terminal, names in gpus_of.items()]
        return ok("gpu split", ", ".join(parts))
    server_processes = settings.vllm_tensor_parallel_size * settings.vllm_data_parallel_size
    num_wanted = len({*gpus_of["server"], *gpus_of["trainer"]})
    is_one_gpu = server_processes == settings.nproc_per_node == num_wanted == 1
    engine_share = settings.gpu_memory_utilization
    if not is_one_gpu or engine_share > _MAX_SHARE_ON_ONE_GPU:
        finding = (
            f"both terminals would use GPU {', '.join(shared)} (CUDA_VISIBLE_DEVICES is one list "
            "for both)"
        )
        return warn("gpu split", finding, use_profile)
    finding = (
        f"both terminals share GPU {shared[0]}, the trainer takes up to "
        f"{settings.trainer_memory:g} of it"
    )
    uncounted = _UNCOUNTED_MIB / total if total else 0.0
    if settings.sleep:
        engine_share = _ASLEEP_MIB / total if total else 0.0
        finding += " while the engine sleeps (HANABI_SLEEP=1)"
    rest = math.floor(100 * (1 - engine_share - uncounted)) / 100
    if settings.sleep and settings.trainer_memory > rest:
        finding += (
            f": a sleeping engine ({_ASLEEP_MIB / 1024:g} GiB), the trainer's CUDA context and the "
            f"driver ({_UNCOUNTED_MIB / 1024:g} GiB) leave only {rest:g}"
        )
        return warn("gpu split", finding, f"export HANABI_TRAINER_MEMORY={rest:g}")
    if settings.trainer_memory > rest:
        finding += (
            f": a restarted engine may not get its {engine_share:g}, because neither share "
            f"includes the trainer's CUDA context and the driver ({_UNCOUNTED_MIB / 1024:g} GiB)"
        )
        return warn("gpu split", finding, f"export HANABI_TRAINER_MEMORY={rest:g}")
    return ok("gpu split", finding)


def _check_sizes(name: str, sizes: str, needed: int, gpus: Sequence[str], fitting: str) -> Check:
    """Compare the number of GPUs that a terminal's sizes need with those that it has.

    Args:
        name: Name of the check.
        sizes: The settings that determine how many are needed.
        needed: That number.
        gpus: The terminal's GPUs.
        fitting: What to type if they do not fit: the size that does.
    """
    if needed > len(gpus):
        listed = ",".join(gpus)
        finding = f"{sizes} needs {needed} GPUs, but the terminal has {len(gpus)} ({listed})"
        return fail(name, finding, fitting)
    if needed < len(gpus):
        finding = f"{sizes} uses {needed} of {len(gpus)} GPUs; the others stay idle"
        return warn(name, finding, fitting)
    return ok(name, f"{sizes} fits {len(gpus)}")


def _check_heads(context: Context, num_gpus: int) -> Iterator[Check]:
    """Check that the GPUs of a copy divide the model's attention heads, as vLLM requires.

    Args:
        context: What is checked.
        num_gpus: GPUs that the server uses.
    """
    parallel = context.settings.vllm_tensor_parallel_size
    heads = text_config_of(context.config).get("num_attention_heads") or 0
    if heads % parallel == 0:
        return
    fitting = next(
        size for size in range(parallel - 1, 0, -1) if heads % size == 0 and num_gpus % size == 0
    )
    finding = (
        f"VLLM_TENSOR_PARALLEL_SIZE={parallel} does not divide the {heads} attention heads of "
        f"{context.settings.model}: the engine would not start"
    )
    remedy = (
        f"export VLLM_TENSOR_PARALLEL_SIZE={fitting} VLLM_DATA_PARALLEL_SIZE={num_gpus // fitting}"
    )
    yield fail("server gpus", finding, remedy)


def _check_free_memory(context: Context, gpus: Sequence[Gpu]) -> Check:
    """Compare the engine's share with the free memory of the fullest of its GPUs."""
    if not gpus:
        return skip("gpu memory", "nvidia-smi does not report it")
    share = context.settings.gpu_memory_utilization
    fullest = min(gpus, key=lambda gpu: gpu.free / gpu.total)
    free_share = fullest.free / fullest.total
    finding = (
        f"GPU {fullest.number} has {fullest.free / 1024:.1f} of {fullest.total / 1024:.1f} GiB "
        f"free; the engine requests {share:g} of it (HANABI_GPU_MEMORY_UTILIZATION)"
    )
    if free_share >= share or context.server_is_up:
        return ok("gpu memory", finding)
    smaller_share = int(100 * free_share) / 100
    remedy = f"nvidia-smi\nexport HANABI_GPU_MEMORY_UTILIZATION={smaller_share:g}"
    return fail("gpu memory", finding, remedy)


def _gpus_of(context: Context, terminal: Terminal, gpus: Sequence[Gpu]) -> list[str]:
    """Return the GPUs of a terminal; by default, its script takes half of the machine.

    Returns:
        Numbers or UUIDs; empty if the script is not in this folder.

    Raises:
        SettingsError: One list is too short for both terminals.
    """
    share = gpu_share(context.loaded, terminal)
    if share is not None:
        return [*share.names, *share.idle]
    script = Path(ROLLOUT_SCRIPT if terminal == "server" else TRAIN_SCRIPT)
    if not script.is_file():
        return []
    numbers = [gpu.number for gpu in gpus]
    half = len(numbers) // 2
    if not half:
        return numbers
    return numbers[:half] if terminal == "server" else numbers[half:]


def with_sizes_of_scripts(context: Context, gpus: Sequence[Gpu]) -> Context:
    """Return the context with the sizes that the scripts set if none are given.

    The defaults are for 8 GPUs, and the scripts adapt them to the machine.

    Args:
        context: What is checked.
        gpus: The GPUs of the machine.
    """
    try:
        server_gpus = _gpus_of(context, "server", gpus)
        trainer_gpus = _gpus_of(context, "trainer", gpus)
    except SettingsError:
        # `_check_split` reports what is wrong.
        return context
    if len(gpus) < _LEAST_SPLIT or not server_gpus or not trainer_gpus:
        return context
    sizes = {
        "vllm_data_parallel_size": _size(
            context,
            "server",
            "vllm_data_parallel_size",
            server_gpus,
            "vllm_tensor_parallel_size",
        ),
        "nproc_per_node": _size(context, "trainer", "nproc_per_node", trainer_gpus),
    }
    loaded = replace(context.loaded, settings=context.settings.model_copy(update=sizes))
    return replace(context, loaded=loaded)


def _size(
    context: Context, terminal: Terminal, field: str, gpus: Sequence[str], *unless_given: str
) -> int:
    """Return a size of a terminal; by default, its script sets it to the number of its GPUs.

    The script sets none if the terminal's GPUs were given.

    Args:
        context: What is checked.
        terminal: The terminal.
        field: The size's field in the settings.
        gpus: The terminal's GPUs.
        unless_given: Fields that, if given, keep the script from setting the size.
    """
    origins = context.loaded.origins
    is_default = all(origins[name].startswith("default") for name in (field, *unless_given))
    is_by_script = gpu_share(context.loaded, terminal) is None
    if is_default and is_by_script:
        return len(gpus)
    return int(getattr(context.settings, field))
