"""What a step will cost before it is started: memory by part, and seconds from the sizes of model,
games and GPU.

A token costs the engine one reading of the weights and of the active conversations' keys and values
(memory bandwidth bounds small batches; Pope et al. 2022, section 2). Learning costs three forward
passes of 2 operations a parameter (Kaplan et al. 2020, table 1): the pass, the same again for
checkpoints, and the gradient of what is between the layers; the frozen weights have none of their
own. No GPU has run this yet: the numbers below are judgement."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.commands.doctor.check import Check, ok, skip
from hanabi_grpo.commands.doctor.context import Context, amount
from hanabi_grpo.commands.doctor.gpus import list_gpus
from hanabi_grpo.commands.doctor.model import BYTES, cache_bytes, server_parts, trainer_parts
from hanabi_grpo.settings.gpus import Card, find_card

_OF_BANDWIDTH, _OF_PEAK, _STEP_SECONDS = 0.8, 0.3, 0.001
"""What is reached of a GPU's bandwidth and operations, and what a step of the engine takes
besides.
"""
_ALL_REDUCE_SECONDS = 40e-6
"""Of which each layer has two where GPUs share a copy of the model, with the wait for the
slowest.
"""
_PAGE = "docs/hardware.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The longest step that the settings allow: every game to its last turn, every reply to its
    last token.
    """

    games: int
    turns: int
    """Of a game, one after the other."""
    reply: int
    """Tokens of one."""
    context: float
    """Tokens of a conversation when a reply is sampled, on average."""
    sampled: int
    """Tokens of all replies."""
    trained: int
    """Tokens of all sequences of all players, prompts included; those that are not sampled are read
    by the engine.
    """


def game_seconds(
    step: Step,
    card: Card,
    parameters: int,
    config: Mapping[str, Any],
    size: int,
    *,
    copies: int = 1,
    parallel: int = 1,
    seats: int = 256,
) -> float:
    """Return how long the games of a step take; `config` is the model's, `size` the bytes of a
    number.

    The model's `copies`, on `parallel` GPUs each, share the games; each samples so many replies,
    `seats`, at once."""
    games = math.ceil(step.games / copies)
    rounds = math.ceil(games / seats)
    read = parameters * size + min(games, seats) * step.context * cache_bytes(config, size)
    token = read / (parallel * card.bandwidth * _OF_BANDWIDTH) + _STEP_SECONDS
    if parallel > 1:
        token += 2 * config["num_hidden_layers"] * _ALL_REDUCE_SECONDS
    prompts = (
        (step.trained - step.sampled)
        / copies
        * 2
        * parameters
        / (parallel * card.operations * _OF_PEAK)
    )
    return rounds * step.turns * step.reply * token + prompts


def learning_seconds(
    step: Step, card: Card, parameters: int, config: Mapping[str, Any], *, processes: int
) -> float:
    """Return how long one update from a step's games takes, with gradient checkpointing."""
    heads = config["num_attention_heads"]
    width = heads * (config.get("head_dim") or config["hidden_size"] // heads)
    forward = 2 * parameters + 4 * config["num_hidden_layers"] * width * step.context
    return 3 * step.trained * forward / (processes * card.operations * _OF_PEAK)


def budget_checks(context: Context) -> Iterator[Check]:
    """Tell the memory of each part of both terminals, and the seconds of a step."""
    if (
        not {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}
        <= context.config.keys()
    ):
        yield skip("budget", "needs the model, and its sizes in config.json")
        return
    where = ", each GPU" if context.settings.device == "gpu" else ""
    parts = {"server": server_parts} if context.serves else {}
    for terminal, find in (parts | ({"trainer": trainer_parts} if context.trains else {})).items():
        sizes = find(context)
        told = ", ".join(f"{name} {amount(size, 'B')}" for name, size in sizes.items())
        yield ok(
            "budget", f"{terminal}{where}: {told}; together {amount(sum(sizes.values()), 'B')}"
        )
    yield _seconds(context)


def _seconds(context: Context) -> Check:
    settings, budget = context.settings, context.budget
    gpus, reason = list_gpus(context.shell.get("PATH"))
    card = find_card(gpus[0].name) if gpus else None
    if budget is None:
        return skip("budget", "seconds of a step: they need the dataset and the chat template")
    if settings.device == "cpu" or card is None:
        who = "a CPU" if settings.device == "cpu" else gpus[0].name if gpus else reason
        return skip(
            "budget",
            f"seconds of a step: not known for this machine ({who}); the first steps tell them",
        )
    count = settings.tasks_per_step * settings.num_generations
    step = Step(
        games=count,
        turns=max(setup.spec.max_turns for setup in context.setups),
        reply=budget.reply,
        context=budget.longest(budget.memory) / (2 if budget.memory == "game" else 1),
        sampled=count * budget.players * budget.turns * budget.reply,
        trained=count * budget.of_game(budget.memory),
    )
    parameters, config = context.num_parameters, context.config
    copies, parallel = settings.vllm_data_parallel_size, settings.vllm_tensor_parallel_size
    size, seats = BYTES[settings.dtype], settings.max_num_seqs
    games = game_seconds(
        step, card, parameters, config, size, copies=copies, parallel=parallel, seats=seats
    )
    learning = learning_seconds(step, card, parameters, config, processes=settings.nproc_per_node)
    learning *= settings.updates_per_step
    whole = max(games, learning) if settings.overlap else games + learning
    return ok(
        "budget",
        f"a step takes about {whole:.0f} s at most, games {games:.0f} s and learning "
        f"{learning:.0f} s: {step.games} "
        f"games of {step.turns} turns × {step.reply} tokens on {gpus[0].name} (an estimate, "
        f"{_PAGE} has its formula)",
    )
