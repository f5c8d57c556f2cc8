"""The dataset, the arithmetic of a step, and one game to see that the rules run here."""

import time
from collections.abc import Iterator

from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.commands.doctor.environment import unset
from hanabi_grpo.commands.train import plan_line
from hanabi_grpo.envs.hanabi.policies.scripted import RandomPolicy
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.datasets import check_rewards, mix_line, num_steps, training_rows
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.settings import batch_plan, check_updates, update_notes

_SHOWN = 3


def dataset_checks(context: Context) -> Iterator[Check]:
    """Read and check every row."""
    settings = context.settings
    try:
        rows = training_rows(settings)
    except SettingsError as error:
        board = f"   # the board is then HANABI_PRESET={settings.preset}" if settings.preset else ""
        yield fail("dataset", str(error), unset(context, "dataset") + board)
        return
    boards = [f"{game.preset} ({game.players} players, {game.observation})" for game in context.games]
    fixed = sum(len(row["seeds"] or ()) for row in rows)
    endless = sum(1 for row in rows if not row["seeds"])
    kinds = [f"{fixed} fixed deals"] if fixed else []
    kinds += [f"{endless} with fresh deals"] if endless else []
    more = f" and {len(boards) - _SHOWN} more" if len(boards) > _SHOWN else ""
    more += f"; {mix_line(rows, settings)}" if len(rows) > 1 else ""
    source = settings.dataset or "none: the board of the settings"
    yield ok("dataset", f"{source}: {len(rows)} row(s), {', '.join(kinds)}; {', '.join(boards[:_SHOWN])}{more}")


def batch_checks(context: Context) -> Iterator[Check]:
    """Show the arithmetic of a step, or what does not divide."""
    settings = context.settings
    try:
        check_updates(settings)
    except SettingsError as error:
        yield fail("updates", str(error), "hanabi-grpo settings   # shows what holds now, and where it comes from")
        return
    for note in update_notes(settings):
        yield warn("updates", note, "hanabi-grpo settings   # shows what holds now, and where it comes from")
    try:
        plan = batch_plan(settings)
    except SettingsError as error:
        if settings.nproc_per_node > 1 and settings.deepspeed == "none":
            yield fail("batch", str(error), "export DEEPSPEED=zero2")
        else:
            yield fail("batch", str(error), f"export {_dividing(context)}")
        return
    if context.rows is None:
        yield skip("batch", "needs the dataset")
        return
    try:
        check_rewards(settings, context.rows)
    except SettingsError as error:
        yield fail("updates", str(error), "export HANABI_ADVANTAGE_SCALE=none")
        return
    try:
        steps = num_steps(settings, context.rows)
    except SettingsError as error:
        yield fail("batch", str(error), "export MAX_STEPS=500; unset NUM_TRAIN_EPOCHS")
        return
    yield ok("batch", plan_line(settings, plan, steps))


def game_checks(context: Context) -> Iterator[Check]:
    """Play one random game on the dataset's first board."""
    if not context.games:
        yield skip("game", "needs the dataset")
        return
    config = context.games[0]
    policies = [RandomPolicy()] * config.players
    play_episodes_sync(config, policies, "doctor", [1])  # the first one also loads the rules
    start = time.perf_counter()
    [episode] = play_episodes_sync(config, policies, "doctor", [0])
    spent = 1000 * (time.perf_counter() - start)
    points = f"{episode.score} of {config.spec().max_score} points"
    finding = f"a random one on {config.preset}: {points}, {episode.status.value}, {len(episode.turns)} turns"
    yield ok("game", f"{finding}, {spent:.1f} ms")


def _dividing(context: Context) -> str:
    settings = context.settings
    share = settings.deals_per_step * settings.num_generations // settings.nproc_per_node
    fitting = [size for size in range(1, settings.per_device_train_batch_size + 1) if share % size == 0]
    if share * settings.nproc_per_node == settings.deals_per_step * settings.num_generations:
        return f"PER_DEVICE_TRAIN_BATCH_SIZE={fitting[-1]}"
    return f"HANABI_DEALS_PER_STEP={settings.nproc_per_node * settings.per_device_train_batch_size}"
