"""`load_run`: the contents of a run folder, as pandas frames and typed episodes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import SettingsError, shown
from hanabi_grpo.evaluation.frames import COLUMNS, result_row
from hanabi_grpo.rollout.recordings import read_recordings, recorded_steps
from hanabi_grpo.runs.evaluation_files import find_evaluations
from hanabi_grpo.runs.history import read_history
from hanabi_grpo.runs.manifest import CHECKPOINT_NAME
from hanabi_grpo.runs.run_folder import recorded_settings, run_home
from hanabi_grpo.settings.saved import SETTINGS_FILE
from hanabi_grpo.types import Episode, player_name

if TYPE_CHECKING:
    import pandas

_METRICS = "metrics.jsonl"
_SOURCE = re.compile(r"step_(\d+)", re.ASCII)
GAME_COLUMNS = ("recorded_step", "env", "preset", "suite", "seed", "game", "status", "num_turns")
"""Columns of every row of `Run.games`, before those of the results, returns and seats."""
TURN_COLUMNS = (
    "recorded_step",
    "suite",
    "seed",
    "game",
    "turn",
    "step",
    "player",
    "kind",
    "action",
    "prompt",
    "reply",
    "reward",
    "version",
    "num_prompt_tokens",
    "num_reply_tokens",
)
"""Columns of every row of `Run.turns`, before those of the reward parts."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder; every property reads it again, so a running training can be followed.

    Example:
        run = hg.load_run("outputs/my-run")
        run.metrics["score/mean"].plot()
        run.games().groupby("seed")["result/score"].mean()
    """

    folder: Path
    """The run folder."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by the names of their variables; empty if the run has no record of them."""
        return recorded_settings(self.folder)

    @property
    def metrics(self) -> "pandas.DataFrame":
        """A row for each step, indexed by its number, and a column for each metric."""
        import pandas

        rows = read_history(self.folder / _METRICS)
        if not rows:
            return pandas.DataFrame(index=pandas.Index([], name="step"))
        return pandas.DataFrame(rows).set_index("step")

    @property
    def evaluations(self) -> "pandas.DataFrame":
        """A row for each evaluated lineup, and for each script that played the same tasks.

        `role` is "results" or "references"; `file` is the file of the row.
        """
        import pandas

        rows = []
        for stored in find_evaluations(self.folder).stored:
            file = str(stored.path)
            rows.append({"role": stored.role, **result_row(stored.result), "file": file})
        if not rows:
            return pandas.DataFrame(columns=["role", *COLUMNS, "file"])
        return pandas.DataFrame(rows)

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps whose games were recorded, in ascending order; see HANABI_EPISODES_EVERY."""
        return tuple(sorted(recorded_steps(self.folder)))

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Folders of the checkpoints by step, in ascending order."""
        found = {}
        for path in self.folder.iterdir():
            match = CHECKPOINT_NAME.fullmatch(path.name)
            if match is not None and path.is_dir() and not path.is_symlink():
                found[int(match[1])] = path
        return dict(sorted(found.items()))

    def episodes(self, step: int | None = None) -> tuple[Episode, ...]:
        """Return the games of one recorded step, or of all of them.

        Args:
            step: One of `steps`; None: all.

        Raises:
            SettingsError: The step was not recorded, or a file cannot be read.
        """
        return tuple(recording.episode for recording in self._recordings(step))

    def games(self, step: int | None = None) -> "pandas.DataFrame":
        """Return a row for each game, with "result/…", "player_0/return", "player_0/seat" etc.

        Args:
            step: One of `steps`; None: all.

        Raises:
            SettingsError: As `episodes`.
        """
        return game_frame(self._recordings(step))

    def turns(self, step: int | None = None) -> "pandas.DataFrame":
        """Return a row for each turn: prompt, reply, action, reward, and its parts "reward/…".

        Args:
            step: One of `steps`; None: all.

        Raises:
            SettingsError: As `episodes`.
        """
        return turn_frame(self._recordings(step))

    def _recordings(self, step: int | None) -> list[Recording]:
        by_step = recorded_steps(self.folder)
        steps = sorted(by_step)
        if step is not None:
            if step not in steps:
                recorded = ", ".join(map(str, steps)) or "none"
                raise SettingsError(
                    f"step={shown(step)}: not recorded in {self.folder}; recorded: {recorded}."
                )
            steps = [step]
        files = [by_step[recorded] for recorded in steps]
        return read_recordings(files)[0] if files else []


def load_run(folder: Path | str) -> Run:
    """Return the run in a folder, or in its subfolder `train/`, as demos have it.

    Raises:
        SettingsError: The folder is not a run folder.

    Example:
        hg.load_run("outputs/my-run").metrics.tail()
    """
    home = run_home(Path(folder))
    if not (home / SETTINGS_FILE).is_file() and not (home / _METRICS).is_file():
        raise SettingsError(
            f"{folder}: not a run folder: it has neither {SETTINGS_FILE} nor {_METRICS}. "
            "Runs are in OUTPUT_DIR, or in outputs/ if it was not set."
        )
    return Run(home)


def game_frame(recordings: Iterable[Recording]) -> "pandas.DataFrame":
    """Return a row for each game."""
    import pandas

    rows = [_game_row(recording) for recording in recordings]
    return pandas.DataFrame(rows) if rows else pandas.DataFrame(columns=list(GAME_COLUMNS))


def _game_row(recording: Recording) -> dict[str, Any]:
    episode = recording.episode
    row: dict[str, Any] = {
        "recorded_step": _step_of(recording),
        "env": episode.env,
        "preset": episode.preset,
        "suite": episode.suite,
        "seed": episode.seed,
        "game": episode.game,
        "status": episode.status.value,
        "num_turns": len(episode.turns),
    }
    for name, value in episode.result.items():
        row[f"result/{name}"] = value
    for player in range(episode.num_players):
        row[f"{player_name(player)}/return"] = episode.reward(player)
    for player, seat in enumerate(episode.seats):
        row[f"{player_name(player)}/seat"] = seat
    return row


def turn_frame(recordings: Iterable[Recording]) -> "pandas.DataFrame":
    """Return a row for each turn; the rewards are those of the player who acts."""
    import pandas

    rows = []
    for recording in recordings:
        episode = recording.episode
        for number, turn in enumerate(episode.turns):
            row: dict[str, Any] = {
                "recorded_step": _step_of(recording),
                "suite": episode.suite,
                "seed": episode.seed,
                "game": episode.game,
                "turn": number,
                "step": turn.step,
                "player": turn.player,
                "kind": turn.kind.value,
                "action": turn.action,
                "prompt": turn.prompt,
                "reply": turn.reply,
                "reward": turn.reward(turn.player),
                "version": turn.version,
                "num_prompt_tokens": len(turn.prompt_ids),
                "num_reply_tokens": len(turn.reply_ids),
            }
            for part, value in turn.rewards[turn.player].items():
                row[f"reward/{part}"] = value
            rows.append(row)
    return pandas.DataFrame(rows) if rows else pandas.DataFrame(columns=list(TURN_COLUMNS))


def _step_of(recording: Recording) -> int | None:
    """Return the recorded step that a game belongs to, from the name of its file."""
    match = _SOURCE.fullmatch(recording.source)
    return int(match[1]) if match is not None else None
