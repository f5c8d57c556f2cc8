"""`hanabi-grpo simulate`: the seconds of a step on other machines, by a small model; nothing is started."""

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from hanabi_grpo.errors import SettingsError


def simulate(
    servers: Annotated[str, typer.Option(help="Rollout servers, a comma list.")] = "1,2,4,8",
    gpus: Annotated[str, typer.Option(help="GPUs of each server.")] = "1",
    ranks: Annotated[str, typer.Option(help="Trainer processes.")] = "1,4",
    players: Annotated[str | None, typer.Option(help="Players; the run's, or 2.")] = None,
    turns: Annotated[str | None, typer.Option(help="Turns of a game, all players together; the run's, or 6.")] = None,
    deals: Annotated[int | None, typer.Option(min=1, help="HANABI_DEALS_PER_STEP; the run's, or 8.")] = None,
    games: Annotated[int | None, typer.Option(min=1, help="NUM_GENERATIONS; the run's, or 16.")] = None,
    reply_tokens: Annotated[float | None, typer.Option(min=0.01, help="Tokens of a reply; the run's, or 3.")] = None,
    updates: Annotated[int | None, typer.Option(min=1, help="HANABI_UPDATES_PER_STEP; the run's, or 1.")] = None,
    run: Annotated[Path | None, typer.Option("--calibrate", metavar="RUN", help="Run for speeds and work.")] = None,
    check: Annotated[list[Path] | None, typer.Option(metavar="RUN", help="Run to compare with; repeatable.")] = None,
    assume: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Assumption; repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Show what a step would take: servers, GPUs, trainer ranks, players and game length against seconds.

    It is a model, not a measurement: every assumption is listed with its source. --calibrate takes speeds from a run of
    yours, --check says how far the model is from another run. No environment variable is read.
    """
    import json
    import sys

    from hanabi_grpo.commands.console import make_console
    from hanabi_grpo.report import Sheet
    from hanabi_grpo.simulation.calibrate import calibrate, compared, measure
    from hanabi_grpo.simulation.model import Assumptions, Layout, Work, step_times

    given = _assumptions(assume or [], Assumptions())
    assumed, work = replace(Assumptions(), **given), Work()
    fitted: tuple[str, ...] = ()
    if run is not None:
        measured = measure(run)
        assumed, fitted = calibrate(measured, assumed)
        assumed, work = replace(assumed, **given), measured.work
    options: dict[str, Any] = {"deals": deals, "games": games, "reply_tokens": reply_tokens, "updates": updates}
    work = replace(work, **{name: value for name, value in options.items() if value is not None})
    cases = product(
        _numbers("--servers", servers),
        _numbers("--gpus", gpus),
        _numbers("--ranks", ranks),
        _numbers("--players", players or str(work.players)),
        _numbers("--turns", turns) if turns else [work.turns],
    )
    rows = []
    for number, each, processes, team, length in cases:
        layout = Layout(servers=number, gpus=each, ranks=processes)
        times = step_times(replace(work, players=team, turns=length), layout, assumed)
        phases = {**asdict(times), "step": times.plain, "step_overlapped": times.overlapped}
        rows.append({**asdict(layout), "players": team, "turns": length, **phases})
    sources = []
    for one in fields(assumed):
        source = "given" if one.name in given else f"measured: {run}" if one.name in fitted else one.metadata["source"]
        sources.append({"name": one.name, "value": getattr(assumed, one.name), **one.metadata, "source": source})
    checks = {str(other): compared(measure(other), assumed) for other in check or []}
    if as_json:
        told = {"work": asdict(work), "assumptions": sources, "rows": rows, "checks": checks}
        sys.stdout.write(json.dumps(told, indent=2, ensure_ascii=False) + "\n")
        return
    console = make_console()

    def show(title: str, columns: tuple[str, ...], lines: Sequence[Sequence[str]], num_names: int) -> None:
        console.print(Sheet(title=title, columns=columns, groups=[lines], num_names=num_names).rich())

    title = f"Seconds of a step of {work.deals} deals × {work.games} games (a model, not a measurement)"
    named = ("servers", "GPUs each", "ranks", "players", "turns", "push", "games", "learning", "step", "overlapped")
    show(title, named, [tuple(f"{value:.3g}" for value in row.values()) for row in rows], 0)
    listed = [(one["name"], f"{one['value']:.4g}", one["meaning"], one["source"]) for one in sources]
    show("What it assumes", ("assumption", "value", "meaning", "source"), listed, 4)
    for name, found in checks.items():
        lines = [
            (phase, f"{one['model']:.3g}", f"{one['measured']:.3g}", f"{100 * one['error']:+.0f} %")
            for phase, one in found.items()
        ]
        show(f"Against {name}", ("seconds of", "model", "measured", "error"), lines, 1)


def _numbers(option: str, text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and 1 <= int(word) <= 10_000 for word in words):
        raise SettingsError(f"{option} {text!r}: a comma list of whole numbers from 1 to 10000.")
    return [int(word) for word in words]


def _assumptions(words: list[str], usual: Any) -> dict[str, float]:
    names = [one.name for one in fields(usual)]
    given = {}
    for word in words:
        name, _, text = word.partition("=")
        with contextlib.suppress(ValueError):
            given[name] = float(text)
        # Zero is no speed.
        least = 1e-9 if name.endswith(("speed", "peak", "gain", "link_mb")) else 0.0
        if name not in names or not least <= given.get(name, -1.0) < 1e12:
            raise SettingsError(f"--assume {word}: NAME=NUMBER, not negative; names are {', '.join(names)}.")
    return given
