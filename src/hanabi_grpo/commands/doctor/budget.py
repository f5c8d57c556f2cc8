"""What a step costs, before a run starts: memory by part, and the seconds of a step.

To sample a token, the engine reads the weights and the KV cache of the active conversations once,
so memory bandwidth limits small batches (Pope et al. 2022, section 2). Learning costs as much as
three forward passes of 2 operations per parameter and token (Kaplan et al. 2020, table 1): the pass
itself, its repetition for gradient checkpointing, and the gradients of the activations; frozen
weights have no gradients. The share of learning and the time of an engine's step were measured on
one H100 and one H200; the other constants below are rough.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hanabi_grpo.commands.doctor.check import Check, ok, skip
from hanabi_grpo.commands.doctor.context import Context, amount
from hanabi_grpo.commands.doctor.gpus import gpus_of_machine, with_sizes_of_scripts
from hanabi_grpo.commands.doctor.memory import BYTES, ModelSizes, server_parts, trainer_parts
from hanabi_grpo.rollout.budget import Budget
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.gpus import Card, find_card

_BANDWIDTH_SHARE = 0.8
"""Share of a GPU's memory bandwidth that is reached."""
_READING_SHARE = 0.3
"""Share of a GPU's operations per second that an engine reaches in prefill."""
_LEARNING_SHARE = 0.2
"""The same share for learning, measured on one H100 with micro-batches of 16,384 tokens."""
_ENGINE_STEP_SECONDS = 0.010
"""Time of an engine step besides reading memory.

Measured with 64 replies at once, adapters and CUDA graphs: about 13 ms per token on an H100 with
0.6 billion parameters, 11.7 ms on an H200 with 4 billion, which take 2 ms to read.
"""
_ALL_REDUCE_SECONDS = 40e-6
"""Time of an all-reduce, including the wait for the slowest GPU.

Each layer has two of them if GPUs share a copy of the model.
"""
CRITIC_UPDATES = 4
"""Updates of a critic's adapter per step.

Equal to `PASSES` of `training.learned.adapter_critic`, whose import would load torch.
"""
_FORWARDS_OF_LEARNING = 3
_SEQUENCES_AT_ONCE = 256
"""The default of HANABI_MAX_NUM_SEQS."""
_PAGE = "docs/hardware.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The longest step that the settings allow: every game and reply has its maximum length."""

    games: int
    turns: int
    """Turns of a game, one after the other."""
    reply: int
    """Tokens of one reply."""
    context: float
    """Tokens of a conversation when a reply is sampled, on average."""
    sampled: int
    """Tokens of all replies."""
    trained: int
    """Tokens of all sequences of all players, prompts included.

    The engine reads those that are not sampled.
    """


def game_seconds(
    step: Step,
    card: Card,
    parameters: int,
    sizes: ModelSizes,
    bytes_per_number: int,
    *,
    copies: int = 1,
    parallel: int = 1,
    seats: int = _SEQUENCES_AT_ONCE,
) -> float:
    """Return how many seconds the games of a step take.

    Args:
        step: The games.
        card: The GPU of the rollout server.
        parameters: Parameters of the model.
        sizes: Its sizes.
        bytes_per_number: 2 in bfloat16.
        copies: Copies of the model that divide the games among them (data parallelism).
        parallel: GPUs of each copy (tensor parallelism).
        seats: Replies that each copy samples at once.
    """
    games = math.ceil(step.games / copies)
    rounds = math.ceil(games / seats)
    sequences = min(games, seats)
    weights_read = _weights_read(parameters, sizes, sequences, copies) * bytes_per_number
    cache_read = sequences * step.context * sizes.cache_bytes(bytes_per_number)
    bandwidth = parallel * card.bandwidth * _BANDWIDTH_SHARE
    seconds_per_token = (weights_read + cache_read) / bandwidth + _ENGINE_STEP_SECONDS
    exchanges = parallel > 1 or (sizes.experts is not None and copies > 1)
    if exchanges:
        seconds_per_token += 2 * sizes.layers * _ALL_REDUCE_SECONDS
    sampling = rounds * step.turns * step.reply * seconds_per_token
    prompt_tokens = (step.trained - step.sampled) / copies
    operations = parallel * card.operations * _READING_SHARE
    reading_prompts = prompt_tokens * 2 * sizes.active_parameters(parameters) / operations
    return sampling + reading_prompts


def _weights_read(parameters: int, sizes: ModelSizes, sequences: int, copies: int) -> float:
    """Return the parameters that a copy of the model reads to sample a token of each reply.

    Copies of a mixture divide its experts among them, and each expert is read if a reply of any
    copy needs it.

    Args:
        parameters: Parameters of the model.
        sizes: Its sizes.
        sequences: Replies that the copy samples at once.
        copies: Copies of the model.
    """
    if sizes.experts is None:
        return parameters
    routed = sizes.experts.routed_parameters
    needed = routed - sizes.experts.idle_parameters(sequences * copies)
    return parameters - routed + needed / copies


def learning_seconds(
    step: Step, card: Card, parameters: int, sizes: ModelSizes, *, processes: int
) -> float:
    """Return how many seconds one update from a step's games takes, with gradient checkpointing.

    Args:
        step: The games that are learned from.
        card: The GPU of each trainer process.
        parameters: Parameters of the model.
        sizes: Its sizes.
        processes: Trainer processes, one per GPU.
    """
    attention_width = sizes.heads * sizes.head
    attention = 4 * sizes.layers * attention_width * step.context
    operations_per_token = 2 * sizes.active_parameters(parameters) + attention
    operations_per_second = processes * card.operations * _LEARNING_SHARE
    operations = _FORWARDS_OF_LEARNING * step.trained * operations_per_token
    return operations / operations_per_second


def budget_checks(context: Context) -> Iterator[Check]:
    """Report the memory of each part of both terminals, and the seconds of a step."""
    sizes = ModelSizes.from_config(context.config)
    if sizes is None:
        yield skip("budget", "needs the model, and its sizes in config.json")
        return
    if context.serves:
        yield _memory_line(context, "server", server_parts(context, sizes))
    if context.trains:
        yield _memory_line(context, "trainer", trainer_parts(context, sizes))
    yield _seconds_check(context, sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """An estimate of the seconds of the longest step."""

    step: Step
    games: float
    learning: float
    """All updates of the step."""
    total: float
    """Seconds of the step; games and learning overlap with HANABI_OVERLAP."""


def step_seconds(context: Context, sizes: ModelSizes, card: Card, budget: Budget) -> StepSeconds:
    """Return the seconds of the longest step that the settings allow.

    Args:
        context: Settings and model.
        sizes: The model's sizes.
        card: The GPU of both terminals.
        budget: Tokens of the longest conversations.
    """
    settings = context.settings
    longest_turns = max(setup.spec.max_turns for setup in context.setups)
    step = _longest_step(settings, budget, longest_turns)
    games = game_seconds(
        step,
        card,
        context.num_parameters,
        sizes,
        BYTES[settings.dtype],
        copies=settings.vllm_data_parallel_size,
        parallel=settings.vllm_tensor_parallel_size,
        seats=min(
            settings.max_num_seqs,
            math.ceil(settings.games_at_once / settings.vllm_data_parallel_size),
        ),
    )
    update = learning_seconds(
        step, card, context.num_parameters, sizes, processes=context.num_processes
    )
    # One more forward pass, before the first minibatch updates the policy.
    passes_before = 1 / _FORWARDS_OF_LEARNING if settings.minibatches > 1 else 0.0
    # A critic's adapter evaluates the turns once, and learns from them in several passes.
    critic_passes = CRITIC_UPDATES + 1 / _FORWARDS_OF_LEARNING
    if settings.critic != "adapter":
        critic_passes = 0.0
    learning = update * (settings.updates_per_step + passes_before + critic_passes)
    total = max(games, learning) if settings.overlap else games + learning
    return StepSeconds(step=step, games=games, learning=learning, total=total)


def _memory_line(context: Context, terminal: str, parts: dict[str, float]) -> Check:
    place = ", each GPU" if context.settings.device == "gpu" else ""
    listed = ", ".join(f"{name} {amount(size, 'B')}" for name, size in parts.items())
    total = amount(sum(parts.values()), "B")
    return ok("budget", f"{terminal}{place}: {listed}; total {total}")


def _seconds_check(context: Context, sizes: ModelSizes) -> Check:
    settings = context.settings
    gpus, reason = gpus_of_machine(context)
    card = find_card(gpus[0].name) if gpus else None
    if context.budget is None:
        return skip("budget", "seconds of a step: needs the dataset and the chat template")
    if settings.device == "cpu" or card is None:
        if settings.device == "cpu":
            machine = "a CPU"
        elif gpus:
            machine = gpus[0].name
        else:
            machine = reason
        finding = f"seconds of a step: unknown for this machine ({machine})"
        return skip("budget", f"{finding}; the first steps will show them")
    seconds = step_seconds(with_sizes_of_scripts(context, gpus), sizes, card, context.budget)
    step = seconds.step
    finding = (
        f"a step takes at most about {seconds.total:.0f} s, games {seconds.games:.0f} s and "
        f"learning {seconds.learning:.0f} s: {step.games} games of {step.turns} turns × "
        f"{step.reply} tokens on "
        f"{gpus[0].name} (an estimate, see the formula in {_PAGE})"
    )
    return ok("budget", finding)


def _longest_step(settings: Settings, budget: Budget, turns: int) -> Step:
    """Return the longest step, for games with `turns` turns."""
    games = settings.tasks_per_step * settings.num_generations
    context = float(budget.longest(budget.memory))
    if budget.memory == "game":
        # A conversation grows from nothing to its longest, so it is half as long on average.
        context /= 2
    return Step(
        games=games,
        turns=turns,
        reply=budget.reply,
        context=context,
        sampled=games * budget.players * budget.turns * budget.reply,
        trained=games * budget.of_game(budget.memory),
    )
