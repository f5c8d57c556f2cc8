"""The real CUDA packages on a machine without a GPU: their imports, and the engine's configuration.

    bash tools/gpu/stubs.sh                     # installs them, then runs this file there

NVML and the driver are stub libraries (`tools/gpu/stubs/`) that pretend to have some H100s. Our own
code makes the configuration for nodes with 1, 2, 4 or 8 GPUs and for MIG slices from their
profiles, each in a separate process, and the result is compared with the expected one. Nothing is
computed.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from gpu.look import engine_library
from gpu.pack import ENGINE_FOR_CUDA, LEFT_OUT, matches_any
from gpu.random_model import ARCHITECTURES

ROOT = Path(__file__).parents[2]
MODEL = "qwen3-4b"
"""A key of `random_model.ARCHITECTURES`; its weights are a sparse file."""
STUB_GPUS = "STUB_GPUS"
"""Environment variable: the number of GPUs that the NVML stub lists."""
_SECONDS = 900
"""Time limit of a process, for a busy machine."""
_IMPORTS = "imports"
_PACKED = "imports of what pack.py packs"
_ANSWER = "answer: "
"""Prefix of a line with an answer, since libraries print other lines."""
_NO_TOOLKIT = "/nonexistent"
"""A path without nvcc, whatever this machine has on its PATH; see `engine.nvcc_release`."""
_PLAYERS = 2
_GUESTS = 4
"""Slots for guest adapters, `engine.NUM_PARTNERS`."""

MODULES = (
    "vllm._C_stable_libtorch",
    "vllm.vllm_flash_attn.flash_attn_interface",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.worker.gpu.lora_utils",
    "vllm.v1.worker.gpu.sample.sampler",
    "vllm.v1.worker.gpu.warmup",
    "vllm.lora.punica_wrapper.punica_gpu",
    "vllm.lora.ops.triton_ops.lora_expand_op",
    "vllm.lora.ops.triton_ops.lora_shrink_op",
    "vllm.model_executor.models.qwen3",
    "vllm.model_executor.warmup.kernel_warmup",
    "vllm.v1.engine.async_llm",
    "vllm.v1.executor.multiproc_executor",
)
"""What an engine imports only on a GPU, plus what it imports on both."""
KEPT_LIBRARIES = (
    "vllm/_C_stable_libtorch.abi3.so",
    "vllm/cumem_allocator.abi3.so",
    "vllm/fs_io_C.abi3.so",
    "vllm/spinloop.abi3.so",
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
)
"""vLLM's compiled libraries that `pack.py` does not leave out."""
LEFT_AWAY = (
    "fastsafetensors",
    "flashinfer",
    "humming",
    "instanttensor",
    "nvtx",
    "quack",
    "tilelang",
)
"""Packages that the engine's metadata requires but a dense model on Hopper does not need.

A machine that gets its packages in parts (`pack.py`) need not have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """The parts of an engine's configuration that are compared."""

    data_parallel: int
    tensor_parallel: int
    balanced_inside: bool
    """Whether one of our processes gives requests to all replicas, without separate ports."""
    batched_tokens: int
    """Prompt tokens of one step."""
    second_runner: bool
    """Whether vLLM's Model Runner V2 is used."""
    lacks: tuple[str, ...]
    """Features that we use and that runner lacks."""
    head: str
    """Number format of the output head."""
    attention: str
    """The kernels of attention."""
    logprobs: str
    lora_targets: tuple[str, ...]
    max_loras: int
    executor: str
    """How an engine core computes: "uni" in its own process, "mp" in worker processes."""
    graphs: str
    """Which CUDA graphs are recorded, and whether also for batches without adapters."""
    graph_sizes: int
    """Number of batch sizes for which graphs are recorded."""
    largest_graph: int
    flashinfer: tuple[str, ...]
    """Uses of FlashInfer, which compiles kernels with nvcc."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A machine, the settings for it, and what the engine's configuration must be."""

    name: str
    gpus: int
    profile: str
    data_parallel: int = 1
    tensor_parallel: int = 1
    overlap: int = 0
    """HANABI_OVERLAP of the profile."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to the profile."""
    options: tuple[str, ...] = ()
    """vLLM options, as typed after the server's script."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Configured` that differ from the default."""
    error: str = ""
    """The exception expected instead of a configuration."""

    def expected(self) -> Configured:
        """Return the configuration that this machine must get."""
        default = Configured(
            data_parallel=self.data_parallel,
            tensor_parallel=self.tensor_parallel,
            balanced_inside=True,
            batched_tokens=8192,
            second_runner=True,
            lacks=(),
            head="float32",
            attention="FLASH_ATTN",
            logprobs="processed_logprobs",
            lora_targets=(
                "down_proj",
                "gate_proj",
                "k_proj",
                "o_proj",
                "q_proj",
                "up_proj",
                "v_proj",
            ),
            max_loras=_PLAYERS * (1 + self.overlap) + _GUESTS,
            # Separate workers only if several GPUs compute together.
            executor="uni" if self.tensor_parallel == 1 else "mp",
            graphs="FULL_AND_PIECEWISE, with and without adapters",
            # 1, 2, 4, then steps of 8 to 256 and of 16 to 512, which is twice HANABI_MAX_NUM_SEQS.
            graph_sizes=51,
            largest_graph=512,
            flashinfer=(),
        )
        return replace(default, **self.changes)


def _slice(number: int) -> dict[str, str]:
    """Return the variables that give the server a slice of the stub's first GPU."""
    other = 1 - number
    return {
        "CUDA_VISIBLE_DEVICES_SERVER": f"MIG-{number}",
        "CUDA_VISIBLE_DEVICES_TRAINER": f"MIG-{other}",
    }


CASES = (
    Case(name="1 GPU, shared", gpus=1, profile="gpu-1"),
    Case(name="2 GPUs", gpus=2, profile="gpu-2", overlap=1),
    Case(name="4 GPUs", gpus=4, profile="gpu-4", data_parallel=2, overlap=1),
    Case(name="8 GPUs", gpus=8, profile="gpu-8", data_parallel=4, overlap=1),
    Case(
        name="8 GPUs, one replica on four",
        gpus=8,
        profile="gpu-8",
        tensor_parallel=4,
        overlap=1,
        settings={"VLLM_TENSOR_PARALLEL_SIZE": "4", "VLLM_DATA_PARALLEL_SIZE": "1"},
    ),
    Case(
        name="8 GPUs, options of vLLM",
        gpus=8,
        profile="gpu-8",
        data_parallel=4,
        overlap=1,
        settings={"HANABI_MAX_NUM_SEQS": "64", "HANABI_DTYPE": "float32"},
        options=("--max-num-batched-tokens", "4096"),
        # float32 needs a different attention kernel, since FlashAttention supports only 16 bits.
        changes={
            "batched_tokens": 4096,
            "graph_sizes": 19,
            "largest_graph": 128,
            "attention": "TRITON_ATTN",
        },
    ),
    Case(name="MIG, first slice of its GPU", gpus=1, profile="mig", settings=_slice(0)),
    Case(
        name="MIG, second slice of its GPU",
        gpus=1,
        profile="mig",
        settings=_slice(1),
        # vLLM 0.32 asks NVML for a GPU with the slice's number; on a node, the doctor fails first.
        error="NVMLError_InvalidArgument",
    ),
    # If there is such a GPU, the doctor warns.
    Case(name="MIG, second slice, 2 GPUs", gpus=2, profile="mig", settings=_slice(1)),
)


def save_sparse_model(name: str, folder: Path) -> None:
    """Write a model folder whose weights have names and shapes but take no disk space.

    Args:
        name: A key of `ARCHITECTURES`.
        folder: The folder to write.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
    from hanabi_grpo.envs.hanabi.rules import make_spec
    from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer

    config = AutoConfig.for_model(**ARCHITECTURES[name])
    config.architectures = ["Qwen3ForCausalLM"]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    config.dtype = torch.bfloat16
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, parameter in model.named_parameters():
        start = end
        end += parameter.numel() * parameter.element_size()
        shape = list(parameter.shape)
        header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    config.save_pretrained(folder)
    build_tokenizer(compact_vocabulary(make_spec("laptop"))).save_pretrained(folder)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(file.tell() + end)


def _pretend(num_visible: int) -> None:
    """Let torch report GPUs that do not exist; call it before importing vLLM."""
    import torch

    for owner in (torch.cuda, torch.accelerator):
        owner.device_count = lambda: num_visible
    torch.cuda._device_count_nvml = lambda: num_visible
    torch.cuda.is_available = lambda: True


def configure(case: Case, model: str) -> Configured:
    """Return the engine's configuration on a machine, made as the server makes it.

    Args:
        case: The machine; the stubs must be on LD_LIBRARY_PATH, and `prepare_environment` called.
        model: A model folder.
    """
    profile = str(ROOT / "tools" / "profiles" / f"{case.profile}.env")
    os.environ.update({STUB_GPUS: str(case.gpus), "HANABI_PROFILE": profile, "MODEL": model})
    os.environ.update(case.settings)

    from hanabi_grpo.commands.console import set_environ
    from hanabi_grpo.server.adapter_files import linear_shapes
    from hanabi_grpo.server.engine import engine_args, engine_options
    from hanabi_grpo.settings import load_settings

    loaded = load_settings()
    settings = loaded.settings
    if settings.device != "gpu":
        raise RuntimeError(f"the settings are for a {settings.device}: {settings.device_reason}")
    set_environ(loaded, "server")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    _pretend(len(visible))

    from vllm.platforms import current_platform

    # Imports before the fork have queried the first GPU of a different case.
    current_platform.get_device_capability.cache_clear()
    options = engine_options(settings, model, linear_shapes(Path(model)))
    return _configured(engine_args(options, case.options).create_engine_config())


def _configured(config: Any) -> Configured:
    """Return the compared parts of vLLM's configuration."""
    parallel = config.parallel_config
    compilation = config.compilation_config
    sizes = compilation.cudagraph_capture_sizes or []
    graphs = compilation.cudagraph_mode.name
    if compilation.cudagraph_specialize_lora:
        graphs += ", with and without adapters"
    flashinfer = []
    if config.kernel_config.enable_flashinfer_autotune:
        flashinfer.append("autotune")
    if compilation.pass_config.fuse_allreduce_rms:
        flashinfer.append("fused all-reduce")
    if os.environ["VLLM_USE_FLASHINFER_SAMPLER"] != "0":
        flashinfer.append("sampler")
    return Configured(
        data_parallel=parallel.data_parallel_size,
        tensor_parallel=parallel.tensor_parallel_size,
        balanced_inside=not parallel.data_parallel_external_lb
        and not parallel.data_parallel_hybrid_lb,
        batched_tokens=config.scheduler_config.max_num_batched_tokens,
        second_runner=config.use_v2_model_runner,
        lacks=tuple(config._get_v2_model_runner_unsupported_features()),
        head=str(config.model_config.head_dtype).removeprefix("torch."),
        attention=_attention(config),
        logprobs=config.model_config.logprobs_mode,
        lora_targets=tuple(config.lora_config.target_modules),
        max_loras=config.lora_config.max_loras,
        executor=parallel.distributed_executor_backend,
        graphs=graphs,
        graph_sizes=len(sizes),
        largest_graph=max(sizes, default=0),
        flashinfer=tuple(flashinfer),
    )


def _attention(config: Any) -> str:
    """Return the name of the attention that vLLM chooses for a model."""
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.selector import get_attn_backend

    model = config.model_config
    with set_current_vllm_config(config):
        return get_attn_backend(model.get_head_size(), model.dtype, "auto").get_name()


def _hide_what_is_not_packed() -> None:
    """Hide `LEFT_AWAY` and what `pack.py` leaves out, as if they were not installed."""
    site = str(metadata.distribution(ENGINE_FOR_CUDA).locate_file("")) + os.sep

    class Finder(PathFinder):
        @classmethod
        def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
            if fullname.partition(".")[0] in LEFT_AWAY:
                return None
            spec = super().find_spec(fullname, path, target)
            file = (spec and spec.origin) or ""
            if file.startswith(site) and matches_any(file.removeprefix(site), LEFT_OUT):
                return None
            return spec

    sys.meta_path[sys.meta_path.index(PathFinder)] = Finder


def _compare_with_the_wheel() -> dict[str, str]:
    """Return where `look.py` and `pack.py` are wrong about vLLM's files."""
    problems = {}
    library = engine_library()
    if library != "ok":
        problems["look.py"] = f"it would report on a healthy machine: {library}"
    files = [str(path) for path in metadata.files(ENGINE_FOR_CUDA) or ()]
    for pattern in LEFT_OUT:
        is_of_vllm = pattern.startswith("vllm/")
        if is_of_vllm and not any(matches_any(file, [pattern]) for file in files):
            problems[f"LEFT_OUT of pack.py, {pattern}"] = "matches no file of the wheel"
    libraries = [file for file in files if ".so" in Path(file).suffixes]
    kept = sorted(file for file in libraries if not matches_any(file, LEFT_OUT))
    if kept != sorted(KEPT_LIBRARIES):
        problems["pack.py"] = f"packs {kept}, expected {sorted(KEPT_LIBRARIES)}"
    return problems


def libraries_of_two_packages() -> dict[str, str]:
    """Return the packages of this environment that install the same shared libraries.

    For such packages, an import gets the file written last, which differs between installations.

    Returns:
        The packages, and how many files they share.
    """
    owners: dict[str, set[str]] = {}
    for distribution in metadata.distributions():
        for file in distribution.files or ():
            if ".so" in file.suffixes:
                owners.setdefault(str(file), set()).add(distribution.name)
    shared = Counter(" and ".join(sorted(names)) for names in owners.values() if len(names) > 1)
    return {names: f"both install {count} shared libraries" for names, count in shared.items()}


def import_all(*, packed: bool) -> dict[str, str]:
    """Return the modules of `MODULES` that cannot be imported, with the reason.

    Args:
        packed: As on a machine that gets its packages in parts; also checks what `look.py` and
            `pack.py` assume about the wheel.
    """
    failed: dict[str, str] = {}
    if packed:
        failed |= _compare_with_the_wheel()
        _hide_what_is_not_packed()
    else:
        failed |= libraries_of_two_packages()
    _pretend(1)
    for name in MODULES:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


def compare(expected: Configured, actual: Mapping[str, Any]) -> list[str]:
    """Return where a configuration differs, a line for each field.

    Args:
        expected: The expected configuration.
        actual: The actual one, converted by `asdict` and JSON.
    """
    differences = []
    wanted = json.loads(json.dumps(asdict(expected)))
    for name, value in wanted.items():
        if actual[name] != value:
            differences.append(f"{name} is {actual[name]}, expected {value}")
    return differences


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one check."""

    name: str
    summary: str
    problems: Sequence[str]
    seconds: float


def _configure_apart(case: Case, model: str) -> dict[str, Any]:
    """Return the configuration of a case as JSON, or the error, from a forked process.

    The process inherits the modules imported here.
    """
    began = time.monotonic()
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reader)
        try:
            answer: dict[str, Any] = {"configured": asdict(configure(case, model))}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        with os.fdopen(writer, "w") as file:
            json.dump(answer, file)
        # Skip the cleanup of what belongs to the parent process.
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    os.waitpid(process, 0)
    answer = json.loads(text) if text else {"error": "the process died without an answer"}
    return {**answer, "name": case.name, "seconds": time.monotonic() - began}


def check_all(model: str) -> None:
    """Import all modules, configure all cases, and print a JSON answer for each.

    Each case runs in a process that inherits the modules imported here.

    Args:
        model: A model folder.
    """
    from hanabi_grpo.server.assembly import prepare_environment

    began = time.monotonic()
    os.environ["CUDA_HOME"] = _NO_TOOLKIT
    prepare_environment(on_cpu=False)
    failed = import_all(packed=False)
    _print_answer({"name": _IMPORTS, "failed": failed, "seconds": time.monotonic() - began})
    for case in CASES:
        _print_answer(_configure_apart(case, model))


def check_packed() -> None:
    """Import all modules as on a machine that gets its packages in parts; print the answer."""
    began = time.monotonic()
    failed = import_all(packed=True)
    _print_answer({"name": _PACKED, "failed": failed, "seconds": time.monotonic() - began})


def _print_answer(answer: Mapping[str, Any]) -> None:
    print(_ANSWER + json.dumps(answer), flush=True)


def _answers(*arguments: str) -> dict[str, dict[str, Any]]:
    """Return the answers of a process that runs this file, by the name of each check.

    Raises:
        RuntimeError: The exit code is not 0.
    """
    process = subprocess.run(
        [sys.executable, "-m", "gpu.cuda_packages", *arguments],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {process.stderr[-3000:]}")
    answers = {}
    for line in process.stdout.splitlines():
        if line.startswith(_ANSWER):
            answer = json.loads(line.removeprefix(_ANSWER))
            answers[answer["name"]] = answer
    return answers


def _judge_case(case: Case, answer: Mapping[str, Any]) -> Result:
    seconds = answer["seconds"]
    error = answer.get("error", "")
    if case.error:
        problem = f"expected {case.error}, got {error or answer.get('configured')}"
        return Result(
            name=case.name,
            summary=f"{case.error}, as expected",
            problems=[] if error.startswith(case.error) else [problem],
            seconds=seconds,
        )
    if error:
        return Result(name=case.name, summary="", problems=[error], seconds=seconds)
    actual = answer["configured"]
    summary = (
        f"DP {actual['data_parallel']} × TP {actual['tensor_parallel']}, "
        f"{actual['batched_tokens']} batched tokens, "
        f"runner {'V2' if actual['second_runner'] else 'V1'}, head {actual['head']}, "
        f"{actual['attention']}, {actual['graph_sizes']} graph sizes to {actual['largest_graph']}, "
        f"{actual['max_loras']} adapters"
    )
    problems = compare(case.expected(), actual)
    return Result(name=case.name, summary=summary, problems=problems, seconds=seconds)


def _judge_imports(name: str, answer: Mapping[str, Any]) -> Result:
    return Result(
        name=name,
        summary=f"{len(MODULES)} modules: worker, runner V2, FlashAttention, LoRA kernels, warm-up",
        problems=[f"{module}: {reason}" for module, reason in answer["failed"].items()],
        seconds=answer["seconds"],
    )


def main(arguments: Sequence[str]) -> int:
    """Run all checks, or some of them in a child process; return the exit code."""
    if arguments[0] == _PACKED:
        check_packed()
        return 0
    if arguments[0] == _IMPORTS:
        check_all(arguments[1])
        return 0
    folder = Path(arguments[0])
    if not (folder / "model.safetensors").is_file():
        save_sparse_model(MODEL, folder)
    answers = _answers(_IMPORTS, str(folder)) | _answers(_PACKED)
    results = [_judge_imports(name, answers[name]) for name in (_IMPORTS, _PACKED)]
    for case in CASES:
        results.append(_judge_case(case, answers[case.name]))
    print("| check | finding | seconds | |\n|---|---|---|---|")
    for result in results:
        verdict = "differs" if result.problems else "ok"
        print(f"| {result.name} | {result.summary} | {result.seconds:.0f} | {verdict} |")
    for result in results:
        for problem in result.problems:
            print(f"{result.name}: {problem}", file=sys.stderr)
    return int(any(result.problems for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
