"""Every ratio, in the order of the table, and how to measure it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bench import (
    env_rows,
    late_rows,
    logit_rows,
    lora_rows,
    memory_rows,
    parity_rows,
    peak_rows,
    play_rows,
    prefix_rows,
    push_rows,
    rollout_rows,
    start_rows,
    stock_rows,
    team_rows,
    training_rows,
    trl_rows,
)
from bench.context import Bench
from bench.overlap_rows import overlap_rows
from bench.row import Row, Target, at_least, at_most
from hanabi_grpo.errors import SettingsError

_LETTERS = "abcdefghij"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Rows that one function measures."""

    id: str
    """Number and letter, e.g. "R3b"; the first one if there are several."""
    title: str
    """The name in the table if the rows could not be measured."""
    target: Target | None
    """The target in the table if the rows could not be measured; None: only reported."""
    needs_engine: bool
    """Whether it uses the engine that the run starts once."""
    measure: Callable[[Bench], Awaitable[list[Row]]]
    """Measures the rows."""
    also: tuple[str, ...] = ()
    """Other numbers that the same function measures."""
    own_engines: bool = False
    """Whether it starts its own engines.

    It is then measured before the shared engine takes memory and cores."""

    @property
    def numbers(self) -> tuple[str, ...]:
        """What --only may name, e.g. "R3"."""
        return (self.id.rstrip(_LETTERS), *self.also)


async def _overlap(bench: Bench) -> list[Row]:
    import asyncio

    # It sleeps in a thread, not in this event loop.
    return await asyncio.to_thread(overlap_rows)


FAMILIES = (
    Family(
        id="R1",
        title="tokens/s of games ÷ bare engine",
        target=at_least(0.9),
        needs_engine=True,
        measure=rollout_rows.against_raw,
    ),
    Family(
        id="R2",
        title="games/s ÷ ms-swift's GYMScheduler",
        target=at_least(2.0),
        needs_engine=True,
        measure=stock_rows.against_stock,
    ),
    Family(
        id="R3a",
        title="generation with LoRA ÷ without",
        target=at_least(0.9),
        needs_engine=True,
        measure=lora_rows.generation,
    ),
    Family(
        id="R3b",
        title="LoRA on CPU, ours ÷ stock, prefill",
        target=at_least(2.0),
        needs_engine=False,
        measure=lora_rows.operator,
    ),
    Family(
        id="R4",
        title="cached ÷ sharable prompt tokens",
        target=at_least(0.85),
        needs_engine=True,
        measure=rollout_rows.cached_share,
    ),
    Family(
        id="R5",
        title="weight sync ÷ step and ÷ floor",
        target=None,
        needs_engine=True,
        measure=push_rows.push,
    ),
    Family(
        id="R6",
        title="step ÷ its parts",
        target=at_most(1.15),
        needs_engine=False,
        measure=_overlap,
    ),
    Family(
        id="R7",
        title="the tail of a step's games",
        target=None,
        needs_engine=True,
        measure=rollout_rows.tail,
    ),
    Family(
        id="R8",
        title="one sequence per game and player ÷ one per turn; useful ÷ padded tokens",
        target=at_most(1 / 3),
        needs_engine=False,
        measure=training_rows.training,
        also=("R11",),
    ),
    Family(
        id="R8b",
        title="shared prefixes computed once ÷ each sequence separately",
        target=None,
        needs_engine=False,
        measure=prefix_rows.shared_beginnings,
    ),
    Family(
        id="R9a",
        title="env time ÷ turn",
        target=at_most(0.01),
        needs_engine=False,
        measure=env_rows.env_share,
    ),
    Family(
        id="R9b",
        title="event-loop lag",
        target=env_rows.LAG_TARGET,
        needs_engine=False,
        measure=env_rows.loop_lag,
    ),
    Family(
        id="R10",
        title="mean |trainer logp − sampler logp| after a weight sync",
        target=at_most(parity_rows.TOLERANCE),
        needs_engine=True,
        measure=parity_rows.parity,
    ),
    Family(
        id="R12",
        title="log-log slopes of the server path",
        target=at_most(1.1),
        needs_engine=False,
        measure=env_rows.growth,
    ),
    Family(
        id="R12d",
        title="log-log slope of a step's games on the engine",
        target=at_most(1.1),
        needs_engine=True,
        measure=rollout_rows.growth,
    ),
    Family(
        id="R13",
        title="a training step, TRL's GRPOTrainer ÷ ours",
        target=trl_rows.TARGET,
        needs_engine=True,
        measure=trl_rows.against_trl,
    ),
    Family(
        id="R14",
        title=start_rows.TITLE,
        target=start_rows.TARGET,
        needs_engine=False,
        measure=start_rows.start,
        own_engines=True,
    ),
    Family(
        id="R16",
        title="games of 70 turns: memory = turn ÷ the whole history",
        target=memory_rows.TARGET,
        needs_engine=False,
        measure=memory_rows.single_turns,
    ),
    Family(
        id="R17",
        title="memory per additional logit: head in chunks ÷ whole logits",
        target=logit_rows.TARGET,
        needs_engine=False,
        measure=logit_rows.logit_memory,
    ),
    Family(
        id="R18",
        title="a random move ÷ OpenSpiel's own",
        target=play_rows.TARGET,
        needs_engine=False,
        measure=play_rows.random_play,
    ),
    Family(
        id="R19",
        title="memory of a micro-batch: deviation of predicted ÷ measured from 1",
        target=peak_rows.TARGET,
        needs_engine=False,
        measure=peak_rows.predicted_peaks,
    ),
    Family(
        id="R20",
        title="five players with an adapter each ÷ one shared adapter",
        target=team_rows.TARGET,
        needs_engine=False,
        measure=team_rows.team,
    ),
    Family(
        id="R21",
        title="games with seeds ÷ without seeds",
        target=None,
        needs_engine=True,
        measure=rollout_rows.seeds,
    ),
    Family(
        id="R22",
        title=late_rows.TITLE,
        target=late_rows.TARGET,
        needs_engine=True,
        measure=late_rows.hanging,
    ),
)


def chosen(only: Sequence[str]) -> list[Family]:
    """Return the families that --only names, or all if it names none.

    Args:
        only: "R3" selects R3a and R3b, "R12" selects R12a to R12d, and "R3b" only that one. If a
            family is measured as a whole, any of its letters selects all of it.

    Raises:
        SettingsError: A value is not a ratio.
    """
    if not only:
        return list(FAMILIES)
    families: list[Family] = []
    for text in only:
        families += _matching(text)
    return [family for family in FAMILIES if family in families]


def _matching(text: str) -> list[Family]:
    """Return the families that one value of --only names; raises like `chosen`."""
    wanted_id = text.strip().lower().replace("r", "R", 1)
    number = wanted_id.rstrip(_LETTERS)
    same_number = [family for family in FAMILIES if number in family.numbers]
    families = same_number
    if wanted_id != number:
        same_id = [family for family in same_number if family.id == wanted_id]
        # It has the letters that are not in another family's id: R12a to R12c, next to R12d.
        without_letter = [family for family in same_number if family.id == number]
        families = same_id or without_letter or same_number
    if not families:
        raise SettingsError(f"--only {text!r}: choose one of {', '.join(_all_numbers())}.")
    return families


def _all_numbers() -> list[str]:
    """Return "R1", "R2" and so on, ascending."""
    numbers: set[str] = set()
    for family in FAMILIES:
        numbers.update(family.numbers)
    return sorted(numbers, key=lambda number: int(number.removeprefix("R")))
