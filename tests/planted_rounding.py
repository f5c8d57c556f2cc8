"""What the mismatch check says of a small real model, without a server.

    python tests/planted_rounding.py                      prints the second table of docs/trust.md
    python tests/planted_rounding.py 40 stale             of one fault, at most 40 steps
    python tests/planted_rounding.py --sound 2000 bfloat16   counts false alarms

The sampler is another program than the trainer: it decodes token by token with a cache, its
adapters are rounded as an upload rounds them, its attention is written out and its logits are
rounded. The trainer's side is the real one, from the choice of rows to the verdict. Every step is
one of Adam at rate 2e-5; one player is checked.
"""

import copy
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from hanabi_grpo.errors import ParityError
from hanabi_grpo.training.check_sample import check_rows
from hanabi_grpo.training.evidence import policy_score, surprise_score
from hanabi_grpo.training.micro_batch import collate
from hanabi_grpo.training.mismatch import BASE, SCALED, STALE, CheckedGames, MismatchCheck
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.forward import reply_logps
from hanabi_grpo.training.policy import EarlierVersions, Policy
from hanabi_grpo.types import Episode
from made_games import made_episode, made_turn

NAMES = ("player_0", "player_1")
PLAYER = NAMES[0]
RATE = 2e-5
TASKS = 4
PROMPT = 8
FAULTS = {
    "nothing": "nothing",
    STALE: "every adapter is one step old",
    NAMES[1]: "player 1's adapter under player 0",
    BASE: "the base model",
    "scaled_0.9": "the adapter × .9",
    "scaled_0.99": "the adapter × .99",
    "temperature_0.7": "temperature .7, logprobs of the policy",
    "temperature_0.9": "temperature .9, logprobs of the policy",
}
TOLERANCE = {torch.bfloat16: 0.05, torch.float16: 0.05, torch.float32: 0.001}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large model and games are."""

    hidden: int = 128
    layers: int = 4
    games: int = 64
    reply: int = 48
    same_tasks: bool = False
    """Whether every step has the same tasks, and so the same rounding again and again."""


SMALL = Sizes(hidden=64, layers=2, games=64, reply=12, same_tasks=True)
"""For thousands of steps."""


@dataclass
class Said:
    """What the check said of one fault."""

    gaps: list[float] = field(default_factory=list)
    """Per step the mean |sampler − trainer|."""
    changes: list[float] = field(default_factory=list)
    """Per step how far the version before is from this one, as a root mean square."""
    stop: str = ""
    num_steps: int = 0
    incidents: list[str] = field(default_factory=list)
    largest_policy: float = 0.0
    """Largest z of any suspect."""
    largest_surprise: float = 0.0


def trainer_model(dtype: torch.dtype, sizes: Sizes) -> Any:
    """Return a model with two adapters such as some dozen steps leave them.

    Their rank is one with which a step moves logprobs by about a tenth of their rounding, as it
    does in large models.
    """
    config = Qwen3Config(
        vocab_size=256,
        hidden_size=sizes.hidden,
        intermediate_size=2 * sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=sizes.hidden // 4,
    )
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


def learn(model: Any, dtype: torch.dtype) -> Iterator[None]:
    """Take optimizer steps on games of random worth, one at a time."""
    parameters = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)
    mask = torch.ones(8, 31, dtype=torch.bool)
    while True:
        for name in NAMES:
            adapters.use_adapter(model, name)
            ids = torch.randint(0, 256, (8, 32))
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                logps = reply_logps(model, model, ids, mask, 1.0)
            (-(logps * torch.randn(8, 1)).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


@torch.no_grad()
def sample(model: Any, dtype: torch.dtype, sizes: Sizes, temperature: float) -> list[list[Episode]]:
    """Return groups of games, with the logprobs of the policy as this program computes them."""
    prompts = torch.randint(0, 256, (TASKS, PROMPT))
    if sizes.same_tasks:
        prompts = torch.arange(TASKS * PROMPT).view(TASKS, PROMPT)
    prompts = prompts.repeat_interleave(sizes.games // TASKS, 0)
    cache = DynamicCache()
    seen = prompts
    replies = []
    logprobs = []
    for _ in range(sizes.reply):
        output = model(input_ids=seen, past_key_values=cache, use_cache=True)
        logits = output.logits[:, -1].to(dtype).float()
        logps = torch.log_softmax(logits, -1)
        seen = torch.multinomial(torch.softmax(logits / temperature, -1), 1)
        replies.append(seen)
        logprobs.append(logps.gather(-1, seen))
    ids = torch.cat(replies, 1).tolist()
    values = torch.cat(logprobs, 1).tolist()
    groups: list[list[Episode]] = [[] for _ in range(TASKS)]
    for game in range(sizes.games):
        turn = made_turn(
            0,
            *ids[game],
            logprobs=tuple(values[game]),
            prompt_ids=tuple(prompts[game].tolist()),
        )
        groups[game * TASKS // sizes.games].append(made_episode(turn, game=game))
    return groups


def run(fault: str, dtype: torch.dtype, steps: int, sizes: Sizes, *, goes_on: bool) -> Said:
    """Train, sample player 0's games with a fault in each step, and let the check look at them.

    Args:
        fault: One of `FAULTS`.
        dtype: The number format.
        steps: Most steps.
        sizes: How large it all is.
        goes_on: Whether to go on where a run would stop.
    """
    torch.manual_seed(3)
    model = trainer_model(dtype, sizes)
    sampler = copy.deepcopy(model).eval()
    sampler.get_base_model().set_attn_implementation("eager")
    policy = Policy(model, NAMES, temperature=1.0, has_whole_weights=True)
    earlier = EarlierVersions(model, behind=1)
    said = Said()
    name_of_dtype = str(dtype).removeprefix("torch.")
    check = MismatchCheck(
        policy,
        earlier,
        Accelerator(cpu=True),
        tolerance=TOLERANCE[dtype],
        dtype=name_of_dtype,
        is_relative=True,
        report=lambda _, message, **__: said.incidents.append(message),
    )
    kind, _, number = fault.partition("_")
    temperature = float(number) if kind == "temperature" else 1.0
    evidence: Any = {}
    learning = learn(model, dtype)
    # Two versions, so that the first games may be of a stale one.
    earlier.keep(0)
    next(learning)
    for version in range(1, steps + 1):
        earlier.keep(version)
        _load(sampler, model, earlier.weights(version - 1) if fault == STALE else None, dtype)
        played_by = NAMES[1] if fault == NAMES[1] else PLAYER
        adapters.use_adapter(sampler, played_by)
        scale = float(number) if kind == SCALED else 1.0
        without = adapters.base_only(sampler) if fault == BASE else torch.no_grad()
        with without, adapters.scaled_by(sampler, played_by, scale):
            groups = sample(sampler, dtype, sizes, temperature)
        games = [episode for group in groups for episode in group]
        rows = check_rows(games, 0, ("",), first=version, rank=0, world_size=1)
        batch = collate(rows, PLAYER, 1, 0, torch.device("cpu"), policy.shares_prefixes)
        checked = CheckedGames(
            samples={PLAYER: batch},
            groups=groups,
            num_dropped=0,
            version=version,
            sampled_by=version,
        )
        said.num_steps = version
        if version % 250 == 0:
            print(
                f"    {name_of_dtype}, step {version}: {len(said.incidents)} incidents, largest z "
                f"{said.largest_policy:.2f} and {said.largest_surprise:.2f}",
                file=sys.stderr,
                flush=True,
            )
        try:
            evidence, _ = check.check_games(checked, evidence)
            _note(said, evidence)
        except ParityError as error:
            said.stop = said.stop or str(error)
            if not goes_on:
                break
        next(learning)
    return said


def _load(sampler: Any, model: Any, weights: Any, dtype: torch.dtype) -> None:
    """Give the sampler the adapters of a version, rounded; None: those of now."""
    loaded = weights or dict(model.named_parameters())
    for name, value in sampler.named_parameters():
        if value.requires_grad:
            value.data = loaded[name].detach().to(dtype)


def _note(said: Said, evidence: Any) -> None:
    said.gaps.append(evidence[f"{PLAYER}|gap"][-1][0])
    for key, steps in evidence.items():
        name = key.partition("|")[2]
        if name == "surprise":
            said.largest_surprise = max(said.largest_surprise, surprise_score(steps).z)
        elif name in (STALE, SCALED, BASE, NAMES[1], "temperature"):
            said.largest_policy = max(said.largest_policy, policy_score(steps).z)


def print_sound(steps: int, formats: list[str]) -> None:
    """Count what the check says of sound steps."""
    for name in formats:
        start = time.monotonic()
        said = run("nothing", getattr(torch, name), steps, SMALL, goes_on=True)
        print(
            f"{name}: {said.num_steps} sound steps, {len(said.incidents)} incidents, "
            f"{'a stop: ' + said.stop if said.stop else 'no stop'}; largest z of a policy "
            f"{said.largest_policy:.2f}, of surprises {said.largest_surprise:.2f}; mean gap "
            f"{sum(said.gaps) / len(said.gaps):.2g}; {time.monotonic() - start:.0f} s",
            flush=True,
        )
        for message in said.incidents[:3]:
            print(f"    {message}", flush=True)


def print_table(steps: int, faults: list[str]) -> None:
    """Print what becomes of each fault in two formats."""
    print("| planted | format | mean gap | the check |\n|---|---|---|---|")
    for dtype in (torch.bfloat16, torch.float32):
        for fault in faults:
            said = run(fault, dtype, steps, Sizes(), goes_on=False)
            name = str(dtype).removeprefix("torch.")
            verdict = f"nothing in {said.num_steps} steps"
            gap = f"{sum(said.gaps) / len(said.gaps):.2g}" if said.gaps else "–"
            if said.stop:
                verdict = f"stops at step {said.num_steps}"
                print(f"    {said.stop}", file=sys.stderr, flush=True)
            print(f"| {FAULTS[fault]} | {name} | {gap} | {verdict} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--sound"]:
        print_sound(int(sys.argv[2]), sys.argv[3:] or ["float32", "bfloat16"])
    else:
        print_table(int(sys.argv[1]) if len(sys.argv) > 1 else 24, sys.argv[2:] or list(FAULTS))
