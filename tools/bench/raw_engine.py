"""vLLM without anything of ours around it: the denominator of the benchmarks."""

from typing import Any

from hanabi_grpo.server.engine import VllmSampler


async def generate_raw(
    engine: VllmSampler,
    prompt_ids: list[int],
    *,
    max_tokens: int,
    temperature: float,
    lora: Any | None,
    request_id: str,
) -> int:
    """Sample one reply with vLLM's own calls and discard it.

    Args:
        engine: The running engine.
        prompt_ids: [prompt tokens].
        max_tokens: Length of the reply.
        temperature: Sampling temperature.
        lora: A handle that is currently loaded, None for the base model.
        request_id: An id that no request in flight has.

    Returns:
        The number of sampled tokens.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    count = 0
    async for output in engine._engine.generate(
        {"prompt_token_ids": prompt_ids}, params, request_id, lora_request=lora
    ):
        count = len(output.outputs[0].token_ids)
    return count


def async_llm(engine: VllmSampler) -> Any:
    """Return vLLM's `AsyncLLM` itself, for software that makes its own calls."""
    return engine._engine
