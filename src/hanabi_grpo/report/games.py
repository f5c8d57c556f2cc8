"""Recorded games for people: with what their turns were worth among all games that were recorded with them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.replays.selection import spread
from hanabi_grpo.envs.hanabi.replays.timeline import Timeline, make_timeline
from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.report.hanabi.replay_page import render_games
from hanabi_grpo.runs.manifest import read_manifest
from hanabi_grpo.runs.run_folder import recorded_settings
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.advantages import ESTIMATORS, Estimator, choose_estimator
from hanabi_grpo.training.advantages.recorded import turn_advantages


def estimator_of(settings: Mapping[str, Any]) -> Estimator:
    """Return the estimator of a run's settings, the default one where they name none that is known.

    Whitening and the weights of the loss come after it, and a moving baseline is not known here: the step's own mean
    stands for it.
    """
    name, scale = settings.get("HANABI_ADVANTAGE"), settings.get("HANABI_ADVANTAGE_SCALE")
    if name not in ESTIMATORS or scale not in (None, "std", "none"):
        name, scale = Settings().advantage, None
    return choose_estimator(name, scale)


def settings_beside(path: Path) -> dict[str, Any]:
    """Return the settings with which games were played: of the run or the exported folder in which a path lies."""
    for folder in (path, path.resolve().parent.parent):
        if found := recorded_settings(folder):
            return found
        try:
            return dict(read_manifest(folder).facts["settings"])
        except (HanabiGrpoError, LookupError, TypeError, ValueError):
            continue
    return {}


def timelines_of(recordings: Sequence[Recording], chosen: Sequence[Recording], estimator: Estimator) -> list[Timeline]:
    """Return the chosen ones of some games played again, with the advantages that they have among all of them.

    Raises:
        SettingsError: A record does not fit its deal.
    """
    advantages = dict(zip((one.number for one in recordings), turn_advantages(recordings, estimator), strict=True))
    return [make_timeline(one, advantages[one.number]) for one in chosen]


def games_page(
    recordings: Sequence[Recording],
    chosen: Sequence[Recording],
    *,
    title: str,
    settings: Mapping[str, Any],
    prompts: bool = False,
) -> str:
    """Return the page of the chosen ones of some games.

    Args:
        recordings: All games of a file; advantages compare games of a deal.
        chosen: Those that are shown, in the order in which they are listed.
        title: What the page is of.
        settings: Of the run, by variable; they say the estimator.
        prompts: Also what the players were shown; the page becomes several times larger.

    Raises:
        SettingsError: A record does not fit its deal.
    """
    estimator = estimator_of(settings)
    among = "the games of a deal" if estimator.pool == "group" else "all games of the step"
    timelines = timelines_of(recordings, chosen, estimator)
    return render_games(timelines, title=title, prompts=prompts, estimator=f"{estimator.name}, among {among}")


def sample_page(recordings: Sequence[Recording], most: int, *, title: str, settings: Mapping[str, Any]) -> str:
    """Return the page of some games from the worst to the best; raises as `games_page`."""
    chosen = spread(recordings, most)
    title = f"{title}: {len(chosen)} of {len(recordings)} games"
    return games_page(recordings, chosen, title=title, settings=settings)
