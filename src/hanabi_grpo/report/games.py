"""Recorded games of any environment as a page, with what their turns were worth among the games
recorded with them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.texts import visible
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.report.page import render
from hanabi_grpo.report.played import frames_of, game_words, own_page
from hanabi_grpo.rollout.recordings import NUM_REPLAYS, read_recordings, recording_files, spread
from hanabi_grpo.runs.manifest import read_manifest
from hanabi_grpo.runs.run_folder import recorded_settings
from hanabi_grpo.settings import Settings, settings_values
from hanabi_grpo.training.estimators import ESTIMATORS, Estimator, Pool, make_estimator


def settings_beside(path: Path) -> dict[str, Any]:
    """Return the settings with which games were played: of the run or the exported folder in which
    a path lies.
    """
    for folder in (path, path.resolve().parent.parent):
        if found := recorded_settings(folder):
            return found
        try:
            return dict(read_manifest(folder).facts["settings"])
        except (HanabiGrpoError, LookupError, TypeError, ValueError):
            continue
    return {}


def advantages_of(
    recordings: Sequence[Recording], settings: Mapping[str, Any]
) -> tuple[dict[int, tuple[float, ...] | None], str]:
    """Return the advantages of each game's turns among all these games, by its number, None if
    alone; and of what.

    The estimator is that of a run's settings, the default one where they name none that is known.
    The weights of the loss come after it, and a moving baseline is not known here: the step's own
    mean stands for it."""
    name, scale = settings.get("HANABI_ADVANTAGE"), settings.get("HANABI_ADVANTAGE_SCALE")
    if name not in ESTIMATORS or scale not in (None, "std", "none"):
        name, scale = Settings().advantage, None
    estimator = make_estimator(name, scale=scale)
    found = dict(
        zip((one.number for one in recordings), turn_advantages(recordings, estimator), strict=True)
    )
    among = "the games of a task" if estimator.pool is Pool.GROUP else "all games of the step"
    return found, f"{estimator.name}, among {among}" if any(found.values()) else ""


def turn_advantages(
    recordings: Sequence[Recording], estimate: Estimator
) -> list[tuple[float, ...] | None]:
    """Return per game the advantage of each turn, None for a game that is alone with its task.

    Games of one file and one task are a group, as they were in training. For an estimator that
    compares over the step, games of one file and one board are compared, per player those in which
    the same policy had its seat."""

    def pool(one: Recording) -> tuple[Any, ...]:
        task = (one.episode.suite, one.episode.seed) if estimate.pool is Pool.GROUP else ()
        return (one.source, one.episode.spec_hash, *task)

    compared: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, one in enumerate(recordings):
        for player in range(one.episode.num_players):
            compared[player, one.episode.seats[player : player + 1], pool(one)].append(place)
    values: dict[tuple[int, int], Iterator[float]] = {}
    for (player, *_), places in compared.items():
        games = estimate.advantages([recordings[place].episode for place in places], player)
        values |= {(place, player): iter(game) for place, game in zip(places, games, strict=True)}
    sizes = Counter(map(pool, recordings))
    return [
        tuple(next(values[place, turn.player]) for turn in one.episode.turns)
        if sizes[pool(one)] > 1
        else None
        for place, one in enumerate(recordings)
    ]


def games_page(
    recordings: Sequence[Recording],
    chosen: Sequence[Recording],
    *,
    title: str,
    settings: Mapping[str, Any],
    prompts: bool = False,
) -> str:
    """Return the page of the chosen ones of all games of a file; its list of turns can be read
    without a script.

    `settings` are those of the run, by variable. `prompts`: also what the players were shown, which
    makes the page several times larger. A record that does not fit its task is a SettingsError."""
    advantages, estimator = advantages_of(recordings, settings)
    games = [game_words(one, advantages[one.number], prompts=prompts) for one in chosen]
    envs = {one.episode.env for one in chosen}
    own = own_page(chosen[0].episode.env) if len(envs) == 1 else None
    if own is None:
        for one, game in zip(chosen, games, strict=True):
            # The frame of each step stands before its first turn, and the last one at the end.
            frames, first = frames_of(one, settings), dict[int, int]()
            for place, turn in enumerate(one.episode.turns):
                first.setdefault(turn.step, place)
            for frame, place in zip(frames, first.values(), strict=False):
                game["moves"][place]["frame"] = frame.text
            if len(frames) > len(first):
                game["end"] = frames[-1].text
    return render(
        "replay.html.j2",
        script=own.SCRIPT if own else "",
        title=visible(title),
        env=visible(", ".join(sorted(envs))),
        has_versions=any(turn.version is not None for one in chosen for turn in one.episode.turns),
        games=games,
        data=own.draw_games(chosen, games, prompts=prompts) if own else None,
        estimator=estimator,
    )


def sample_page(
    recordings: Sequence[Recording], most: int, *, title: str, settings: Mapping[str, Any]
) -> str:
    """Return the page of some games from the worst to the best; raises as `games_page`."""
    chosen = spread(recordings, most)
    title = f"{title}: {len(chosen)} of {len(recordings)} games"
    return games_page(recordings, chosen, title=title, settings=settings)


def newest_games_page(run_folder: Path, settings: Settings) -> str:
    """Return some games of the newest recorded step as one page; "" where none was recorded; raises
    as `games_page`.
    """
    try:
        recordings = (
            read_recordings(recording_files(run_folder))[0]
            if (run_folder / "episodes").is_dir()
            else []
        )
    except SettingsError:
        # The file may be half-written just now; the next look finds it whole.
        recordings = []
    if not recordings:
        return ""
    title = f"{run_folder.resolve().name}, {recordings[0].source}"
    return sample_page(recordings, NUM_REPLAYS, title=title, settings=settings_values(settings))
