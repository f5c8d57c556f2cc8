"""A comparison as tables, notes and JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from hanabi_grpo.envs.hanabi.rules import PRESETS, make_spec
from hanabi_grpo.evaluation.comparison.conditions import condition_notes
from hanabi_grpo.evaluation.comparison.curves import Axis, Curve, arm_curves, common_end, last_mean
from hanabi_grpo.evaluation.comparison.held_out import ArmScore, Difference, HeldOut, held_out
from hanabi_grpo.evaluation.comparison.runs import Arm, Run
from hanabi_grpo.evaluation.comparison.seeds import SeedEstimate, over_seeds
from hanabi_grpo.evaluation.tables import ATTAINABLE, ATTAINABLE_SOURCE, Sheet, attainable_row, board_title

_NONE = "–"
_ARMS = ("arm", "runs", "games/run", "seconds/run")
_HELD_OUT = ("arm", "mean", "± runs", "± deals", "lowest run", "highest run", "bombs", "hints/game")
_DIFFERENCES = ("difference", "mean ± SE over runs", "95 % interval", "± deals")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Everything that is known about arms, side by side."""

    board: str
    """Of the training scores; empty where runs do not say it."""
    axis: Axis
    end: float
    """Last step, or number of games, that every run has reached."""
    window: int
    """Steps of the trailing mean of curves, and of the training mean."""
    arms: tuple[Arm, ...]
    curves: tuple[Curve, ...]
    training: tuple[tuple[float, ...], ...]
    """Per arm, per run the mean score of the last `window` steps up to `end`."""
    evaluations: tuple[HeldOut, ...]
    references: Mapping[str, float]
    """Level lines by label, from low to high; the last one is what is attainable, where that is known."""

    @property
    def most_points(self) -> int | None:
        """Most points of the board of the training; None where it is not known."""
        for kind in self.evaluations:
            if kind.example.preset == self.board:
                return kind.example.reachable_max
        players = next((run.num_players for arm in self.arms for run in arm.runs if run.num_players), None)
        if players is None or self.board not in PRESETS or players not in PRESETS[self.board].players:
            return None
        return make_spec(self.board, players).reachable_max


def compare_arms(
    board: str,
    arms: Sequence[Arm],
    *,
    axis: Axis = Axis.STEPS,
    window: int = 10,
    evaluations: Sequence[str] = (),
    references: Mapping[str, float] | None = None,
) -> Comparison:
    """Compute curves, means and differences.

    Args:
        board: As `load_arms` returns it.
        arms: Likewise.
        axis: Against which curves are drawn.
        window: Steps of the trailing mean.
        evaluations: File names in the order wanted; empty: all that occur, ascending.
        references: Level lines by label.

    Raises:
        SettingsError: Runs of an arm have no step in common, or evaluations are of different boards.
    """
    end = common_end(arms, axis)
    curves = arm_curves(arms, axis, window=window)
    files = evaluations or sorted({file for arm in arms for run in arm.runs for file in run.evaluations})
    kinds = tuple(held_out(arms, file) for file in dict.fromkeys(files))
    levels = dict(sorted((references or {}).items(), key=lambda level: level[1]))
    known = [kind.example.attainable for kind in kinds if kind.example.preset == board]
    if known and known[0] is not None:
        levels.setdefault(ATTAINABLE, known[0])
    return Comparison(
        board=board,
        axis=axis,
        end=end,
        window=window,
        arms=tuple(arms),
        curves=tuple(curves),
        training=tuple(tuple(last_mean(run, axis, end, window) for run in arm.runs) for arm in arms),
        evaluations=kinds,
        references=levels,
    )


def comparison_sheets(found: Comparison) -> list[Sheet]:
    """Return the tables: arms with every score, then per evaluation its errors and its differences."""
    first = found.arms[0].name
    reached = f"up to {found.axis.value.removesuffix('s')} {found.end:.0f}"
    kinds = found.evaluations
    arms = [_arm_row(found, number) for number in range(len(found.arms))]
    most = [kind.example.attainable for kind in kinds]
    best = [(ATTAINABLE, *[_NONE] * len(_ARMS), *(_NONE if one is None else f"{one:.2f}" for one in most))]
    sheets = [
        Sheet(
            title=f"{found.board or 'training'}: mean score ± SE over runs; training games {reached}",
            columns=(*_ARMS, f"training, last {found.window} steps", *(kind.name for kind in kinds)),
            groups=[arms, best] if any(one is not None for one in most) else [arms],
        )
    ]
    for kind, one in zip(kinds, most, strict=True):
        scores = [score for score in kind.arms if score is not None]
        rows = [_score_row(score) for score in scores]
        sheets.append(
            Sheet(
                title=f"{kind.name}: {board_title(kind.example) if kind.same_deals else kind.example.preset}",
                columns=_HELD_OUT,
                groups=[rows] if one is None else [rows, [attainable_row(one, len(_HELD_OUT))]],
            )
        )
        if any(score.difference for score in scores):
            rows = [_difference_row(score.name, score.difference, first) for score in scores if score.difference]
            sheets.append(Sheet(title=f"{kind.name}: differences", columns=_DIFFERENCES, groups=[rows]))
    return sheets


def comparison_notes(found: Comparison) -> list[str]:
    """Return sentences that say what the errors cover, what was cut, and in what the runs differ."""
    notes = []
    kinds = found.evaluations
    if kinds:
        notes.append(
            "± runs: standard error over training seeds, of the runs' means: how much other seeds would change the "
            "figure. ± deals: over held-out deals, clustered by deck, of the runs' mean score on each deal: how much "
            "other deals would change it, for these very runs."
        )
        if all(kind.same_deals for kind in kinds):
            notes.append(
                "All runs were evaluated on the same deals: what these deals give to every run alike drops out of "
                "differences, and is not in ± runs."
            )
        if any(score.difference for kind in kinds for score in kind.arms if score):
            notes.append("Differences: Welch's t over runs; ± deals is paired deal by deal.")
    for kind in kinds:
        if not kind.same_deals:
            notes.append(
                f"{kind.file}: runs were evaluated on different deals, so ± runs holds the luck of the deals too, and "
                "there is no ± deals."
            )
        if len(kind.temperatures) > 1:
            notes.append(f"{kind.file}: runs were evaluated at different temperatures.")
        for arm, score in zip(found.arms, kind.arms, strict=True):
            if (has := len(score.means) if score else 0) < len(arm.runs):
                notes.append(f"{kind.file}: {has} of {len(arm.runs)} runs of {arm.name} have it.")
    if alone := [arm.name for arm in found.arms if len(arm.runs) < 2]:
        notes.append(f"One run only, so nothing is known about other seeds: {', '.join(alone)}.")
    return [*notes, *_length_notes(found), *condition_notes(found.arms), *_reference_note(found)]


def comparison_markdown(found: Comparison, title: str) -> str:
    """Return all tables and notes as Markdown."""
    parts = [f"### {title}\n"] if title else []
    parts += [sheet.markdown() for sheet in comparison_sheets(found)]
    return "\n".join([*parts, "".join(f"- {note}\n" for note in comparison_notes(found))])


def comparison_to_json(found: Comparison, title: str) -> dict[str, Any]:
    """Return everything as JSON has it; what is not known is null."""
    return {
        "title": title,
        "board": found.board,
        "x": found.axis.value,
        "end": found.end,
        "window": found.window,
        "references": dict(found.references),
        "arms": [
            {
                "name": arm.name,
                "runs": [_run_json(run, mean) for run, mean in zip(arm.runs, found.training[number], strict=True)],
                "games_per_run": median(run.num_games for run in arm.runs),
                "seconds_per_run": _seconds(arm),
                "training": asdict(over_seeds(found.training[number])),
                "curve": {
                    "band": found.curves[number].band,
                    **{key: getattr(found.curves[number], key).tolist() for key in ("x", "mean", "low", "high")},
                },
                "evaluations": {
                    kind.file: asdict(score) for kind in found.evaluations if (score := kind.arms[number]) is not None
                },
            }
            for number, arm in enumerate(found.arms)
        ],
        "notes": comparison_notes(found),
    }


def _run_json(run: Run, training: float) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "seed": run.settings.get("SEED"),
        "last_step": float(run.steps[-1]),
        "games": run.num_games,
        "seconds": run.seconds,
        "training": training,
    }


def _arm_row(found: Comparison, number: int) -> tuple[str, ...]:
    arm = found.arms[number]
    seconds = _seconds(arm)
    scores = [kind.arms[number] for kind in found.evaluations]
    return (
        arm.name,
        str(len(arm.runs)),
        f"{median(run.num_games for run in arm.runs):.0f}",
        _NONE if seconds is None else f"{seconds:.0f}",
        _with_error(over_seeds(found.training[number])),
        *(_NONE if score is None else _with_error(score.seeds) + _missing(score) for score in scores),
    )


def _score_row(score: ArmScore) -> tuple[str, ...]:
    return (
        score.name + _missing(score),
        f"{score.seeds.mean:.3f}",
        _plain(score.seeds.standard_error),
        _plain(score.deals_error),
        f"{min(score.means):.3f}",
        f"{max(score.means):.3f}",
        f"{score.bomb_share:.1%}",
        f"{score.hints_per_game:.2f}",
    )


def _difference_row(name: str, difference: Difference, first: str) -> tuple[str, ...]:
    gap = difference.seeds
    known = math.isfinite(gap.low)
    return (
        f"{name} − {first}",
        f"{gap.mean:+.3f} ± {_plain(gap.standard_error)}",
        f"{gap.low:+.3f} to {gap.high:+.3f}" if known else _NONE,
        _plain(difference.deals_error),
    )


def _length_notes(found: Comparison) -> list[str]:
    notes = []
    ends = [float(found.axis.of(run)[-1]) for arm in found.arms for run in arm.runs]
    if min(ends) != max(ends):
        notes.append(
            f"Runs have {min(ends):.0f} to {max(ends):.0f} {found.axis}: curves and training means use the first "
            f"{found.end:.0f}. Games, seconds and evaluations are of whole runs."
        )
    rates = [run.num_games / float(run.steps[-1]) for arm in found.arms for run in arm.runs]
    if found.axis is Axis.STEPS and max(rates) > 1.05 * min(rates):
        notes.append("Runs differ in games per step; --x games compares them at equal games.")
    return notes


def _reference_note(found: Comparison) -> list[str]:
    lines = ", ".join(f"{name} {value:g}" for name, value in found.references.items())
    notes = [f"To compare with: {lines}."] if lines else []
    if any(kind.example.attainable is not None for kind in found.evaluations):
        notes.append(ATTAINABLE_SOURCE)
    return notes


def _seconds(arm: Arm) -> float | None:
    known = [run.seconds for run in arm.runs if run.seconds is not None]
    return median(known) if known else None


def _missing(score: ArmScore) -> str:
    return "" if len(score.means) == score.num_runs else f" ({len(score.means)} of {score.num_runs} runs)"


def _with_error(found: SeedEstimate) -> str:
    return f"{found.mean:.3f} ± {_plain(found.standard_error)}"


def _plain(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else _NONE
