"""The dataset, the arithmetic of a step, and whether the longest game fits a conversation of the
model.
"""

import math
from collections.abc import Iterator

from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import Context, amount
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.datasets import check_payoffs, mix_line, num_steps, training_rows
from hanabi_grpo.rollout.vocabulary import boards_of, check_vocabulary
from hanabi_grpo.settings import batch_plan
from hanabi_grpo.settings.defaults import tiny_model_command, tiny_model_folder
from hanabi_grpo.settings.steps import plan_line

_ORIGINS = ".venv/bin/hanabi-grpo settings   # shows what holds now, and where it comes from"


def dataset_checks(context: Context) -> Check:
    """Read and check every row."""
    settings = context.settings
    try:
        rows = training_rows(settings)
    except SettingsError as error:
        return fail(
            "dataset",
            str(error),
            "unset DATASET   # or remove its line from .env; the settings decide then",
        )
    source = settings.dataset or "none: the board of the settings"
    return ok("dataset", f"{source}: {len(rows)} row(s), {mix_line(rows)}")


def batch_checks(context: Context) -> Iterator[Check]:
    """Show the arithmetic of a step, or what of it the trainer would refuse."""
    settings, rows = context.settings, context.rows
    try:
        plan = batch_plan(settings)
        if rows is None:
            yield skip("batch", "needs the dataset")
            return
        check_payoffs(settings, context.setups)
        steps = num_steps(settings, rows)
    except SettingsError as error:
        yield fail("batch", str(error), _ORIGINS)
        return
    yield ok("batch", plan_line(settings, plan, steps))


def context_checks(context: Context) -> Check:
    """Compare the longest conversation with HANABI_MAX_MODEL_LEN and with what the model was made
    for.
    """
    settings, budget = context.settings, context.budget
    limit = settings.max_model_len
    most = int(context.config.get("max_position_embeddings", 0)) or limit
    if limit > most:
        finding = (
            f"HANABI_MAX_MODEL_LEN={limit}, but {settings.model} was made for {most}: the "
            "server would not start"
        )
        return fail("context", finding, f"export HANABI_MAX_MODEL_LEN={most}")
    if budget is None:
        return skip("context", "needs the model, its chat template and the dataset")
    turns, prompts, longest = (
        count(budget.memory) for count in (budget.held, budget.prompts, budget.longest)
    )
    numbers = (
        f"the longest game ({budget.preset}, {budget.turns} turns a player) takes {prompts} "
        "tokens of prompts + "
        f"{turns} replies of {settings.max_completion_length} = {longest} of "
        f"HANABI_MAX_MODEL_LEN={limit}"
    )
    ways = []
    if longest <= most:
        ways.append(f"export HANABI_MAX_MODEL_LEN={min(most, math.ceil(longest / 256) * 256)}")
    if (reply := (limit - prompts) // turns) >= 1:
        ways.append(f"export MAX_COMPLETION_LENGTH={reply}")
    if fitting := budget.fitting(limit):
        ways += [f"export HANABI_MEMORY={memory}" for memory in dict.fromkeys((fitting, "turn"))]
    compact = " HANABI_OBSERVATION=compact" if "observation" in settings.env_config else ""
    ways = ways or [f"export HANABI_MAX_MODEL_LEN={most}{compact}"]
    if (
        first := (budget.opening if budget.memory == "game" else budget.alone) + budget.reply
    ) > limit:
        finding = (
            f"the first message and a reply take {first} tokens of HANABI_MAX_MODEL_LEN={limit}"
        )
        return fail("context", f"{finding}: no move can be made", "\n".join(ways))
    if longest > limit:
        ways += ["export HANABI_THINKING=false"] * settings.thinking
        return warn(
            "context", f"{numbers}: such games are cut; the model allows {most}", "\n".join(ways)
        )
    return ok("context", f"{numbers}; the model allows {most}")


def history_checks(context: Context) -> Check:
    """Show what a game costs by how much of it players remember: all, what was chosen, the most
    that fits, a turn.
    """
    budget, limit = context.budget, context.settings.max_model_len
    if budget is None:
        return skip("history", "needs the model, its chat template and the dataset")
    costs = []
    for memory in dict.fromkeys(("game", budget.memory, budget.fitting(limit) or "turn", "turn")):
        longest, tokens = budget.longest(memory), amount(budget.of_game(memory))
        fits = "fits" if longest <= limit else "does not fit"
        costs.append(f"{memory}: {tokens} tokens, the longest sequence {longest} ({fits})")
    chosen = (
        f"HANABI_MEMORY={budget.memory}; the longest game ({budget.preset}) gives to training with"
    )
    return ok("history", f"{chosen} {'; '.join(costs)}")


def vocabulary_checks(context: Context) -> Check:
    """Tell whether the tokenizer knows the words of the dataset's games: a tiny model's knows those
    of one board.
    """
    settings = context.settings
    if context.budget is None or context.chat is None:
        return skip("vocabulary", "needs the model, its chat template and the dataset")
    boards = boards_of(context.setups)
    try:
        check_vocabulary(context.setups, context.chat.tokenizer, settings.model)
    except SettingsError as error:
        make = f"{tiny_model_command(*boards)}\nexport MODEL={tiny_model_folder(*boards)}"
        return fail("vocabulary", str(error), make)
    return ok("vocabulary", f"every word of {', '.join(boards[0])} has a token")
