"""Checks of the dataset, of the arithmetic of a step, and of the length of conversations."""

import math

from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import Context, amount
from hanabi_grpo.commands.training_plan import plan_training
from hanabi_grpo.envs.config import Memory
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.budget import Budget
from hanabi_grpo.rollout.datasets import mix_line, training_rows
from hanabi_grpo.rollout.vocabulary import boards_of, check_vocabulary
from hanabi_grpo.settings import batch_plan
from hanabi_grpo.settings.defaults import tiny_model_command, tiny_model_folder

_SHOW_ORIGINS = ".venv/bin/hanabi-grpo settings   # shows every value and where it comes from"
_CONTEXT_UNIT = 256
"""A proposed HANABI_MAX_MODEL_LEN is rounded up to a multiple of this."""


def dataset_checks(context: Context) -> Check:
    """Read and check every row of the dataset."""
    settings = context.settings
    try:
        rows = training_rows(settings)
    except SettingsError as error:
        remedy = "unset DATASET   # or remove its line from .env; the settings then decide"
        return fail("dataset", str(error), remedy)
    source = settings.dataset or "none: the board of the settings"
    num_rows = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    return ok("dataset", f"{source}: {num_rows}, {mix_line(rows)}")


def batch_checks(context: Context) -> Check:
    """Report the arithmetic of a step, or why the trainer would refuse it."""
    settings = context.settings
    try:
        # Before the dataset: it needs no rows.
        batch_plan(settings)
        if context.rows is None:
            return skip("batch", "needs the dataset")
        plan = plan_training(settings, context.rows, context.environ)
    except SettingsError as error:
        return fail("batch", str(error), _SHOW_ORIGINS)
    return ok("batch", plan.line(settings))


def context_checks(context: Context) -> Check:
    """Compare the longest conversation with HANABI_MAX_MODEL_LEN and with the model's own limit."""
    settings = context.settings
    budget = context.budget
    limit = settings.max_model_len
    model_limit = int(context.config.get("max_position_embeddings", 0)) or limit
    if limit > model_limit:
        finding = (
            f"HANABI_MAX_MODEL_LEN={limit}, but {settings.model} supports at most {model_limit}: "
            "the server would not start"
        )
        return fail("context", finding, f"export HANABI_MAX_MODEL_LEN={model_limit}")
    if budget is None:
        return skip("context", "needs the model, its chat template and the dataset")
    longest = budget.longest(budget.memory)
    remedies = _ways_to_fit(context, budget, model_limit)
    if budget.first_reply_ends > limit:
        finding = (
            f"the first message and a reply take {budget.first_reply_ends} tokens, more than "
            f"HANABI_MAX_MODEL_LEN={limit}: no move can be made"
        )
        return fail("context", finding, "\n".join(remedies))
    numbers = (
        f"the longest game ({budget.preset}, {budget.turns} turns per player) takes "
        f"{budget.prompts(budget.memory)} prompt tokens + "
        f"{budget.num_turns(budget.memory)} replies of {settings.max_completion_length} = "
        f"{longest} of HANABI_MAX_MODEL_LEN={limit}"
    )
    if longest > limit:
        if settings.thinking:
            remedies.append("export HANABI_THINKING=false")
        finding = f"{numbers}: such games are truncated; the model allows {model_limit}"
        return warn("context", finding, "\n".join(remedies))
    return ok("context", f"{numbers}; the model allows {model_limit}")


def _ways_to_fit(context: Context, budget: Budget, model_limit: int) -> list[str]:
    """Return lines to type, each of which makes the longest conversation fit."""
    settings = context.settings
    limit = settings.max_model_len
    longest = budget.longest(budget.memory)
    ways = []
    if longest <= model_limit:
        rounded = math.ceil(longest / _CONTEXT_UNIT) * _CONTEXT_UNIT
        ways.append(f"export HANABI_MAX_MODEL_LEN={min(model_limit, rounded)}")
    room_for_replies = limit - budget.prompts(budget.memory)
    reply = room_for_replies // budget.num_turns(budget.memory)
    if reply >= 1:
        ways.append(f"export MAX_COMPLETION_LENGTH={reply}")
    fitting = budget.fitting(limit)
    if fitting is not None:
        ways.append(f"export HANABI_MEMORY={fitting}")
        if fitting != "turn":
            ways.append("export HANABI_MEMORY=turn")
    if not ways:
        compact = " HANABI_OBSERVATION=compact" if "observation" in settings.env_config else ""
        ways.append(f"export HANABI_MAX_MODEL_LEN={model_limit}{compact}")
    return ways


def history_checks(context: Context) -> Check:
    """Report what a game costs, by how much of it players remember.

    Four memories are compared: the whole game, the chosen one, the longest that fits, and only the
    current turn.
    """
    budget = context.budget
    limit = context.settings.max_model_len
    if budget is None:
        return skip("history", "needs the model, its chat template and the dataset")
    longest_that_fits = budget.fitting(limit) or "turn"
    memories: list[Memory] = ["game", budget.memory, longest_that_fits, "turn"]
    costs = []
    for memory in dict.fromkeys(memories):
        longest = budget.longest(memory)
        fits = "fits" if longest <= limit else "does not fit"
        tokens = amount(budget.of_game(memory))
        costs.append(f"{memory}: {tokens} tokens, the longest sequence {longest} ({fits})")
    head = (
        f"HANABI_MEMORY={budget.memory}; training on the longest game ({budget.preset}) takes, with"
    )
    return ok("history", f"{head} {'; '.join(costs)}")


def vocabulary_checks(context: Context) -> Check:
    """Check that the tokenizer knows every word of the games; a tiny model knows only one board."""
    settings = context.settings
    if context.budget is None or context.chat is None:
        return skip("vocabulary", "needs the model, its chat template and the dataset")
    boards = boards_of(context.setups)
    try:
        check_vocabulary(context.setups, context.chat.tokenizer, settings.model)
    except SettingsError as error:
        remedy = f"{tiny_model_command(*boards)}\nexport MODEL={tiny_model_folder(*boards)}"
        return fail("vocabulary", str(error), remedy)
    presets, _, _ = boards
    return ok("vocabulary", f"every word of {', '.join(presets)} has a token")
