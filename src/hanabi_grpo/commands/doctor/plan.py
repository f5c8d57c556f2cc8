"""`doctor --as`: plan a run on GPUs that are not here, before renting them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.commands.doctor.budget import step_seconds
from hanabi_grpo.commands.doctor.check import Check, ok, skip
from hanabi_grpo.commands.doctor.context import Context, amount
from hanabi_grpo.commands.doctor.memory import ModelSizes, gpu_limits, server_parts, trainer_parts
from hanabi_grpo.commands.doctor.nvidia_smi import Gpu
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import PASSED_THROUGH, variables
from hanabi_grpo.settings.game import HANABI
from hanabi_grpo.settings.gpus import SOLD, find_card
from hanabi_grpo.settings.names import ENV
from hanabi_grpo.settings.sources import DOTENV, PROFILE_VARIABLE, PROFILES, find, read_sources

DEVICE = ("gpu", "doctor --as plans a machine with GPUs")
STEPS = 500
"""Number of steps for which hours are reported."""
_MACHINE = re.compile(r"(?:(?P<count>-?\d+)\s*[x×*]\s*)?(?P<card>.+)", re.IGNORECASE)
_MAX_GPUS = 8
_SMALL_MIB = 25_000
"""Memory up to which a single GPU gets the 24 GB profile."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_PARALLEL = "VLLM_TENSOR_PARALLEL_SIZE"
_COPIES = "VLLM_DATA_PARALLEL_SIZE"
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalMemory:
    """Memory that a terminal needs on each of its GPUs, in bytes."""

    parts: Mapping[str, float]
    needed: float
    limit: float
    """What it may take."""
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `doctor --as` computes; all numbers are estimates for the longest games."""

    machine: str
    """E.g. "8 × NVIDIA H100 80GB HBM3"."""
    model: str
    boards: tuple[str, ...]
    server: TerminalMemory
    trainer: TerminalMemory
    games_seconds: float
    learning_seconds: float
    step_seconds: float
    sampled_tokens_per_second: float
    """Reply tokens per second during games, over all copies of the model."""
    learned_tokens_per_second: float
    """Prompt and reply tokens per second during learning, over all processes."""
    steps: int
    """MAX_STEPS, or its default."""
    hours: float
    """Hours for `steps` steps."""
    hours_of_500_steps: float


def parse_machine(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs that `--as` names.

    Args:
        text: E.g. "8xH100-80GB"; without a number it is one GPU.

    Raises:
        SettingsError: The GPU is not in the list, or there are too many.
    """
    match = _MACHINE.fullmatch(text.strip())
    known = ", ".join(SOLD)
    if match is None:
        raise SettingsError(f"--as {text!r}: use NxCARD, e.g. 8xH100-80GB; known cards: {known}.")
    count = int(match["count"] or 1)
    if not 1 <= count <= _MAX_GPUS:
        raise SettingsError(
            f"--as {text!r}: {count} GPUs; one machine may have 1 to {_MAX_GPUS}. "
            "See docs/scale.md for several servers and machines."
        )
    wanted = _letters(match["card"])
    whole = [name for name in SOLD if _letters(name) == wanted]
    without_memory = [name for name in SOLD if _letters(name.rpartition("-")[0]) == wanted]
    found = whole or without_memory
    if not found:
        raise SettingsError(f"--as {text!r}: unknown card {match['card']!r}; known cards: {known}.")
    if len(found) > 1:
        raise SettingsError(f"--as {text!r}: ambiguous; choose one of {', '.join(found)}.")
    card = SOLD[found[0]]
    gpus = []
    for number in range(count):
        gpus.append(Gpu(str(number), card.name, card.mebibytes, card.mebibytes))
    return tuple(gpus)


def _letters(name: str) -> str:
    """Normalize a card's name for comparison: no makers, case, spaces or hyphens."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return letters.removeprefix("nvidia").removeprefix("geforce")


def parse_assignments(arguments: Sequence[str]) -> dict[str, str]:
    """Return the settings of NAME=VALUE arguments.

    Raises:
        SettingsError: An argument is not an assignment, or its name is not a setting.
    """
    given = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or not name:
            raise SettingsError(
                f"{argument!r}: not NAME=VALUE; give settings for this call as in "
                "MODEL=Qwen/Qwen3-4B."
            )
        given[name] = value
    known = {variable.env for variable in variables(given.get(ENV, HANABI))}
    known |= {PROFILE_VARIABLE, *PASSED_THROUGH}
    for name, value in given.items():
        # Unknown names with our prefix are refused later, with a more specific message.
        if name not in known and not name.startswith("HANABI_"):
            raise SettingsError(f"{name}={value}: no such setting; hanabi-grpo settings lists all.")
    return given


def plan_environ(
    environ: Mapping[str, str],
    gpus: Sequence[Gpu],
    given: Mapping[str, str],
    dotenv: Path = Path(DOTENV),
) -> dict[str, str]:
    """Return the environment of a planned run, including a split of its GPUs if none is given.

    The split is that of the shipped profile for this number of GPUs. Without such a profile, the
    server takes the first half of them, with a copy of the model on each, and the trainer the rest.

    Args:
        environ: The shell's variables. CUDA_VISIBLE_DEVICES* are for this machine and are ignored.
        gpus: The planned GPUs.
        given: Settings of this call.
        dotenv: Path of `.env`.
    """
    planned = {name: value for name, value in environ.items() if not name.startswith(_VISIBLE)}
    planned |= given
    sources = read_sources(planned, dotenv).ordered
    if find(sources, PROFILE_VARIABLE) is not None:
        return planned
    profile = PROFILES / f"gpu-{len(gpus)}.env"
    if len(gpus) == 1 and gpus[0].total < _SMALL_MIB:
        profile = PROFILES / "gpu-24gb.env"
    if profile.is_file():
        planned[PROFILE_VARIABLE] = str(profile)
        return planned
    halves = _halves(len(gpus))
    if find(sources, _PARALLEL) is not None:
        # Tensor parallelism alone means one copy of the model, as in the settings.
        del halves[_COPIES]
    for name, value in halves.items():
        if find(sources, name) is None:
            planned[name] = value
    return planned


def _halves(count: int) -> dict[str, str]:
    """Return the settings that divide `count` GPUs between the terminals."""
    if count == 1:
        return {
            _VISIBLE: "0",
            _COPIES: "1",
            "NPROC_PER_NODE": "1",
            "DEEPSPEED": "none",
            "HANABI_GPU_MEMORY_UTILIZATION": "0.4",
            "HANABI_TRAINER_MEMORY": "0.5",
        }
    numbers = [str(number) for number in range(count)]
    num_server = count // 2
    num_trainer = count - num_server
    return {
        f"{_VISIBLE}_SERVER": ",".join(numbers[:num_server]),
        f"{_VISIBLE}_TRAINER": ",".join(numbers[num_server:]),
        _COPIES: str(num_server),
        "NPROC_PER_NODE": str(num_trainer),
        "DEEPSPEED": "zero2" if num_trainer > 1 else "none",
    }


def make_plan(context: Context) -> Plan | None:
    """Return the plan; None if sizes, games or the GPU's data sheet are missing."""
    sizes = ModelSizes.from_config(context.config)
    gpu = context.planned_gpus[0]
    card = find_card(gpu.name)
    if sizes is None or card is None or context.budget is None:
        return None
    seconds = step_seconds(context, sizes, card, context.budget)
    limits = gpu_limits(context, gpu.total << 20)
    steps = context.settings.max_steps or STEPS
    return Plan(
        machine=f"{len(context.planned_gpus)} × {gpu.name}",
        model=context.settings.model,
        boards=tuple(dict.fromkeys(setup.spec.preset for setup in context.setups)),
        server=_terminal_memory(server_parts(context, sizes), limits.server),
        trainer=_terminal_memory(trainer_parts(context, sizes), limits.trainer),
        games_seconds=seconds.games,
        learning_seconds=seconds.learning,
        step_seconds=seconds.total,
        sampled_tokens_per_second=seconds.step.sampled / seconds.games,
        learned_tokens_per_second=seconds.step.trained
        * context.settings.updates_per_step
        / seconds.learning,
        steps=steps,
        hours=steps * seconds.total / _SECONDS_PER_HOUR,
        hours_of_500_steps=STEPS * seconds.total / _SECONDS_PER_HOUR,
    )


def _terminal_memory(parts: dict[str, float], limit: float) -> TerminalMemory:
    needed = sum(parts.values())
    return TerminalMemory(parts=parts, needed=needed, limit=limit, fits=needed <= limit)


def plan_checks(context: Context) -> Iterator[Check]:
    """Summarize a plan: whether it fits, tokens per second, and hours."""
    plan = make_plan(context)
    if plan is None:
        yield skip("plan", "needs the model's sizes and the games")
        return
    memories = {"server": plan.server, "trainer": plan.trainer}
    texts = [f"{name} {_memory_text(memory)}" for name, memory in memories.items()]
    yield ok("plan", f"memory per GPU: {'; '.join(texts)}")
    yield ok(
        "plan",
        f"estimate: {amount(plan.sampled_tokens_per_second)} reply tokens/s during games, "
        f"{amount(plan.learned_tokens_per_second)} tokens/s during learning",
    )
    hours = [f"{plan.hours_of_500_steps:.1f} hours for {STEPS} steps"]
    if plan.steps != STEPS:
        hours.append(f"{plan.hours:.1f} hours for MAX_STEPS={plan.steps}")
    yield ok(
        "plan",
        f"estimate: {', '.join(hours)}, if every game and reply has its maximum length; real ones "
        "are shorter. Nothing was started or downloaded",
    )


def _memory_text(memory: TerminalMemory) -> str:
    verdict = "fits" if memory.fits else "does not fit"
    return f"{_gigabytes(memory)}, {verdict}"


def _gigabytes(memory: TerminalMemory) -> str:
    return f"{memory.needed / 1e9:.1f} GB of {memory.limit / 1e9:.1f}"


def plan_markdown(plan: Plan) -> str:
    """Return a plan as a row of the table in docs/hardware.md."""
    cells = [
        plan.machine.replace("NVIDIA ", ""),
        plan.model.rpartition("/")[2],
        ", ".join(f"`{board}`" for board in plan.boards),
        _table_memory(plan.server),
        _table_memory(plan.trainer),
        f"{plan.games_seconds:.0f} + {plan.learning_seconds:.0f}",
        f"{plan.hours_of_500_steps:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _table_memory(memory: TerminalMemory) -> str:
    return _gigabytes(memory) if memory.fits else f"**{_gigabytes(memory)}**"
