"""Which tasks a step plays, and a check that the requested players played them."""

from collections.abc import Sequence

from torch.utils.data import Dataset

from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.dataset_rows import DatasetRow, TaskRow
from hanabi_grpo.rollout.datasets import REPLACEMENT, further_task, tasks
from hanabi_grpo.settings.refs import AdapterRef, ScriptRef, SeatRef, UrlRef, parse_seat
from hanabi_grpo.types import Episode, Turn, player_name


class TaskDataset(Dataset[TaskRow]):
    """The tasks of a run by number.

    Nothing is stored: a task is a function of the dataset's rows and its number. ms-swift needs a
    dataset of this length; the loop takes the tasks of a step.
    """

    def __init__(
        self, rows: list[DatasetRow], num_tasks: int, replaced: frozenset[int] = frozenset()
    ) -> None:
        """Wrap dataset rows.

        Args:
            rows: The rows of a run.
            num_tasks: Steps × tasks per step.
            replaced: Numbers of tasks that are replaced with others, see `late_games`.
        """
        self._rows = rows
        self._num_tasks = num_tasks
        self._replaced = replaced

    def __len__(self) -> int:
        return self._num_tasks

    def __getitem__(self, number: int) -> TaskRow:
        if number in self._replaced:
            return further_task(self._rows, number, REPLACEMENT)
        return tasks(self._rows, number, 1)[0]

    def of_step(self, step: int, tasks_per_step: int) -> list[TaskRow]:
        """Return the tasks of a step, counted from 0, in order."""
        first = step * tasks_per_step
        return [self[number] for number in range(first, first + tasks_per_step)]


def check_stamps(group: Sequence[Episode], seats: Sequence[str], instance_id: str) -> None:
    """Refuse games of a task that were not played by the requested players.

    Args:
        group: The task's games.
        seats: Per seat, the requested player in wire format, e.g. ("player_0@7", "iggi").
        instance_id: Instance id of the server process that was asked.

    Raises:
        ServerError: A game is from another server process or has other seats, or a turn is from
            another version, or the turn of a script has tokens.
    """
    refs = [parse_seat(seat) for seat in seats]
    for episode in group:
        if episode.seats != tuple(seats):
            stamped = ", ".join(episode.seats) or "(none)"
            raise _foreign_data(f"the seats {stamped}", ", ".join(seats))
        for turn in episode.turns:
            _check_turn(turn, refs[turn.player], episode.instance_id, instance_id)


def _check_turn(turn: Turn, ref: SeatRef, stamped_instance: str, instance_id: str) -> None:
    player = player_name(turn.player)
    required = ref.version if isinstance(ref, AdapterRef) else None
    if turn.version != required or stamped_instance != instance_id:
        raise _foreign_data(
            f"{player}: a turn is stamped {_version(turn.version)} of instance {stamped_instance}",
            f"{_version(required)} of instance {instance_id}",
        )
    has_tokens = bool(turn.prompt_ids or turn.reply_ids)
    if has_tokens and isinstance(ref, ScriptRef | UrlRef):
        raise _foreign_data(f"{player}: a turn with tokens", f"{ref}, whose turns have none")


def _version(version: int | None) -> str:
    return "no version" if version is None else f"version {version}"


def _foreign_data(received: str, required: str) -> ServerError:
    return ServerError(
        f"{received}, but {required} was required; its data cannot be trained on. Restart the "
        "server, then the trainer."
    )
