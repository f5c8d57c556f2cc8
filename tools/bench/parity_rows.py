"""R10: is the sampling policy the one that was pushed, and would a stale one be detected?"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from bench.context import Bench
from bench.engine_bench import EngineBench
from bench.row import Row, at_least, at_most
from hanabi_grpo.rollout.sampler import Sample

TOLERANCE = 0.01
"""In nats."""
_PROMPTS = 32
"""Prompts per player."""
_STD = 0.05
"""Standard deviation of the noise added to the adapters' B matrices between two pushes.

This is far more than the change of one step."""
_STALE_SEEDS = 1000
"""First seed of the changes that are not pushed."""


async def parity(bench: Bench) -> list[Row]:
    """R10a and R10b: mean |trainer − sampler| logprob per player after a weight sync.

    R10b omits the push.
    """
    engine = bench.needed_engine
    prompts: dict[str, list[list[int]]] = {}
    for game in await engine.recorded_games():
        for call in game:
            of_player = prompts.setdefault(call.adapter, [])
            if len(of_player) < _PROMPTS:
                of_player.append(list(call.prompt_ids))
    prompts = {player: prompts[player] for player in engine.players if player in prompts}
    fresh: list[float] = []
    stale: list[float] = []
    tokens = 0
    for number in range(max(1, bench.pairs // 2)):
        await asyncio.to_thread(_change_adapters, engine.model, number)
        await engine.push()
        samples = {}
        for player, of_player in prompts.items():
            samples[player] = await _sample(engine, player, of_player)
            tokens += sum(len(sample.ids) for sample in samples[player])
        fresh += await asyncio.to_thread(_gaps, engine, prompts, samples)
        await asyncio.to_thread(_change_adapters, engine.model, number + _STALE_SEEDS)
        stale += await asyncio.to_thread(_gaps, engine, prompts, samples)
    how = (
        f"{tokens} tokens sampled right after weight syncs, scored by the trainer's model, "
        f"{bench.settings.dtype}"
    )
    return [
        Row(
            id="R10a",
            name="mean |trainer logp − sampler logp| after a weight sync",
            arms=("per player and weight sync", "1 nat"),
            ratios=tuple(fresh),
            target=at_most(TOLERANCE),
            each=True,
            how=how,
        ),
        Row(
            id="R10b",
            name="the same with a stale adapter (must fail)",
            arms=("per player, trainer changed, nothing synced", "1 nat"),
            ratios=tuple(stale),
            target=at_least(TOLERANCE),
            each=True,
            how=f"negative control: noise of {_STD:g} on B, while the server still samples the "
            "previous version",
        ),
    ]


async def _sample(engine: EngineBench, player: str, prompts: Sequence[list[int]]) -> list[Sample]:
    async with engine.store.lease(engine.store.versions()) as leased:
        held = leased[player]
        return list(
            await asyncio.gather(
                *(engine.engine.generate(ids, engine.sampling, held.lora) for ids in prompts)
            )
        )


def _change_adapters(model: Any, seed: int) -> None:
    """Change every adapter as training would, but more."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.add_(noise * _STD)


def _gaps(
    engine: EngineBench,
    prompts: Mapping[str, list[list[int]]],
    samples: Mapping[str, Sequence[Sample]],
) -> list[float]:
    """Return per player the mean absolute difference over all sampled tokens, in nats."""
    import torch

    from hanabi_grpo.training.model.adapters import use_adapter

    model = engine.model
    means = []
    for player, replies in samples.items():
        use_adapter(model, player)
        gaps: list[float] = []
        for ids, sample in zip(prompts[player], replies, strict=True):
            sampled = torch.tensor(sample.ids)
            input_ids = torch.tensor([[*ids, *sample.ids]], device=model.device)
            with torch.no_grad():
                logits = model(input_ids=input_ids).logits
            # The sampler's logprobs include the temperature.
            scaled = logits[0, len(ids) - 1 : -1].float().cpu() / engine.sampling.temperature
            logprobs = scaled.log_softmax(-1).gather(1, sampled[:, None])[:, 0]
            gaps += (logprobs - torch.tensor(sample.logprobs)).abs().tolist()
        means.append(sum(gaps) / len(gaps))
    return means
