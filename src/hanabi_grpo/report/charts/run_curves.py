"""The pictures of one run: score, figures of each player, seconds of each phase."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.smoothing import trailing_mean
from hanabi_grpo.report.charts.dynamics import draw_dynamics
from hanabi_grpo.report.charts.labels import Label, write_labels
from hanabi_grpo.report.run_views.figures import PLAYER, SCORE, phases, players, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = ("#1f5fa8", "#b5651d", "#2e7d32", "#6a3d9a", "#c2185b")
_PHASE_COLORS = {"push": "#c2185b", "rollout": "#1f5fa8", "wait": "#d9a400", "recall": "#6a3d9a", "train": "#2e7d32"}
_LEVEL = "#555555"
_SCORE_SIZE = (9.0, 4.6)
_COLUMNS = 4
_CELL = (3.4, 2.3)
"""Inches of one picture of a player's figure."""
_SMOOTH = 9
_DPI = 120
_Rows = Sequence[Mapping[str, Any]]


def draw_score(
    paths: Sequence[Path],
    rows: _Rows,
    *,
    title: str,
    most_points: int | None = None,
    levels: Mapping[str, float] | None = None,
) -> None:
    """Draw the mean score of the training games by step: thin each step with a band of two standard errors.

    Args:
        paths: Files to write, *.png or *.svg.
        rows: Of `dynamics.read_history`.
        title: Heading.
        most_points: Of the board, for the label.
        levels: Heights of level lines by name.

    Raises:
        SettingsError: No row has a score, or a file cannot be written.
    """
    steps, scores = series(rows, SCORE)
    if not steps:
        raise SettingsError(f'no row has a "{SCORE}"; the run ended before its first step.')
    figure = _figure(_SCORE_SIZE)
    axes = figure.subplots()
    at_steps = dict(zip(steps, scores, strict=True))
    error_steps, errors = series([row for row in rows if int(row["step"]) in at_steps], "score/se")
    low = [at_steps[step] - 2 * error for step, error in zip(error_steps, errors, strict=True)]
    high = [at_steps[step] + 2 * error for step, error in zip(error_steps, errors, strict=True)]
    if error_steps:
        axes.fill_between(error_steps, low, high, color=_COLORS[0], alpha=0.15, linewidth=0)
    axes.plot(steps, scores, color=_COLORS[0], alpha=0.35, linewidth=0.9)
    means = trailing_mean(scores, _SMOOTH)
    axes.plot(steps, means, color=_COLORS[0], linewidth=2.2, marker="o" if len(steps) == 1 else None)
    labels = [Label(text=f"training games {means[-1]:.2f}", y=means[-1], color=_COLORS[0], bold=True)]
    for name, value in (levels or {}).items():
        axes.axhline(value, color=_LEVEL, linewidth=1.0, linestyle=(0, (1, 3)), zorder=1)
        labels.append(Label(text=f"{name} {value:.2f}", y=value, color=_LEVEL))
    write_labels(axes, labels, inches=_SCORE_SIZE[1])
    axes.set_ylabel("mean score of training games" + (f"\n(at most {most_points})" if most_points else ""))
    axes.set_xlabel("training step")
    axes.set_title(title, loc="left", fontsize=11, parse_math=False)
    band = "; band: its ±2 standard errors" if error_steps else ""
    figure.supxlabel(
        f"Thin: each step{band}. Bold: mean of the last {_SMOOTH}.", fontsize=8.5, x=0.01, ha="left", color="#333333"
    )
    _tidy(axes)
    _save(figure, paths)


def draw_players(paths: Sequence[Path], rows: _Rows, *, title: str) -> None:
    """Draw a small picture per figure, with a line per player.

    Args:
        paths: Files to write, *.png or *.svg.
        rows: Of `dynamics.read_history`.
        title: Heading.

    Raises:
        SettingsError: The last row has no player's figure, or a file cannot be written.
    """
    names = players(rows)
    found = [one for one in PLAYER if any(series(rows, f"{name}/{one.name}")[0] for name in names)]
    if not found:
        raise SettingsError("the last row has no figure of a player; is this the metrics.jsonl of a training?")
    columns = min(_COLUMNS, len(found))
    num_rows = -(-len(found) // columns)
    figure = _figure((_CELL[0] * columns, _CELL[1] * num_rows + 0.7))
    grid = figure.subplots(num_rows, columns, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place >= len(found):
            axes.set_visible(False)
            continue
        for color, name in zip(_COLORS, names, strict=False):
            steps, values = series(rows, f"{name}/{found[place].name}")
            axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
            axes.plot(steps, trailing_mean(values, _SMOOTH), color=color, linewidth=1.7,
                      marker="." if len(steps) == 1 else None)  # fmt: skip
        axes.set_title(found[place].title, loc="left", fontsize=9)
        axes.tick_params(labelsize=7)
        if place >= len(found) - columns:
            axes.set_xlabel("training step", fontsize=8)
        _tidy(axes)
    handles = [grid[0][0].plot([], [], color=color, label=name)[0] for color, name in zip(_COLORS, names, strict=False)]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=9, frameon=False)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", parse_math=False)
    _save(figure, paths)


def draw_phases(paths: Sequence[Path], rows: _Rows, *, title: str) -> None:
    """Draw the seconds that each step spent in each phase, stacked.

    Args:
        paths: Files to write, *.png or *.svg.
        rows: Of `dynamics.read_history`.
        title: Heading.

    Raises:
        SettingsError: No row has a time, or a file cannot be written.
    """
    timed = [(int(row["step"]), found) for row in rows if (found := phases(row))]
    if not timed:
        raise SettingsError('no row has a "time/…"; is this the metrics.jsonl of a training?')
    steps = [step for step, _ in timed]
    names = [name for name in _PHASE_COLORS if any(name in found for _, found in timed)]
    figure = _figure((8.5, 4.2))
    axes = figure.subplots()
    layers = [trailing_mean([found.get(name, 0.0) for _, found in timed], _SMOOTH) for name in names]
    colors = [_PHASE_COLORS[name] for name in names]
    if len(steps) == 1:
        base = 0.0
        for name, layer, color in zip(names, layers, colors, strict=True):
            axes.bar(steps, layer, bottom=base, color=color, label=name, width=0.5)
            base += layer[0]
    else:
        axes.stackplot(steps, *layers, labels=names, colors=colors, alpha=0.85, linewidth=0)
        axes.set_xlim(steps[0], steps[-1])
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"seconds a step,\nmean of the last {_SMOOTH}")
    axes.set_xlabel("training step")
    axes.set_title(title, loc="left", fontsize=11, parse_math=False)
    figure.legend(loc="outside right upper", fontsize=9, frameon=False, reverse=True)
    _tidy(axes)
    _save(figure, paths)


def draw_run(
    files: Mapping[str, Sequence[Path]],
    rows: _Rows,
    *,
    title: str,
    most_points: int | None = None,
    levels: Mapping[str, float] | None = None,
) -> dict[str, str]:
    """Draw several pictures of a run; returns why one was left out, by its name.

    Args:
        files: By name, score, players, phases or dynamics, the files to write; of dynamics one, a PNG.
        rows: Of `dynamics.read_history`.
        title: Heading of each.
        most_points: See `draw_score`.
        levels: Likewise.
    """
    draw: dict[str, Callable[[Sequence[Path]], None]] = {
        "score": lambda paths: draw_score(paths, rows, title=title, most_points=most_points, levels=levels),
        "players": lambda paths: draw_players(paths, rows, title=title),
        "phases": lambda paths: draw_phases(paths, rows, title=title),
        "dynamics": lambda paths: draw_dynamics(paths[0], rows, title=title),
    }
    left_out = {}
    for name, paths in files.items():
        try:
            draw[name](paths)
        except SettingsError as error:
            left_out[name] = str(error)
    return left_out


def _figure(size: tuple[float, float]) -> "Figure":
    # The object interface: pyplot would choose a window system and keep every figure alive.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _tidy(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10]))


def _save(figure: "Figure", paths: Sequence[Path]) -> None:
    for path in paths:
        kind = path.suffix.removeprefix(".")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Without the date, equal runs give equal files.
            figure.savefig(path, dpi=_DPI, format=kind, metadata={"Date": None} if kind == "svg" else None)
        except OSError as error:
            raise SettingsError(f"{path}: cannot be written ({error.strerror}); choose another --out.") from error
