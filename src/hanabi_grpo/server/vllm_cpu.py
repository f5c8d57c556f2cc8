"""Our replacements in vLLM's CPU build (0.32): LoRA, a finite KV cache, seeds, experts.

Each replaces one stock method; `tests/conformance/test_vllm_cpu.py` compares it with the stock
method and fails if a new vLLM version works differently.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from vllm import _custom_ops
from vllm.lora.model_manager import LoRAModelManager
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.model_executor.layers.fused_moe import FusedMoEConfig, unquantized_fused_moe_method
from vllm.platforms import CpuArchEnum, current_platform
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler, apply_top_k_top_p
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from hanabi_grpo.server.vllm_filter import whole_logprobs

stock_add_lora_linear = PunicaWrapperCPU.add_lora_linear
stock_update_metadata = PunicaWrapperCPU.update_metadata
stock_activate_adapter = LoRAModelManager.activate_adapter
stock_matmul = _custom_ops.onednn_mm
stock_sample = TopKTopPSampler.forward_cpu
stock_add_request = InputBatch.add_request
stock_select_experts = unquantized_fused_moe_method.select_unquantized_moe_backend
_stock_update = CPUAttentionBackendImpl.do_kv_cache_update

_FEW_ROWS = 128
"""Rows up to which one product with block-diagonal zeros is faster than one per slice."""
_MAX_SLOT_SETS = 8
"""Sets of slots whose joined weights are cached; a batch's set depends on the players to act."""
_CACHED_SHAPES = 32
"""Numbers of rows for which oneDNN caches its preparation, as for vLLM's own layers."""
_IS_X86 = current_platform.get_cpu_architecture() is CpuArchEnum.X86
_OFFSET_PER_DRAW = 4
"""The amount that vLLM subtracts from a generator's offset to take back one draw."""
_WORD = 2**64 - 1
_UNUSED_BITS = 33
"""vLLM's kernel takes seeds of 31 bits."""


def install() -> None:
    """Replace the stock methods with ours."""
    LoRAModelManager.activate_adapter = activate_adapter
    PunicaWrapperCPU.rows = _Rows((), None)
    PunicaWrapperCPU.update_metadata = update_metadata
    PunicaWrapperCPU.add_lora_linear = add_lora_linear
    CPUAttentionBackendImpl.do_kv_cache_update = _update
    InputBatch.add_request = add_request
    TopKTopPSampler.forward_cpu = sample
    _custom_ops.onednn_mm = matmul
    unquantized_fused_moe_method.select_unquantized_moe_backend = select_experts


def select_experts(moe_config: FusedMoEConfig) -> Any:
    """Choose the kernels for a mixture's experts as without adapters, which never cover them.

    With adapters vLLM chooses Triton kernels, which a CPU does not have.

    Args:
        moe_config: vLLM's description of the layer.
    """
    return stock_select_experts(replace(moe_config, is_lora_enabled=False))


def _update(
    self: CPUAttentionBackendImpl,
    layer: torch.nn.Module,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Replace non-finite values with zero before they enter the cache.

    The attention reads whole blocks and gives positions beyond a sequence's end a weight of zero.
    Zero times NaN is NaN, so the blocks of a sequence that overflowed would corrupt the next
    sequence that gets them, even one with a different adapter. The cached prefixes themselves are
    never shared: vLLM keys them by the adapter's name and path, and ours are never used twice. A
    sequence that overflowed still ends in non-finite logprobs, since its hidden states are left
    unchanged.
    """
    finite_key = torch.nan_to_num(key, nan=0.0, posinf=0.0, neginf=0.0)
    finite_value = torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
    _stock_update(self, layer, finite_key, finite_value, kv_cache, slot_mapping)


class SeedStream:
    """The random numbers of one request with a seed, in place of its `torch.Generator`.

    vLLM takes back draws for a partial prompt through the generator's offset. torch's CPU generator
    has no offset: it raises an error, which kills the engine core.

    The numbers are SplitMix64 (Steele, Lea and Flood 2014), the mixing function of vLLM's own
    kernel, at successive positions starting from the mixed seed.
    """

    __slots__ = ("_key", "_offset")

    def __init__(self, seed: int) -> None:
        """Start the stream of a seed from 0 to 2⁶⁴ - 1."""
        self._key: int = _mix(seed)
        self._offset = 0

    def get_offset(self) -> int:
        """Return the position in the stream, times `_OFFSET_PER_DRAW`."""
        return self._offset

    def set_offset(self, offset: int) -> None:
        """Go to a position in the stream."""
        self._offset = offset

    def advance(self) -> int:
        """Return the next number before it is mixed, see `draw_seeds`."""
        position = self._offset // _OFFSET_PER_DRAW
        self._offset += _OFFSET_PER_DRAW
        return (self._key + position) & _WORD


def draw_seeds(streams: Iterable[SeedStream]) -> torch.Tensor:
    """Return the next number of each stream, from 0 to 2³¹ - 1, as a tensor of int64."""
    # All at once: one by one they would take longer than sampling the tokens.
    numbers = np.array([stream.advance() for stream in streams], dtype=np.uint64)
    return torch.from_numpy((_mix(numbers) >> _UNUSED_BITS).astype(np.int64))


def _mix(value: Any) -> Any:
    """Return 64 bits that each depend on all bits of a number; works elementwise on an array."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _WORD
    return value ^ (value >> 31)


def add_request(self: InputBatch, request: CachedRequestState) -> int:
    """Add a request to the batch, as vLLM does; it keeps its seed when it leaves the batch.

    Returns:
        Its row.
    """
    if isinstance(request.generator, torch.Generator):
        request.generator = SeedStream(request.generator.initial_seed())
    row: int = stock_add_request(self, request)
    return row


def sample(
    self: TopKTopPSampler,
    logits: torch.Tensor,
    generators: dict[int, SeedStream],
    k: torch.Tensor | None,
    p: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Sample a token for each row, as vLLM does, with the seeds of those that have one.

    Args:
        self: vLLM's sampler.
        logits: [rows, vocabulary].
        generators: By row, of requests with a seed.
        k: [rows] top-k; None: no row has one.
        p: [rows] top-p; None: no row has one.

    Returns:
        The tokens, and vLLM's logits or logprobs, but of the whole distribution (`vllm_filter`).
    """
    whole = whole_logprobs(self, logits, k, p)
    if not generators:
        tokens, shown = stock_sample(self, logits, {}, k, p)
        return tokens, shown if whole is None else whole
    logits = apply_top_k_top_p(logits, k, p)
    shown = whole
    if shown is None and self.logprobs_mode == "processed_logits":
        shown = logits
    elif shown is None and self.logprobs_mode == "processed_logprobs":
        shown = logits.log_softmax(dim=-1, dtype=torch.float32)
    num_rows = len(logits)
    if len(generators) == num_rows:
        seeds = draw_seeds(generators[row] for row in range(num_rows))
    else:
        seeds = torch.randint(0, 2**31, (num_rows,), dtype=torch.long)
        seeds[list(generators)] = draw_seeds(generators.values())
    return torch.ops._C.fused_gumbel_argmax(logits.to(torch.float32), seeds), shown


@dataclass(frozen=True, slots=True)
class _Rows:
    """The adapters of a batch, computed once for all layers."""

    slots: tuple[int, ...]
    """The slots that rows use, ascending."""
    others: torch.Tensor | None
    """[tokens, 1, slots, 1], true where the slot is not the row's; None if all rows share one."""


_Product = Callable[[torch.Tensor], torch.Tensor]
"""Multiplies rows with a matrix."""


@dataclass(slots=True)
class _Joined:
    """The LoRA weights of some slots in one layer, concatenated."""

    dtype: torch.dtype
    down: _Product
    """[tokens, hidden_in] to [tokens, slices · slots · rank]."""
    ups: list[torch.Tensor]
    """Per slice [slots · rank, slice width]."""
    up: _Product | None = None
    """[tokens, slices · slots · rank] to [tokens, sum(output_slices)]; for few rows."""
    up_slices: list[_Product] | None = None
    """Per slice [tokens, slots · rank] to [tokens, slice width]; for many rows."""


def matmul(
    handler: _custom_ops.CPUDNNLGEMMHandler, x: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Multiply rows with a matrix as vLLM does, but with sums that do not depend on the batch.

    oneDNN treats a single row as a vector, and sums over large matrices in a different order.
    """
    if x.numel() == handler.k:
        row = x.reshape(1, -1)
        product: torch.Tensor = stock_matmul(handler, torch.cat([row, row]), bias)
        return product[:1].view(*x.shape[:-1], handler.n)
    product = stock_matmul(handler, x, bias)
    return product


class _OneDnnProduct:
    """The product of rows with a matrix, computed by oneDNN, see `matmul`."""

    def __init__(self, weight: torch.Tensor) -> None:
        """Prepare a matrix, [hidden_in, width]."""
        self._handler = _custom_ops.create_onednn_mm(weight, _CACHED_SHAPES)
        self._multiply = torch.ops._C.onednn_mm.default

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [rows, width] of [rows, hidden_in]."""
        num_rows = len(rows)
        if num_rows == 1:
            # As in `matmul`.
            rows = rows.expand(2, -1)
        rows = rows.contiguous()
        # Same as vLLM's `onednn_mm`, but takes a third of the time, since products are small here.
        product = rows.new_empty(len(rows), self._handler.n)
        self._multiply(product, rows, None, self._handler.handler_tensor)
        return product[:num_rows]


class _WidenedProduct:
    """The product of rows with a 16-bit matrix, computed by oneDNN in 32 bits."""

    def __init__(self, weight: torch.Tensor) -> None:
        """Prepare a matrix, [hidden_in, width]."""
        self._dtype = weight.dtype
        self._multiply = _OneDnnProduct(weight.float())

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [rows, width] of [rows, hidden_in], in the type of the matrix."""
        return self._multiply(rows.float()).to(self._dtype)


def _product(weight: torch.Tensor) -> _Product:
    """Return the product of rows with a matrix, [hidden_in, width].

    On x86 it uses oneDNN, whose sums depend neither on the number of rows nor on zeros in between.
    MKL's sums do, with up to three rows and with odd numbers of rows, and on AMD processors they
    take twice as long. Without AVX-512, oneDNN has no products of 16-bit numbers.
    """
    if not (_custom_ops._supports_onednn and _IS_X86):
        return partial(torch.matmul, other=weight)
    try:
        return _OneDnnProduct(weight)
    except RuntimeError:
        if weight.dtype == torch.float32:
            raise
    return _WidenedProduct(weight)


def update_metadata(
    self: PunicaWrapperCPU,
    mapping: object,
    lora_index_to_id: list[int | None],
    *sizes: int,
    **kwargs: object,
) -> None:
    """Record each row's adapter before a forward pass, as vLLM does, for `add_lora_linear`.

    Args:
        self: vLLM's wrapper.
        mapping: vLLM's mapping of rows to adapters.
        lora_index_to_id: The adapter in each slot.
        sizes: Passed on.
        kwargs: Passed on.
    """
    stock_update_metadata(self, mapping, lora_index_to_id, *sizes, **kwargs)
    # [tokens], the slot of each row; negative for rows without an adapter.
    indices = self.token_lora_indices
    slots = [slot for slot in indices.unique().tolist() if slot >= 0]
    others = indices.unsqueeze(1) != torch.tensor(slots, dtype=indices.dtype)
    self.rows = _Rows(tuple(slots), others[:, None, :, None] if others.any() else None)


def activate_adapter(self: LoRAModelManager, lora_id: int) -> bool:
    """Copy an adapter into a slot, as vLLM does, and discard previously joined weights."""
    was_copied = stock_activate_adapter(self, lora_id)
    if was_copied:
        for wrapper in self.punica_wrapper_mapping.values():
            wrapper.joined = {}
    return was_copied


def add_lora_linear(
    self: PunicaWrapperCPU,
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    scale: float,
    output_slices: tuple[int, ...],
    *,
    buffer: tuple[torch.Tensor, ...] | None = None,
    **kwargs: object,
) -> None:
    """Add each row's LoRA product to `y` in place.

    A few matrix products cover all adapters and slices of a layer. The stock op copies a weight
    matrix per token (`weights[token_indices]`), which costs far more than the product itself. A
    batch has few adapters of small rank, so every row is multiplied with all of them at once, and
    the intermediate values of adapters other than the row's own are set to zero. Slots that no row
    uses are skipped. In the others B must be finite, which `check_adapter` ensures: zero times
    infinity would affect other rows.

    Args:
        self: vLLM's wrapper.
        y: [tokens, sum(output_slices)], the layer's output.
        x: [tokens, hidden_in], the layer's input.
        lora_a_stacked: Per slice [slots, 1, rank, hidden_in].
        lora_b_stacked: Per slice [slots, 1, slice width, rank].
        scale: Factor on the product; PEFT's alpha / rank is already included in B.
        output_slices: Width of each slice.
        buffer: Not used.
        kwargs: Not used.
    """
    if self.no_lora or not self.rows.slots or not len(x):
        return
    y = y.view(-1, y.shape[-1])
    x = x.view(-1, x.shape[-1])
    joined = _joined_weights(self, lora_a_stacked, lora_b_stacked, output_slices)
    low = joined.down(x.to(joined.dtype))
    if self.rows.others is not None:
        num_slots = len(self.rows.slots)
        by_slot = low.view(len(x), len(output_slices), num_slots, -1)
        by_slot.masked_fill_(self.rows.others[: len(x)], 0)
    if len(x) < _FEW_ROWS or y.dtype != joined.dtype:
        if joined.up is None:
            joined.up = _product(torch.block_diag(*joined.ups))
        y += _scaled(joined.up(low), scale).to(y.dtype)
    else:
        if joined.up_slices is None:
            joined.up_slices = [_product(up) for up in joined.ups]
        low_slices = low.chunk(len(output_slices), 1)
        y_slices = y.split(output_slices, 1)
        for up, low_slice, y_slice in zip(joined.up_slices, low_slices, y_slices, strict=True):
            y_slice += _scaled(up(low_slice.contiguous()), scale)


def _scaled(product: torch.Tensor, scale: float) -> torch.Tensor:
    # vLLM's own scale is included in B, so there is usually nothing to do.
    return product if scale == 1.0 else product.mul_(scale)


def _joined_weights(
    wrapper: PunicaWrapperCPU,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    output_slices: tuple[int, ...],
) -> _Joined:
    """Return a layer's joined weights for the slots of the batch, cached for each set of slots.

    Args:
        wrapper: Keeps the joined weights until an adapter is copied into a slot.
        lora_a_stacked: As for `add_lora_linear`.
        lora_b_stacked: As for `add_lora_linear`.
        output_slices: Width of each slice.
    """
    # An attribute of the wrapper, created by the first batch: slots to layer to weights.
    by_slots = wrapper.__dict__.setdefault("joined", {})
    slots = wrapper.rows.slots
    layers = by_slots.get(slots)
    if layers is None:
        if len(by_slots) >= _MAX_SLOT_SETS:
            oldest = next(iter(by_slots))
            del by_slots[oldest]
        layers = by_slots[slots] = {}
    # The stacks live as long as their layer, so their id identifies the layer.
    layer = id(lora_a_stacked)
    joined = layers.get(layer)
    if joined is None:
        joined = layers[layer] = _join(lora_a_stacked, lora_b_stacked, output_slices, slots)
    return joined


def _join(
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    output_slices: tuple[int, ...],
    slots: tuple[int, ...],
) -> _Joined:
    used = list(slots)
    down = torch.cat([lora_a[used].flatten(0, 2) for lora_a in lora_a_stacked])
    ups = []
    for lora_b, width in zip(lora_b_stacked, output_slices, strict=True):
        # [slots, slice width, rank] -> [slots · rank, slice width]
        ups.append(lora_b[used, 0, :width].transpose(1, 2).flatten(0, 1))
    return _Joined(dtype=down.dtype, down=_product(down.t().contiguous()), ups=ups)
