"""Rehearse a training step of a real size without a GPU: its devices and its memory.

    python -m gpu.rehearsal NAME CONVERSATIONSxTOKENS...      # with tools/ on PYTHONPATH

Restoring an optimizer, the trainer's forward and backward pass, and its mismatch check run under
torch's FakeTensorMode on device "cuda": every tensor has a shape, a dtype and a device, but no
memory. An operation on tensors of different devices raises, as it would on a GPU. The bytes of all
live storages are counted and compared with the doctor's estimate (`commands/doctor/memory.py`).

Nothing is computed, so the rehearsal does not cover kernels, their workspaces and their speed, or
the fragmentation of torch's allocator. It needs torch's CPU build and g++, which compiles
`pretended_cuda.cpp` in a few seconds.
"""

import contextlib
import ctypes
import importlib.util
import json
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from gpu.random_model import ARCHITECTURES

if TYPE_CHECKING:
    import torch

RANK = 16
_ALPHA = 32
_PLAYER = "player_0"
_TURN_TOKENS = 256
_REPLY_TOKENS = 100
"""Tokens per turn, as in `gpu.trainer`."""
_SOURCE = Path(__file__).parent / "pretended_cuda.cpp"
_VERSION = 5
"""Version of the adapters in the mismatch check."""
_VALUE = 1.0
"""The value of every number read from a tensor."""
_LIMIT = 1 << 40
"""More tokens than any rehearsal has, so that all rows are one micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The memory of one step, in bytes of live storages on the device."""

    model: str
    conversations: int
    tokens: int
    """Tokens per conversation."""
    replies: int
    """Tokens of all replies."""
    held: int
    """Base model, adapters, their gradients and the optimizer's moments."""
    peak: int
    """Peak of the forward and backward pass, including `held`."""
    predicted: int
    """The doctor's estimate of the peak, without its share for a process's libraries."""
    largest: int
    """Largest single storage that the pass made."""
    largest_shape: str
    check_tokens: int
    """Tokens of the mismatch check's sample, replies and prompts."""
    check_peak: int
    """Peak of the mismatch check, including `held`."""
    check_largest: int
    """Largest single storage that the check made."""
    check_largest_shape: str

    @property
    def ratio(self) -> float:
        """The doctor's estimate over the counted peak."""
        return self.predicted / self.peak


def load_pretended_cuda() -> None:
    """Give torch a CUDA device that stores nothing; call this before importing torch.

    Raises:
        RuntimeError: torch is already imported, or its build is for real GPUs.
    """
    if "torch" in sys.modules:
        raise RuntimeError("torch is already imported; call this first, in a new process.")
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent
    if (folder / "lib/libtorch_cuda.so").exists():
        raise RuntimeError("this torch is built for real GPUs; use the CPU build for a rehearsal.")
    with tempfile.TemporaryDirectory() as target:
        library = Path(target) / "pretended_cuda.so"
        command = [
            "g++",
            "-std=c++20",
            "-shared",
            "-fPIC",
            f"-I{folder / 'include'}",
            f"-I{folder / 'include/torch/csrc/api/include'}",
            str(_SOURCE),
            "-o",
            str(library),
            f"-L{folder / 'lib'}",
            f"-Wl,-rpath,{folder / 'lib'}",
            "-lc10",
            "-ltorch_cpu",
        ]
        subprocess.run(command, check=True, capture_output=True, text=True)
        # The file may be deleted afterwards, since the process has it open.
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def rehearse(name: str, conversations: int, tokens: int) -> Rehearsal:
    """Run one step's forward and backward pass, with gradient checkpointing, and a restore.

    Args:
        name: A key of `random_model.ARCHITECTURES`.
        conversations: Rows of the micro-batch.
        tokens: Tokens per row; a multiple of a turn's 256.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from bench.training_rows import learn, made_rows

    turns = tokens // _TURN_TOKENS
    rows = made_rows(
        num_games=conversations,
        turns=turns,
        prompt=_TURN_TOKENS - _REPLY_TOKENS,
        reply=_REPLY_TOKENS,
        seed=0,
    )
    replies = conversations * turns * _REPLY_TOKENS
    with _gpu_choices(), FakeTensorMode(), counter()(replies) as live:
        model = _model(name)
        parameters = {key: value for key, value in model.named_parameters() if value.requires_grad}
        # Gradients are kept from step to step.
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        _restore(parameters)
        held = live.bytes
        live.begin()
        with torch.autocast("cuda", torch.bfloat16):
            learn(model, rows, _LIMIT)
        _check_devices(parameters)
        peak, largest, largest_shape = live.peak, live.largest, live.largest_shape
        check_tokens = _check_policies(model, live)
        return Rehearsal(
            model=name,
            conversations=conversations,
            tokens=turns * _TURN_TOKENS,
            replies=replies,
            held=held,
            peak=peak,
            predicted=round(_predicted(name, model, conversations * turns * _TURN_TOKENS, replies)),
            largest=largest,
            largest_shape=largest_shape,
            check_tokens=check_tokens,
            check_peak=live.peak,
            check_largest=live.largest,
            check_largest_shape=live.largest_shape,
        )


def _model(name: str) -> Any:
    """Return a model with one player's adapter and gradient checkpointing."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from hanabi_grpo.training.model.adapters import add_adapters
    from hanabi_grpo.training.model.forward import join_lora_products

    config = AutoConfig.for_model(**ARCHITECTURES[name])
    # Modules are on the device from the start, and fake tensors cannot be swapped.
    stay = mock.patch.object(torch.nn.Module, "to", lambda module, *_, **__: module)
    with torch.device("cuda"), stay:
        base = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
        model: Any = add_adapters(base, [_PLAYER], rank=RANK, alpha=_ALPHA, seed=0)
    join_lora_products(model)
    model.train().enable_input_require_grads()
    # The random state is not kept: no layer has dropout, and the device has no generator.
    model.gradient_checkpointing_enable({"use_reentrant": True, "preserve_rng_state": False})
    return model


def _restore(parameters: "dict[str, torch.nn.Parameter]") -> None:
    """Restore an optimizer from a checkpoint, as a resumed run does, and make an update."""
    import torch

    from hanabi_grpo.training.checkpoint import OptimizerState

    optimizer = torch.optim.AdamW(list(parameters.values()), fused=True)
    saved = {}
    for name, parameter in parameters.items():
        saved[f"{name}|step"] = torch.ones(())
        for moment in ("exp_avg", "exp_avg_sq"):
            saved[f"{name}|{moment}"] = torch.zeros(parameter.shape)
    OptimizerState(parameters, optimizer).restore(saved)
    for name, parameter in parameters.items():
        for key, value in optimizer.state[parameter].items():
            if value.device != parameter.device:
                raise RuntimeError(
                    f"{name}: {key} is on {value.device} after a restore, but the parameter is on "
                    f"{parameter.device}."
                )
    optimizer.step()
    # A real run also keeps the optimizer.
    _kept.append(optimizer)


_kept: list[Any] = []
"""Optimizers, whose moments are held for the whole run."""


def _check_policies(model: Any, live: Any) -> int:
    """Let the mismatch check compare its largest sample with all suspects.

    Args:
        model: The model from `_model`.
        live: The counter, whose peak is reset.

    Returns:
        Tokens of the sample.
    """
    import torch

    from bench.training_rows import made_rows
    from hanabi_grpo.training import mismatch
    from hanabi_grpo.training import policy as policies
    from hanabi_grpo.training.check_sample import ALL_TOKENS
    from hanabi_grpo.training.micro_batch import collate

    turns = ALL_TOKENS // _TURN_TOKENS
    sample = made_rows(
        num_games=1,
        turns=turns,
        prompt=_TURN_TOKENS - _REPLY_TOKENS,
        reply=_REPLY_TOKENS,
        seed=1,
    )
    num_replies = turns * _REPLY_TOKENS
    live.replies = num_replies
    live.begin()
    with (
        # Both test the model on small inputs and compare values, but fake tensors have none.
        mock.patch.object(policies, "share_prefixes", lambda _: True),
        mock.patch.object(policies, "computes_logits", lambda _: None),
    ):
        policy = policies.Policy(model, [_PLAYER], temperature=1.0, has_whole_weights=True)
    earlier = policies.EarlierVersions(model, behind=1)
    for version in (_VERSION - 1, _VERSION):
        earlier.keep(version)
    check = mismatch.MismatchCheck(
        policy,
        earlier,
        _OneProcess(),
        tolerance=1.0,
        dtype="bfloat16",
        is_relative=True,
        report=lambda *_, **__: None,
    )
    batch = collate(sample, _PLAYER, num_replies, 0, torch.device("cuda"))
    # This reads from values on the host which tokens differ, but fake tensors have none.
    with mock.patch.object(mismatch, "_different_tokens", lambda *_: set()):
        # The check suspects the base model and other adapters in turn; here is one adapter.
        check.check_games(
            mismatch.CheckedGames(
                samples={_PLAYER: batch},
                groups=[],
                num_dropped=0,
                version=_VERSION,
                sampled_by=_VERSION,
            ),
            {},
        )
    return turns * _TURN_TOKENS


class _OneProcess:
    """Stands in for accelerate: sums over processes, whose values are all 1."""

    @property
    def device(self) -> "torch.device":
        import torch

        return torch.device("cuda")

    def reduce(self, sums: "torch.Tensor") -> Any:
        num_players, num_sums = sums.shape
        values = [[_VALUE] * num_sums for _ in range(num_players)]
        return SimpleNamespace(tolist=lambda: values)


def _check_devices(parameters: "dict[str, torch.nn.Parameter]") -> None:
    for name, parameter in parameters.items():
        gradient = parameter.grad
        if gradient is None or gradient.device != parameter.device:
            where = None if gradient is None else gradient.device
            raise RuntimeError(f"{name}: the gradient is on {where}, not on {parameter.device}.")


def _predicted(name: str, model: Any, tokens: int, replies: int) -> float:
    """Return the doctor's estimate for the same step, see `memory.trainer_parts`."""
    from hanabi_grpo.commands.doctor.memory import ModelSizes, batch_parts

    sizes = ModelSizes.from_config(ARCHITECTURES[name])
    assert sizes is not None
    parts = batch_parts(
        sizes, tokens, replies, bytes_per_number=2, rank=RANK, checkpointed=True, whole=False
    )
    adapter = sum(value.numel() for key, value in model.named_parameters() if "lora_" in key)
    base = sum(value.numel() for key, value in model.named_parameters() if "lora_" not in key)
    return 2.0 * base + 16.0 * adapter + sum(parts.values())


@contextlib.contextmanager
def _gpu_choices() -> Iterator[None]:
    """Let torch choose as on an H100: autocast is available, and attention uses these kernels.

    In 16 bits, flash attention, which supports grouped heads. In float32, the memory-efficient
    kernel, or with grouped heads the one that holds all scores.
    """
    import torch
    import torch.nn.functional as functional
    from torch.overrides import TorchFunctionMode
    from transformers import masking_utils

    class TensorsOfValues(TorchFunctionMode):
        """Makes tensors from values on the CPU first, since torch would access device memory."""

        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            options = dict(kwargs or {})
            if func is not torch.tensor:
                return func(*args, **options)
            device = options.pop("device", None)
            made = func(*args, **options, device="cpu")
            if device is None or torch.device(device).type == "cpu":
                return made
            return torch.empty(made.shape, dtype=made.dtype, device=device)

    real_attention = functional.scaled_dot_product_attention

    def attention(query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
        is_causal = options.get("is_causal", False)
        scale = options.get("scale")
        has_mask = bool(others) or options.get("attn_mask") is not None
        is_float32 = query.dtype == torch.float32
        if has_mask or (is_float32 and options.get("enable_gqa", False)):
            return real_attention(query, key, value, *others, **options)
        if is_float32:
            efficient = torch.ops.aten._scaled_dot_product_efficient_attention
            return efficient(query, key, value, None, False, 0.0, is_causal, scale=scale)[0]
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, 0.0, is_causal, False, scale=scale)[0]

    with (
        mock.patch.object(functional, "scaled_dot_product_attention", attention),
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "is_bf16_supported", lambda *_: True),
        mock.patch.object(torch.cuda, "synchronize", lambda *_: None),
        # Without values, transformers cannot see that no row is packed, and would make a mask.
        mock.patch.object(masking_utils, "find_packed_sequence_indices", lambda *_: None),
        TensorsOfValues(),
    ):
        yield


def counter() -> Callable[[int], Any]:
    """Return the class that counts live bytes; it cannot be defined before torch is imported."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    aten = torch.ops.aten

    class LiveBytes(TorchDispatchMode):
        """Counts the bytes of all storages on the device from the first operation on."""

        def __init__(self, replies: int) -> None:
            """Begin with nothing.

            Args:
                replies: Number of true values in the mask of reply tokens. Without values, shapes
                    that depend on the mask are unknown.
            """
            super().__init__()
            self.bytes = 0
            self.peak = 0
            self.largest = 0
            self.largest_shape = ""
            self.replies = replies
            self._known: set[int] = set()

        def begin(self) -> None:
            """Forget the peak so far."""
            self.peak = self.bytes
            self.largest = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            output = self._call(func, args, kwargs or {})
            for value in tree_leaves(output):
                if isinstance(value, torch.Tensor) and value.device.type == "cuda":
                    self._note(value)
            return output

        def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if func is aten._local_scalar_dense.default:
                return True if args[0].dtype == torch.bool else _VALUE
            if func is aten._unique2.default:
                # As if all numbers were different.
                return args[0].flatten(), args[0].new_empty(0), args[0].new_empty(0)
            if func is aten.index.Tensor:
                return func(args[0], self._numbered(args[1]))
            if func in (aten.masked_select.default, aten.masked_scatter_backward.default):
                size = args[2] if len(args) > 2 else [self.replies]
                return args[0].new_empty(size)
            return func(*args, **kwargs)

        def _numbered(self, indices: Any) -> list[Any]:
            """Return the indices, with masks replaced by the positions of their true values."""
            numbered: list[Any] = []
            for index in indices:
                if index is None or index.dtype != torch.bool:
                    numbered.append(index)
                    continue
                shape = (self.replies,)
                numbered += [index.new_empty(shape, dtype=torch.long) for _ in index.shape]
            return numbered

        def _note(self, tensor: Any) -> None:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._known:
                return
            size = storage.nbytes()
            self._known.add(key)
            weakref.finalize(storage, self._forget, key, size)
            self.bytes += size
            self.peak = max(self.peak, self.bytes)
            if size > self.largest:
                self.largest = size
                self.largest_shape = f"{list(tensor.shape)} {tensor.dtype}"

        def _forget(self, key: int, size: int) -> None:
            self._known.discard(key)
            self.bytes -= size

    return LiveBytes


def main(arguments: list[str]) -> None:
    """Rehearse steps and print their memory, one JSON object per line."""
    name, *sizes = arguments
    load_pretended_cuda()
    for size in sizes:
        conversations, tokens = size.split("x")
        step = rehearse(name, int(conversations), int(tokens))
        print(json.dumps({**asdict(step), "ratio": round(step.ratio, 3)}))


if __name__ == "__main__":
    main(sys.argv[1:])
