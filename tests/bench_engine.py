"""vLLM's `AsyncLLM` played by a few lines, so that the real `Engine` and every row above it run without it.

It caches prefixes as vLLM does (whole blocks, per adapter), refuses adapters that are not loaded, and, when it is given
a model, samples from that model with the adapter files that it was told to load.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file

from bench.prefix_trie import PrefixTrie

BLOCK = 32


class FakeLLM:
    """Replies with `words` in turn; with a model, with what the model says."""

    def __init__(self, words: Sequence[Sequence[int]], model: Any = None) -> None:
        self.words, self.model = words, model
        self.errored = False
        self.is_down = False
        self.loaded: dict[int, dict[str, torch.Tensor]] = {}
        self.num_requests = 0
        self.adapters_used: set[str] = set()
        self._tries: dict[str, PrefixTrie] = {}

    async def generate(
        self, prompt: dict[str, Any], params: Any, request_id: str, lora_request: Any = None
    ) -> AsyncIterator[Any]:
        if lora_request is not None and lora_request.lora_int_id not in self.loaded:
            self.errored = True
            raise RuntimeError(f"{lora_request.lora_name} is not loaded: the engine core would be dead now")
        name = lora_request.lora_name if lora_request else ""
        self.adapters_used.add(name)
        ids = prompt["prompt_token_ids"]
        trie = self._tries.setdefault(name, PrefixTrie())
        cached = min(trie.shared(ids), len(ids) - 1) // BLOCK * BLOCK
        trie.add(ids)
        await asyncio.sleep(0.001)
        reply, logprobs = self._reply(ids, params.max_tokens, lora_request)
        trie.add((*ids, *reply[:-1]))
        choice = SimpleNamespace(
            index=0,
            token_ids=reply,
            logprobs=engine_logprobs(reply, logprobs),
            finish_reason="stop",
        )
        self.num_requests += 1
        yield SimpleNamespace(finished=True, outputs=[choice], prompt_token_ids=ids, num_cached_tokens=cached)

    def _reply(self, ids: Sequence[int], most: int, lora_request: Any) -> tuple[list[int], list[float]]:
        if self.model is None:
            reply = list(self.words[self.num_requests % len(self.words)])[:most]
            return reply, [-1.0] * len(reply)
        from hanabi_grpo.training.model.adapters import put_tensors

        put_tensors(self.model, "served", self.loaded[lora_request.lora_int_id], "test")
        reply, logprobs = [], []
        with torch.no_grad():
            for _ in range(most):
                logits = self.model(input_ids=torch.tensor([[*ids, *reply]])).logits[0, -1].float()
                token = int(logits.argmax())
                reply.append(token)
                logprobs.append(float(logits.log_softmax(-1)[token]))
        return reply, logprobs

    async def add_lora(self, request: Any) -> bool:
        self.loaded[request.lora_int_id] = load_file(Path(request.lora_path) / "adapter_model.safetensors")
        return True

    async def remove_lora(self, number: int) -> bool:
        return self.loaded.pop(number, None) is not None

    async def list_loras(self) -> set[int]:
        return set(self.loaded)

    async def reset_prefix_cache(self) -> bool:
        self._tries = {}
        return True

    def shutdown(self) -> None:
        self.is_down = True


def engine_logprobs(ids: list[int], logprobs: list[float], *, flat: bool = True) -> Any:
    """Return logprobs of sampled tokens as vLLM's own functions put them together, token by token."""
    from vllm.logprobs import append_logprobs_for_next_position, create_sample_logprobs

    kept = create_sample_logprobs(flat)
    for rank, (token, logprob) in enumerate(zip(ids, logprobs, strict=True), start=1):
        append_logprobs_for_next_position(kept, [token], [logprob], [None], rank, 0)
    return kept
