"""Learning rates that count each player's own updates."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import get_scheduler

from hanabi_grpo.errors import SettingsError


class PlayerSchedule(LRScheduler):
    """transformers' schedule of one name, at each group's own count of updates.

    A step without a player's data then moves nothing of that player, its place in warm-up and decay included.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, name: str, *, num_steps: int | Mapping[str, int], **options: Any
    ) -> None:
        """Build the schedule for groups that count "updates", from options of `transformers.get_scheduler`.

        It has `num_steps`, for all players or by name: a player that takes turns has fewer of its own.

        Raises:
            SettingsError: The schedule is not a function of the number of updates.
        """
        names = [group["player"] for group in optimizer.param_groups]
        steps = dict.fromkeys(names, num_steps) if isinstance(num_steps, int) else num_steps
        self._factors = {player: _factor(name, steps[player], options) for player in names}
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Return each group's rate."""
        groups = self.optimizer.param_groups
        return [group["initial_lr"] * self._factors[group["player"]](group["updates"]) for group in groups]

    def refresh(self) -> None:
        """Set the rates again after the groups' counts were restored."""
        self._last_lr = self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate


def _factor(name: str, num_steps: int, options: Mapping[str, Any]) -> Callable[[int], float]:
    probe = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    try:
        stock = get_scheduler(name, optimizer=probe, num_training_steps=num_steps, **options)
    except (ValueError, TypeError) as error:
        raise SettingsError(f"LR_SCHEDULER_TYPE={name}: transformers refuses it: {error}") from error
    if not isinstance(stock, LambdaLR):
        raise SettingsError(
            f"LR_SCHEDULER_TYPE={name}: depends on more than the number of updates; allowed are transformers' "
            "schedules by step, such as constant, constant_with_warmup, linear and cosine."
        )
    factor: Callable[[int], float] = stock.lr_lambdas[0]
    return factor
