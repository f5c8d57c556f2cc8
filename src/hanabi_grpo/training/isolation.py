"""Players that do not move each other, and steps that are dropped rather than poisoned.

Every player is a parameter group of its own, and a hook before the optimizer's step looks at each
group alone: its gradient is clipped by its own norm, removed when the player had no data, and
removed and counted when it is not finite; weights, moments and counters then stay. DeepSpeed's
ZeRO-1 and -2 step the same torch optimizer group by group."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import SchedulerType, get_scheduler

from hanabi_grpo.errors import NonFiniteError, SettingsError

BAD_STEPS_IN_A_ROW = 3
"""Dropped updates of one player, or steps without a game, after which a run stops."""
SCALE_SKIPS_IN_A_ROW = 20
"""The same with a loss scale (float16). It starts at 2^16 and every skip halves it, so after these
it is below 1, and the gradient itself is not finite."""


def player_groups(model: torch.nn.Module, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return one optimizer group per adapter, with "updates", which says how often it moved."""
    return [
        {
            "params": [
                value
                for key, value in model.named_parameters()
                if f".{name}." in key and value.requires_grad
            ],
            "player": name,
            "updates": 0,
        }
        for name in names
    ]


class PlayerSchedule(LRScheduler):
    """transformers' schedule of one name, at each group's own count of updates.

    A step without a player's data then moves nothing of that player, its place in warm-up and decay
    included."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        name: str,
        *,
        num_training_steps: int,
        num_warmup_steps: int,
    ) -> None:
        """Build the schedule as `transformers.get_scheduler` does; warmup_stable_decay falls in the
        last third.

        A player that rests in some steps, as with HANABI_UPDATE=best_response, does not come to the
        schedule's end. A schedule that is no function of the number of updates is a SettingsError.
        """
        probe = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        own = (
            {"num_decay_steps": num_training_steps // 3}
            if name == SchedulerType.WARMUP_STABLE_DECAY
            else None
        )
        try:
            stock = get_scheduler(name, probe, num_warmup_steps, num_training_steps, own)
        except (ValueError, TypeError) as error:
            raise SettingsError(
                f"LR_SCHEDULER_TYPE={name}: transformers refuses it: {error}"
            ) from error
        if not isinstance(stock, LambdaLR):
            raise SettingsError(
                f"LR_SCHEDULER_TYPE={name}: depends on more than the number of updates; allowed "
                "are transformers' "
                "schedules by step, such as constant, constant_with_warmup, linear, cosine and "
                "warmup_stable_decay."
            )
        self._factor: Callable[[int], float] = stock.lr_lambdas[0]
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Return each group's rate."""
        groups = self.optimizer.param_groups
        return [group["initial_lr"] * self._factor(group["updates"]) for group in groups]

    def refresh(self) -> None:
        """Set the rates again after the groups' counts were restored."""
        self._last_lr = self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate


class PlayerGuard:
    """Decides, before each optimizer step, whose gradient counts and how much."""

    def __init__(
        self,
        *,
        max_norm: float | None,
        sharded: bool,
        report: Callable[..., None],
        loss_scaled: bool = False,
    ) -> None:
        """Prepare; `before_step` is a hook of the optimizer, whose groups come from
        `player_groups`.

        `max_norm` of one player's gradient: None leaves clipping to DeepSpeed (ZeRO-3). `sharded`:
        each rank's groups hold only its share of the gradient. `report` is called as report(kind,
        message, **details) for each dropped update. `loss_scaled`: the loss has a scale that is
        found by skipping updates (float16)."""
        self._limit = SCALE_SKIPS_IN_A_ROW if loss_scaled else BAD_STEPS_IN_A_ROW
        self._max_norm, self._sharded, self._report = max_norm, sharded, report
        self._with_data: frozenset[str] | None = None
        self._seen: set[str] = set()
        self._moved: set[str] = set()
        self._begun = False
        self.norms: dict[str, float] = {}
        self.dropped: list[str] = []
        self.streaks: Counter[str] = Counter()
        self.stepping = False
        """True from a step's first update until the step is counted: an interrupt leaves no
        finished step till then.
        """

    def begin(self, with_data: Collection[str]) -> None:
        """Announce the first update of the next step; `with_data` has a token in the loss on some
        rank.
        """
        self.norms, self.dropped, self._moved = {}, [], set()
        self.again(with_data)

    def again(self, with_data: Collection[str]) -> None:
        """Announce a further update from the same games; a player's count grows once a step, by its
        first.
        """
        self._with_data, self._seen, self._begun = frozenset(with_data), set(), True

    def finish(self) -> dict[str, float]:
        """Close an update and return the norm of each player's gradient before it was clipped.

        A NonFiniteError after a player's update was dropped in three steps in a row; in twenty with
        a loss scale."""
        for name in sorted((self._with_data or frozenset()) - self._seen):
            # DeepSpeed and a loss scale leave the optimizer out when the gradient of anybody is not
            # finite.
            self._drop(
                name,
                "the step was skipped before the optimizer: the gradient over all players is not "
                "finite",
            )
        norms = {name: norm for name, norm in self.norms.items() if name in self._seen}
        self._with_data = None
        for name, count in self.streaks.items():
            if count >= self._limit:
                raise NonFiniteError(
                    f"{name}: {count} updates in a row were dropped because the gradient was not "
                    "finite; the weights "
                    "are those before them. Lower LEARNING_RATE or MAX_GRAD_NORM, or look at the "
                    "last recorded games "
                    "for rewards and logprobs that are out of range; RESUME=latest starts from "
                    "the last checkpoint."
                )
        return norms

    @torch.no_grad()
    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Look at each player's gradient right before the optimizer uses it."""
        if self._with_data is None:
            if self._begun:
                raise SettingsError(
                    "a second optimizer step on the same games: nobody said whose data it holds. "
                    "Leave ms-swift's "
                    "options --num_iterations and --steps_per_generation alone; "
                    "HANABI_UPDATES_PER_STEP makes several."
                )
            # Before training: DeepSpeed may step once to allocate.
            return
        self.stepping = True
        for group in optimizer.param_groups:
            self._check(group)

    def _check(self, group: dict[str, Any]) -> None:
        name = group["player"]
        self._seen.add(name)
        has_data = name in (self._with_data or ())
        gradients = [value.grad for value in group["params"] if value.grad is not None]
        norm = self._norm(gradients, group["params"][0].device) if has_data else 0.0
        if not has_data or not math.isfinite(norm):
            for value in group["params"]:
                value.grad = None
            if has_data:
                self.norms.pop(name, None)
                self._drop(name, f"the gradient's norm is {norm}")
            return
        if self._max_norm is not None and norm > self._max_norm:
            torch._foreach_mul_(gradients, self._max_norm / (norm + 1e-6))
        self.norms[name] = norm
        self.streaks[name] = 0
        group["updates"] += name not in self._moved
        self._moved.add(name)

    def _norm(self, gradients: Sequence[torch.Tensor], device: torch.device) -> float:
        norms = (
            torch._foreach_norm([gradient.float() for gradient in gradients]) if gradients else []
        )
        total = torch.stack(list(norms)).square().sum() if norms else torch.zeros((), device=device)
        if self._sharded:
            dist.all_reduce(total)
        return float(total.sqrt().item())

    def _drop(self, name: str, reason: str) -> None:
        if name in self.dropped:
            return
        self.dropped.append(name)
        self.streaks[name] += 1
        self._report(
            "update_dropped",
            f"{name}: {reason}; its weights and optimizer state stay as they were "
            f"({self.streaks[name]} in a row, {self._limit} stop the run)",
            player=name,
        )
