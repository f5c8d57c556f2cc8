"""R20: the cost of an adapter per player compared with one shared adapter."""

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench.context import Bench
from bench.pairing import Arm, Measure, Pair, Stopwatch, measure_pairs, ratios_of
from bench.row import Row, at_most
from bench.stand_in import compact_config
from bench.training_rows import base_model, bot_rows, made_rows

if TYPE_CHECKING:
    from hanabi_grpo.training.micro_batch import MicroBatch, TokenRow
    from hanabi_grpo.training.policy import Policy

TARGET = at_most(1.15)
_PLAYERS = 5
_GAMES = 4
"""Games per player."""
_TURNS = 2
"""The player's turns per game."""
_PROMPT = 48
_REPLY = 3
_DEMO_TASKS = 1
"""Tasks of R20b. More tasks would fill several micro-batches per player."""
_NOISE = 0.2
"""Share of a bot's moves that are random, see `prefix_rows`."""
_SHARED = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """A model with adapters, and the rows that each adapter learns from."""

    policy: "Policy"
    rows: "Mapping[str, Sequence[TokenRow]]"
    """By adapter."""
    limit: int
    """Tokens per pass."""
    shares_passes: bool

    def learn(self) -> Measure:
        """Cut the rows and accumulate all gradients, as a step of the trainer does."""
        from hanabi_grpo.training.shared_passes import own_passes, shared_passes

        self.policy.model.zero_grad()
        num_tokens = sum(sum(row.mask) for rows in self.rows.values() for row in rows)
        with Stopwatch() as watch:
            batches = [batch for name in self.rows for batch in self._batches(name)]
            passes = own_passes(batches)
            if self.shares_passes:
                passes = shared_passes(batches, self.limit)
            for together in passes:
                if len(together) > 1:
                    all_logprobs = self.policy.shared_logprobs(together)
                else:
                    all_logprobs = [self.policy.logprobs(batch) for batch in together]
                losses = []
                for logprobs, batch in zip(all_logprobs, together, strict=True):
                    losses.append(-(logprobs * batch.advantages).sum() / num_tokens)
                sum(losses[1:], start=losses[0]).backward()
        return watch.measure(num_tokens, passes=len(passes))

    def _batches(self, name: str) -> "list[MicroBatch]":
        from hanabi_grpo.training.batching import CutPlan, cut_shares
        from hanabi_grpo.training.micro_batch import collate

        cut = CutPlan(
            tokens_per_micro_batch=self.limit,
            micro_batches_per_player=1,
            rank=0,
            world_size=1,
            shares_prefixes=True,
        )
        device = self.policy.model.device
        batches = []
        for share in cut_shares(list(self.rows[name]), cut):
            batch = collate(share.rows, name, 1, 0, device, True)
            batch.weight = share.weight
            batches.append(batch)
        return batches


async def team(bench: Bench) -> list[Row]:
    """R20, R20b and R20c, without an engine."""
    settings = bench.settings
    limit = settings.tokens_per_micro_batch or 2048
    seed = settings.seed
    rows = {}
    for number in range(_PLAYERS):
        rows[f"player_{number}"] = made_rows(
            num_games=_GAMES, turns=_TURNS, prompt=_PROMPT, reply=_REPLY, seed=seed + number
        )
    everybody = {_SHARED: [row for of_player in rows.values() for row in of_player]}
    of_team = made_learner(rows, limit, settings.device)
    of_one = made_learner(everybody, limit, settings.device, shares_passes=False)
    apart = made_learner(rows, limit, settings.device, shares_passes=False)
    with _one_thread():
        pairs = await _pairs(of_team, of_one, bench)
        check_passes("R20", pairs, expected=(1, 1))
        ratios, cpu = ratios_of(pairs, of_time=True)
        separate, _ = ratios_of(await _pairs(apart, of_one, bench), of_time=True)
    threads_ratios, threads_cpu = ratios_of(await _pairs(of_team, of_one, bench), of_time=True)
    demo = await demo_rows(_DEMO_TASKS, settings.num_generations, seed)
    after = made_learner(demo, limit, settings.device)
    before = made_learner(demo, limit, settings.device, shares_passes=False)
    of_demo = await _pairs(after, before, bench)
    demo_ratios, demo_cpu = ratios_of(of_demo, of_time=True)
    passes = (1, 2)
    check_passes("R20b", of_demo, expected=passes)
    return [
        Row(
            id="R20",
            name="five players with an adapter each ÷ one shared adapter",
            arms=("forward and backward, five adapters", "the same rows, one adapter"),
            ratios=ratios,
            cpu_ratios=cpu,
            target=TARGET,
            how=f"{_GAMES} conversations per player with {_TURNS} × ({_PROMPT} + {_REPLY}) tokens, "
            "all in one pass, on one thread",
            details={"separate_passes": list(separate)},
        ),
        Row(
            id="R20c",
            name="R20 on all threads",
            arms=("forward and backward, five adapters", "the same rows, one adapter"),
            ratios=threads_ratios,
            cpu_ratios=threads_cpu,
            target=None,
            how="in a model this small, the matrix products of one player's rows are too small to "
            "split across threads, but those of all rows are not",
        ),
        Row(
            id="R20b",
            name="last micro-batches in one pass ÷ one pass per player",
            arms=(f"forward and backward, {passes[0]} passes", f"{passes[1]} passes"),
            ratios=demo_ratios,
            cpu_ratios=demo_cpu,
            target=None,
            how=f"{settings.num_generations} games of one task, hint bots with {_NOISE:.0%} random "
            f"moves on laptop, both players, cut at {limit} tokens",
            details={"passes": list(passes)},
        ),
    ]


def made_learner(
    rows: "Mapping[str, Sequence[TokenRow]]",
    limit: int,
    device: str,
    *,
    shares_passes: bool = True,
) -> Learner:
    """Return a small model with an adapter of rank 16 for each player, and their rows.

    Args:
        rows: Rows by adapter.
        limit: Tokens per pass.
        device: "cpu" or "gpu".
        shares_passes: Whether the last micro-batches share passes.
    """
    import torch

    from hanabi_grpo.training.model.adapters import add_adapters
    from hanabi_grpo.training.policy import Policy

    names = list(rows)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = add_adapters(base_model(), names, rank=16, alpha=32, seed=1)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.05)
    model.train().to("cpu" if device == "cpu" else "cuda")
    policy = Policy(model, names, temperature=1.0, has_whole_weights=True)
    if shares_passes and not policy.shares_passes:
        raise RuntimeError("the bench's own model shares no passes; the log above says why")
    return Learner(policy=policy, rows=rows, limit=limit, shares_passes=shares_passes)


async def demo_rows(tasks: int, games: int, seed: int) -> "dict[str, Sequence[TokenRow]]":
    """Return each player's sequences of a step's groups on the board of the demo.

    Args:
        tasks: Number of groups, each of a different task.
        games: Games per group.
        seed: Seed of the first task.
    """
    from hanabi_grpo.envs.hanabi.policies.rule_bots import rule_bot

    numbers = [(seed * tasks + task, game) for task in range(tasks) for game in range(games)]
    of_seats = await bot_rows(rule_bot("hint-bot", _NOISE), compact_config("laptop"), numbers)
    rng = random.Random(seed)
    rows: dict[str, Sequence[TokenRow]] = {}
    for seat, of_seat in enumerate(of_seats):
        weighted = []
        for row in of_seat:
            advantages = [rng.gauss(0.0, 1.0) * is_reply for is_reply in row.mask]
            weighted.append(replace(row, advantages=advantages))
        rows[f"player_{seat}"] = weighted
    return rows


def check_passes(row: str, pairs: Sequence[Pair], *, expected: tuple[int, int]) -> None:
    """Reject arms whose number of passes differs from what their row states.

    Args:
        row: Number of the row.
        pairs: The measured pairs.
        expected: Passes of the first and of the second arm.

    Raises:
        RuntimeError: There were more or fewer passes.
    """
    for pair in pairs:
        passes = (pair.first.notes["passes"], pair.second.notes["passes"])
        if passes != expected:
            raise RuntimeError(
                f"{row} must compare {expected} passes, not {passes}; unset "
                "HANABI_TOKENS_PER_MICRO_BATCH."
            )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


async def _pairs(first: Learner, second: Learner, bench: Bench) -> list[Pair]:
    return await measure_pairs(_arm(first), _arm(second), pairs=bench.pairs)


def _arm(learner: Learner) -> Arm:
    async def run() -> Measure:
        return learner.learn()

    return run
