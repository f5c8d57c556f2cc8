"""Which tasks a step plays, and whether their games are by those who were asked for."""

from collections.abc import Sequence

from torch.utils.data import Dataset

from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.dataset_rows import DatasetRow, TaskRow
from hanabi_grpo.rollout.datasets import tasks
from hanabi_grpo.settings.refs import is_scripted, is_url, seat_adapter
from hanabi_grpo.types import Episode, player_name


class TaskDataset(Dataset[TaskRow]):
    """The tasks of a run by their number.

    Nothing is stored: a task is a function of the dataset's rows and its number. ms-swift wants a
    dataset of this length; the loop asks for the tasks of a step.
    """

    def __init__(self, rows: list[DatasetRow], num_tasks: int) -> None:
        """Wrap dataset rows; `num_tasks` is steps × tasks per step."""
        self._rows = rows
        self._num_tasks = num_tasks

    def __len__(self) -> int:
        return self._num_tasks

    def __getitem__(self, number: int) -> TaskRow:
        return tasks(self._rows, number, 1)[0]

    def of_step(self, step: int, tasks_per_step: int) -> list[TaskRow]:
        """Return the tasks of a step, counted from 0, in order."""
        return tasks(self._rows, step * tasks_per_step, tasks_per_step)


def check_stamps(group: Sequence[Episode], seats: Sequence[str], instance_id: str) -> None:
    """Refuse games of a task by others than those who were asked for: seats (see `refs`) on a
    server process.

    Raises: ServerError: Another server process, another seat, a turn of another version, or a
        script's turn with tokens.
    """
    for episode in group:
        if episode.seats != tuple(seats):
            raise _foreign(f"the seats {', '.join(episode.seats) or '(none)'}", ", ".join(seats))
        for turn in episode.turns:
            who, seat = player_name(turn.player), seats[turn.player]
            named = seat_adapter(seat)
            required = named[1] if named else None
            if turn.version != required or episode.instance_id != instance_id:
                got = (
                    f"{who}: a turn is stamped {_version(turn.version)} of instance "
                    f"{episode.instance_id}"
                )
                raise _foreign(got, f"{_version(required)} of instance {instance_id}")
            if (is_scripted(seat) or is_url(seat)) and (turn.prompt_ids or turn.reply_ids):
                raise _foreign(f"{who}: a turn with tokens", f"{seat}, whose turns have none")


def _version(version: int | None) -> str:
    return "no version" if version is None else f"version {version}"


def _foreign(got: str, required: str) -> ServerError:
    return ServerError(
        f"{got}, required was {required}; its data cannot be trained on. Restart the server, then "
        "the trainer."
    )
