"""What rounding to 16 bits hides from each mismatch check: faults planted in a small real model,
without a server.

    python tests/planted_rounding.py            prints the table of docs/trust.md
    python tests/planted_rounding.py 40 stale   of one fault, at most 40 steps

The sampler is another program than the trainer: it decodes token by token with a cache, its
adapters are rounded as an upload rounds them, its attention is written out and its logits are
rounded. Every step is one of Adam at rate 2e-5."""

import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from hanabi_grpo.training.mismatch import BASE, LIMIT, STALE, compare, strongest
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.adapters import holding
from hanabi_grpo.training.model.forward import reply_logps
from hanabi_grpo.training.model.output_head import in_float32

NAMES = ("player_0", "player_1")
RATE = 2e-5
GAMES, PROMPT, REPLY = 64, 8, 48
FAULTS = {
    "nothing": "nothing",
    STALE: "every adapter is one step old",
    NAMES[1]: "player 1's adapter under player 0",
    BASE: "the base model",
}
TOLERANCE = {torch.bfloat16: 0.05, torch.float16: 0.05, torch.float32: 0.001}


@dataclass
class Found:
    """One arm."""

    gaps: list[float] = field(default_factory=list)
    """Per step the mean |sampler − trainer|, which the absolute check compares with its
    tolerance.
    """
    changes: list[float] = field(default_factory=list)
    """Per step the root of the mean squared difference between the trained policy and the suspected
    one.
    """
    slopes: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    @property
    def steps(self) -> int | None:
        """Steps until the relative check stops."""
        return next(
            (step for step, value in enumerate(self.scores, start=1) if value > LIMIT), None
        )


def trainer_model(dtype: torch.dtype) -> Any:
    """Return a model with two adapters such as some dozen steps leave them.

    Their rank is one with which a step moves logprobs by about a tenth of their rounding, as it
    does in large models."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "head_dim": 32}
    config = Qwen3Config(vocab_size=256, num_attention_heads=4, num_key_value_heads=2, **sizes)
    torch.manual_seed(0)
    base = Qwen3ForCausalLM(config)
    for value in base.parameters():
        # Wide enough that its replies are not of one probability.
        value.data = (value.data * (3.0 if value.dim() == 2 else 1.0)).to(dtype)
    model = adapters.add_adapters(base, NAMES, rank=64, alpha=128, seed=1)
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=25 * RATE)
    return model.train()


def versions(model: Any, dtype: torch.dtype) -> Iterator[dict[str, torch.Tensor]]:
    """Take optimizer steps on games of random worth; yields the adapters of the version before."""
    optimizer = torch.optim.AdamW(
        [one for one in model.parameters() if one.requires_grad], lr=RATE, weight_decay=0.0
    )
    while True:
        before = {
            name: value.detach().clone()
            for name, value in model.named_parameters()
            if value.requires_grad
        }
        for name in NAMES:
            adapters.use_adapter(model, name)
            ids = torch.randint(0, 256, (8, 32))
            logps = trainer_logps(model, ids, torch.ones(8, 31, dtype=torch.bool), dtype)
            (-(logps * torch.randn(8, 1)).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield before


def trainer_logps(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return what the trainer computes, with mixed precision as accelerate sets it up."""
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        return reply_logps(model, getattr(model, "model", model), ids, mask, 1.0)


@torch.no_grad()
def sample(model: Any, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids of games, and [games, reply] logprobs of the replies as this program computes
    them.
    """
    ids, cache, found = torch.randint(0, 256, (GAMES, PROMPT)), DynamicCache(), []
    seen = ids
    for _ in range(REPLY):
        logits = (
            model(input_ids=seen, past_key_values=cache, use_cache=True)
            .logits[:, -1]
            .to(dtype)
            .float()
        )
        logps = torch.log_softmax(logits, -1)
        seen = torch.multinomial(logps.exp(), 1)
        found.append(logps.gather(-1, seen))
        ids = torch.cat([ids, seen], 1)
    return ids, torch.cat(found, 1)


def run(fault: str, dtype: torch.dtype, steps: int) -> Found:
    """Train, sample player 0's games with a fault in each step, and compare; ends where the
    relative check stops.
    """
    torch.manual_seed(3)
    model = trainer_model(dtype)
    sampler = copy.deepcopy(model).eval()
    sampler.get_base_model().set_attn_implementation("eager")
    suspect = STALE if fault == "nothing" else fault
    found, evidence = Found(), []
    for _, before in zip(range(steps), versions(model, dtype), strict=False):
        loaded = before if fault == STALE else dict(model.named_parameters())
        for name, value in sampler.named_parameters():
            if value.requires_grad:
                value.data = loaded[name].detach().to(dtype)
        adapters.use_adapter(sampler, fault if fault == NAMES[1] else NAMES[0])
        with torch.no_grad():
            with adapters.base_only(sampler) if fault == BASE else torch.no_grad():
                ids, s = sample(sampler, dtype)
            mask = torch.zeros(GAMES, PROMPT + REPLY - 1, dtype=torch.bool)
            mask[:, PROMPT - 1 :] = True
            adapters.use_adapter(model, NAMES[0])
            gap = (s.flatten() - trainer_logps(model, ids, mask, dtype)[mask]).abs().mean()
            with in_float32(model):
                t = trainer_logps(model.base_model, ids, mask, torch.float32)[mask]
                o = _other(model, suspect, before, ids, mask)[mask]
        comparison = compare(s.flatten(), t, o)
        evidence.append([comparison.evidence, comparison.squares])
        found.gaps.append(float(gap))
        found.changes.append((comparison.distance / len(t)) ** 0.5)
        found.slopes.append(comparison.slope)
        found.scores.append(strongest(evidence[-64:]).z)
        if found.steps and fault != "nothing":
            break
    return found


def _other(
    model: Any, suspect: str, before: dict[str, torch.Tensor], ids: Any, mask: Any
) -> torch.Tensor:
    if suspect == BASE:
        with adapters.base_only(model):
            return trainer_logps(model.base_model, ids, mask, torch.float32)
    if suspect == NAMES[1]:
        adapters.use_adapter(model, suspect)
        return trainer_logps(model.base_model, ids, mask, torch.float32)
    with holding(dict(model.named_parameters()), before):
        return trainer_logps(model.base_model, ids, mask, torch.float32)


if __name__ == "__main__":
    print(
        "| planted | format | policies apart | mean gap | absolute check | slope | relative check "
        "|\n"
        "|---|---|---|---|---|---|---|"
    )
    for kind in (torch.bfloat16, torch.float32):
        for fault in sys.argv[2:] or FAULTS:
            said = FAULTS[fault]
            one = run(fault, kind, int(sys.argv[1]) if len(sys.argv) > 1 else 100)
            gap, allowed = max(one.gaps), TOLERANCE[kind]
            absolute = (
                f"stops, {allowed:g} is allowed"
                if gap > allowed
                else f"nothing, {allowed:g} is allowed"
            )
            relative = (
                f"stops at step {one.steps}" if one.steps else f"nothing in {len(one.scores)} steps"
            )
            slope = sum(one.slopes) / len(one.slopes)
            apart = sum(one.changes) / len(one.changes)
            name = str(kind).removeprefix("torch.")
            print(
                f"| {said} | {name} | {apart:.2g} | {gap:.2g} | {absolute} | {slope:.2f} | "
                f"{relative} |",
                flush=True,
            )
            print(
                f"    greatest z {max(one.scores):.2f}, last {one.scores[-1]:.2f}",
                file=sys.stderr,
                flush=True,
            )
