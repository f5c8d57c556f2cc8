"""One layer's LoRA work in a mixed prefill batch, to compare our CPU method with vLLM's own."""

from typing import Any

import torch
from vllm.lora.layers import LoRAMapping
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from hanabi_grpo.server.vllm_cpu import add_lora_linear, stock_add_lora_linear, update_metadata

_ROWS_PER_PROMPT = 32
_VOCABULARY = 1000


class LoraCase:
    """Both methods on the same numbers, in the state that vLLM's code prepares for a prefill."""

    def __init__(
        self,
        *,
        num_tokens: int,
        num_adapters: int,
        inner: int,
        widths: tuple[int, ...],
        rank: int,
        dtype: torch.dtype,
    ) -> None:
        """Make the numbers.

        Args:
            num_tokens: Rows of the batch; adapters alternate every `_ROWS_PER_PROMPT` rows, as
                in short prompts of several players.
            num_adapters: Adapters in the batch.
            inner: Width of the layer's input.
            widths: Widths of the slices of its output.
            rank: Rank of the adapters.
            dtype: The dtype of all tensors.
        """
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(dtype)

        ids = list(range(1, num_adapters + 1))
        prompts = [row // _ROWS_PER_PROMPT for row in range(num_tokens)]
        rows = tuple(ids[prompt % num_adapters] for prompt in prompts)
        self._wrapper = PunicaWrapperCPU(num_tokens, num_tokens, "cpu")
        mapping = LoRAMapping(index_mapping=rows, prompt_mapping=rows, is_prefill=True)
        update_metadata(self._wrapper, mapping, list(ids), num_adapters, _VOCABULARY)
        self._y = normal(num_tokens, sum(widths))
        self._arguments: dict[str, Any] = {
            "x": normal(num_tokens, inner),
            "lora_a_stacked": tuple(normal(num_adapters, 1, rank, inner) for _ in widths),
            "lora_b_stacked": tuple(normal(num_adapters, 1, width, rank) for width in widths),
            "scale": 1.0,
            "output_slices": widths,
        }

    def ours(self) -> torch.Tensor:
        """Return [tokens, widths] after our method."""
        y = self._y.clone()
        add_lora_linear(self._wrapper, y, **self._arguments)
        return y

    def stock(self) -> torch.Tensor:
        """Return [tokens, widths] after vLLM's method."""
        y = self._y.clone()
        stock_add_lora_linear(self._wrapper, y, **self._arguments)
        return y
