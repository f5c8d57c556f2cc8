"""Recorded games of any environment as a page, with the advantage of each turn.

Advantages are computed among the games that were recorded together.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.report.page import render
from hanabi_grpo.report.played import frames_of, game_texts, own_page
from hanabi_grpo.rollout.recordings import NUM_REPLAYS, read_recordings, recording_files, spread
from hanabi_grpo.runs.manifest import read_manifest
from hanabi_grpo.runs.run_folder import recorded_settings
from hanabi_grpo.settings import Settings, settings_values
from hanabi_grpo.texts import visible
from hanabi_grpo.training.advantages import pool_key, step_advantages
from hanabi_grpo.training.estimators import ESTIMATORS, Estimator, Method, Over, make_estimator

_Choice = TypeVar("_Choice", bound=StrEnum)
_POOLS = {
    Over.GROUP: "the episodes of the group",
    Over.TASK: "all episodes of the task",
    Over.ENVIRONMENT: "all episodes of the step",
    Over.STEP: "all episodes of the step, on all boards",
}
"""What the page calls the episodes that are compared."""


def settings_beside(path: Path) -> dict[str, Any]:
    """Return the settings with which games were played.

    They come from the run or the exported folder that a path lies in; empty where neither has them.
    """
    for folder in (path, path.resolve().parent.parent):
        settings = recorded_settings(folder)
        if settings:
            return settings
        try:
            return dict(read_manifest(folder).facts["settings"])
        except (HanabiGrpoError, LookupError, TypeError, ValueError):
            continue
    return {}


def advantages_of(
    recordings: Sequence[Recording], settings: Mapping[str, Any]
) -> tuple[dict[int, tuple[float, ...] | None], str]:
    """Return the advantages of each game's turns among all these games.

    The estimator is that of the run's settings, or the default where they name none that this
    version knows. The weights of the loss are not applied, and a moving baseline is not available
    here: the step's mean replaces it.

    Args:
        recordings: The games.
        settings: Settings of their run, by variable.

    Returns:
        Per game, by its number, the advantage of each turn, None for a game without others to
        compare it with; and a description of the estimator, e.g. "turn, among the episodes of the
        group", "" where no game has advantages.
    """
    estimator = _estimator_of(settings)
    numbers = [recording.number for recording in recordings]
    advantages = dict(zip(numbers, turn_advantages(recordings, estimator), strict=True))
    if not any(advantages.values()):
        return advantages, ""
    return advantages, f"{estimator.name}, among {_POOLS[estimator.over]}"


def _estimator_of(settings: Mapping[str, Any]) -> Estimator:
    """Return the estimator of a run's settings, or the default if this version does not know it."""
    name = settings.get("HANABI_ADVANTAGE")
    scale = settings.get("HANABI_ADVANTAGE_SCALE")
    if name not in ESTIMATORS or scale not in (None, "std", "none"):
        return make_estimator(Settings().advantage)
    try:
        return make_estimator(
            str(name),
            scale=scale,
            gamma=float(settings.get("HANABI_GAMMA") or 1),
            normalize=_member(Method, settings.get("HANABI_NORMALIZE")),
            normalize_over=_member(Over, settings.get("HANABI_NORMALIZE_OVER")),
        )
    except (TypeError, ValueError):
        return make_estimator(str(name), scale=scale)


def _member(kind: type[_Choice], value: object) -> _Choice | None:
    """Return a value of a setting; None where it is unset."""
    return None if value is None else kind(str(value))


def turn_advantages(
    recordings: Sequence[Recording], estimate: Estimator
) -> list[tuple[float, ...] | None]:
    """Return per game the advantage of each turn, None without games to compare it with.

    Games of one file and one task are a group, as they were in training, and games of one file are
    a step. Per player, only games with the same policy in the player's seat are compared.

    Args:
        recordings: The games.
        estimate: The estimator.
    """
    # Per file, player and policy, the positions of the games of each task.
    compared: dict[tuple[Any, ...], dict[tuple[Any, ...], list[int]]] = {}
    for position, recording in enumerate(recordings):
        episode = recording.episode
        task = (episode.suite, episode.seed, episode.spec_hash)
        for player in range(episode.num_players):
            # Seats are not recorded for every game; an empty slice stands for unknown.
            policy = episode.seats[player : player + 1]
            groups = compared.setdefault((player, policy, recording.source), {})
            groups.setdefault(task, []).append(position)
    # By position of the game and player, the advantages of the player's turns.
    advantages: dict[tuple[int, int], Iterator[float]] = {}
    for (player, *_), groups in compared.items():
        positions_of_groups = list(groups.values())
        episodes = []
        for positions in positions_of_groups:
            episodes.append([recordings[position].episode for position in positions])
        values_of_groups = step_advantages(episodes, player, estimate)
        for positions, values_of_games in zip(positions_of_groups, values_of_groups, strict=True):
            for position, values in zip(positions, values_of_games, strict=True):
                advantages[position, player] = iter(values)
    pools = [_pool(recording, estimate) for recording in recordings]
    sizes = Counter(pools)
    advantages_of_games: list[tuple[float, ...] | None] = []
    for position, recording in enumerate(recordings):
        if sizes[pools[position]] == 1 and estimate.method is not Method.NONE:
            advantages_of_games.append(None)
            continue
        advantages_of_turns = []
        for turn in recording.episode.turns:
            advantages_of_turns.append(next(advantages[position, turn.player]))
        advantages_of_games.append(tuple(advantages_of_turns))
    return advantages_of_games


def _pool(recording: Recording, estimate: Estimator) -> Hashable:
    """Return a key that the games which an estimator compares have in common."""
    episode = recording.episode
    task = (episode.suite, episode.seed)
    return recording.source, pool_key(episode, task, estimate.over)


def games_page(
    recordings: Sequence[Recording],
    chosen: Sequence[Recording],
    *,
    title: str,
    settings: Mapping[str, Any],
    prompts: bool = False,
) -> str:
    """Return the page of some games; its list of turns can be read without a script.

    Args:
        recordings: All games of a file.
        chosen: The games to show.
        title: Title of the page.
        settings: Settings of their run, by variable.
        prompts: Whether to include the players' prompts, which makes the page several times
            larger.

    Raises:
        SettingsError: A record does not fit its task.
    """
    advantages, estimator = advantages_of(recordings, settings)
    games = []
    for recording in chosen:
        games.append(game_texts(recording, advantages[recording.number], prompts=prompts))
    envs = sorted({recording.episode.env for recording in chosen})
    page = own_page(envs[0]) if len(envs) == 1 else None
    board_data = None
    if page is not None:
        board_data = page.draw_games(chosen, games, prompts=prompts)
    else:
        for recording, game in zip(chosen, games, strict=True):
            _add_frames(recording, game, settings)
    has_versions = False
    for recording in chosen:
        for turn in recording.episode.turns:
            has_versions = has_versions or turn.version is not None
    return render(
        "replay.html.j2",
        script=page.SCRIPT if page else "",
        title=visible(title),
        env=visible(", ".join(envs)),
        has_versions=has_versions,
        games=games,
        data=board_data,
        estimator=estimator,
    )


def _add_frames(recording: Recording, game: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Put the frame of each step before its first turn, and the last one at the end."""
    frames = frames_of(recording, settings)
    first_turn_of_step: dict[int, int] = {}
    for position, turn in enumerate(recording.episode.turns):
        first_turn_of_step.setdefault(turn.step, position)
    for frame, position in zip(frames, first_turn_of_step.values(), strict=False):
        game["moves"][position]["frame"] = frame.text
    if len(frames) > len(first_turn_of_step):
        game["end"] = frames[-1].text


def sample_page(
    recordings: Sequence[Recording], most: int, *, title: str, settings: Mapping[str, Any]
) -> str:
    """Return the page of some games from the worst to the best.

    Args:
        recordings: All games of a file.
        most: Largest number of games to show.
        title: Title of the page.
        settings: Settings of their run, by variable.

    Raises:
        SettingsError: As `games_page`.
    """
    chosen = spread(recordings, most)
    title = f"{title}: {len(chosen)} of {len(recordings)} games"
    return games_page(recordings, chosen, title=title, settings=settings)


def newest_games_page(run_folder: Path, settings: Settings) -> str:
    """Return some games of the newest recorded step as one page; "" where none was recorded.

    Raises:
        SettingsError: As `games_page`.
    """
    if not (run_folder / "episodes").is_dir():
        return ""
    try:
        recordings, _ = read_recordings(recording_files(run_folder))
    except SettingsError:
        # The file may be half-written; the next call finds it complete.
        return ""
    if not recordings:
        return ""
    title = f"{run_folder.resolve().name}, {recordings[0].source}"
    return sample_page(recordings, NUM_REPLAYS, title=title, settings=settings_values(settings))
