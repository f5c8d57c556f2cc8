"""R5: pushing every player's adapter, against a step and against the minimal work."""

import tempfile
from pathlib import Path
from typing import Any

from bench.context import Bench
from bench.pairing import Measure, Stopwatch, measure_pairs, ratios_of
from bench.row import Row, at_most


async def push(bench: Bench) -> list[Row]:
    """R5a and R5b: the time of a weight sync over that of a step's games, and over the floor."""
    engine = bench.needed_engine
    await engine.recorded_games()
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None

    async def pushing() -> Measure:
        with Stopwatch(children=True) as watch:
            await engine.push()
        return watch.measure(1)

    async def games() -> Measure:
        measure = await engine.play_again()
        return Measure(seconds=measure.seconds, cpu_seconds=measure.cpu_seconds, amount=1)

    async def floor() -> Measure:
        with tempfile.TemporaryDirectory(dir=folder) as name, Stopwatch() as watch:
            size = _floor(engine.model, engine.players, engine.settings.dtype, Path(name))
        return watch.measure(1, bytes=size)

    step_pairs = await measure_pairs(pushing, games, pairs=bench.pairs)
    floor_pairs = await measure_pairs(pushing, floor, pairs=bench.pairs)
    step_ratios, step_cpu = ratios_of(step_pairs, of_time=True)
    floor_ratios, floor_cpu = ratios_of(floor_pairs, of_time=True)
    how = "export, upload, checks, commit and receipts over HTTP on this machine"
    return [
        Row(
            id="R5a",
            name="weight sync ÷ step",
            arms=(
                f"weight sync of {len(engine.players)} adapters",
                f"one step's {engine.num_games} games alone",
            ),
            ratios=step_ratios,
            cpu_ratios=step_cpu,
            target=at_most(0.01),
            how=f"{how}; the learning in a real step would only lower the ratio",
            if_missed="it takes a few hundredths of a second for any model, and this step "
            "includes no learning",
        ),
        Row(
            id="R5b",
            name="weight sync ÷ floor",
            arms=(
                f"weight sync of {len(engine.players)} adapters",
                "serialize, write, read and parse in one process",
            ),
            ratios=floor_ratios,
            cpu_ratios=floor_cpu,
            target=at_most(3.0),
            how=how,
            if_missed="the floor has no HTTP, no second process, no checks and no receipts from "
            "the engine",
            details={"bytes": floor_pairs[-1].second.notes["bytes"]} if floor_pairs else {},
        ),
    ]


def _floor(model: Any, names: tuple[str, ...], dtype: str, folder: Path) -> int:
    """Do the minimal work of a weight sync once.

    Args:
        model: The model with the adapters.
        names: Names of the adapters.
        dtype: The dtype in which they are exported.
        folder: Folder for the files.

    Returns:
        The size of the adapters in bytes.
    """
    import torch
    from safetensors.torch import load

    from hanabi_grpo.training.model.adapters import export_adapter

    size = 0
    for name in names:
        body, _ = export_adapter(model, name, getattr(torch, dtype))
        path = folder / f"{name}.safetensors"
        path.write_bytes(body)
        load(path.read_bytes())
        size += len(body)
    return size
