"""Keeps each player's update independent of the others, and drops updates that are not finite.

Every player has its own parameter group, and a hook before the optimizer's step checks each group
separately. Its gradient is clipped by its own norm. The gradient is removed if the player had no
data, and removed and counted if it is not finite; weights, moments and counters then stay the same.
DeepSpeed steps the same torch optimizer: ZeRO-1 and -2 with all groups at once, ZeRO-3 once for
each group, with the parameters of the other groups taken out.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import SchedulerType, get_scheduler

from hanabi_grpo.errors import NonFiniteError, SettingsError
from hanabi_grpo.training.model.adapters import trainable_parameters

BAD_STEPS_IN_A_ROW = 3
"""Number of dropped updates of one player in a row, or of steps without a game, that stops a run.
"""
SCALE_SKIPS_IN_A_ROW = 20
"""Number of dropped updates in a row that stops a run with a loss scale (float16).

The scale starts at 2^16 and every skip halves it. After this many skips it is below 1, so the
gradient itself is not finite.
"""
RUN_PER_DECAY = 3
"""Length of a run divided by the length of its decay phase with warmup_stable_decay."""
_CLIP_EPSILON = 1e-6
"""Added to a norm before dividing by it, as in torch's own clipping."""


def player_groups(
    model: torch.nn.Module, names: Sequence[str], rate_of: Callable[[str], float] | None = None
) -> list[dict[str, Any]]:
    """Return one optimizer group per adapter, whose "updates" counts how often it was updated.

    Args:
        model: The model with the adapters.
        names: Names of the adapters.
        rate_of: (adapter) -> its peak learning rate; None: all use the optimizer's.
    """
    groups = []
    for name in names:
        parameters = trainable_parameters(model, name)
        group = {"params": [*parameters.values()], "player": name, "updates": 0}
        if rate_of is not None:
            group["lr"] = rate_of(name)
        groups.append(group)
    return groups


class PlayerSchedule(LRScheduler):
    """A schedule of transformers, evaluated at each group's own count of updates.

    A step without data of a player then changes nothing for that player, including its place in
    warm-up and decay.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        name: str,
        *,
        num_training_steps: int,
        num_warmup_steps: int,
    ) -> None:
        """Build the schedule as `transformers.get_scheduler` does.

        A player that rests in some steps, as with HANABI_UPDATE=best_response, does not reach the
        end of the schedule.

        Args:
            optimizer: The optimizer with the groups of `player_groups`.
            name: LR_SCHEDULER_TYPE; warmup_stable_decay decays in the last third.
            num_training_steps: Number of updates of a player that is updated in every step.
            num_warmup_steps: Number of updates in which the rate increases.

        Raises:
            SettingsError: transformers has no such schedule, or the schedule is not a function of
                the number of updates.
        """
        probe = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        options = None
        if name == SchedulerType.WARMUP_STABLE_DECAY:
            options = {"num_decay_steps": num_training_steps // RUN_PER_DECAY}
        try:
            stock = get_scheduler(name, probe, num_warmup_steps, num_training_steps, options)
        except (ValueError, TypeError) as error:
            raise SettingsError(
                f"LR_SCHEDULER_TYPE={name}: transformers refuses it: {error}"
            ) from error
        if not isinstance(stock, LambdaLR):
            raise SettingsError(
                f"LR_SCHEDULER_TYPE={name}: depends on more than the number of updates; allowed: "
                "transformers' schedules by step, such as constant, constant_with_warmup, "
                "linear, cosine and warmup_stable_decay."
            )
        self._factor: Callable[[int], float] = stock.lr_lambdas[0]
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Return each group's rate."""
        groups = self.optimizer.param_groups
        return [group["initial_lr"] * self._factor(group["updates"]) for group in groups]

    def refresh(self) -> None:
        """Set the rates from the groups' counts, after a step or after counts were restored."""
        self._last_lr = self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate


def forget_gradients(optimizer: Any) -> None:
    """Zero ZeRO-3's gradient buffer after an update; other optimizers have cleared theirs by then.

    In the first backward pass of an update, DeepSpeed (0.19) overwrites the gradients of the
    previous update, and in all later passes it adds to them. A player that is not in the first
    micro-batch would learn from all its earlier updates once more, and a gradient that is not
    finite would never go away.

    Args:
        optimizer: accelerate's or DeepSpeed's optimizer.
    """
    inner = getattr(optimizer, "optimizer", optimizer)
    gathered = getattr(inner, "grad_partitions_flat_buffer", None)
    if gathered is not None:
        gathered.zero_()


class PlayerGuard:
    """Decides, before each optimizer step, which players' gradients are applied and clips them.

    The order of calls in a step is `begin_step`, then for each update `begin_update`, the
    optimizer's step with its hook `before_step`, and `end_update`, then `end_step` once the step is
    counted.
    """

    def __init__(
        self,
        *,
        max_norm: float,
        sharded: bool,
        report: Callable[..., None],
        loss_scaled: bool = False,
    ) -> None:
        """Prepare; `watch` takes the optimizer with the groups of `player_groups`.

        Args:
            max_norm: Largest norm of one player's gradient.
            sharded: Whether each rank's groups hold only its share of the gradient.
            report: Called as report(kind, message, **details) for each dropped update.
            loss_scaled: Whether the loss has a scale that adapts by skipping updates (float16).
        """
        self._max_norm = max_norm
        self._sharded = sharded
        self._report = report
        self._limit = SCALE_SKIPS_IN_A_ROW if loss_scaled else BAD_STEPS_IN_A_ROW
        self._with_data: frozenset[str] | None = None
        """Players with data in the update in progress; None between updates."""
        self._seen: set[str] = set()
        """Players that the hook has checked in this update."""
        self._moved: set[str] = set()
        """Players that were updated in this step."""
        self._has_begun = False
        self.norms: dict[str, float] = {}
        """Per player, the norm of the last gradient in this step before clipping."""
        self.dropped: list[str] = []
        """Players with a dropped update in this step, each listed once."""
        self.streaks: Counter[str] = Counter()
        """Per player, the number of dropped updates in a row."""
        self.is_stepping = False
        """True from a step's first update until the step is counted.

        An interrupt in between leaves the step unfinished.
        """

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Check unscaled gradients before each step of an optimizer.

        A fused optimizer divides by the loss scale (float16) in its kernel, after the hook, and
        also skips steps with an infinite gradient there. So torch calls it with scaled gradients,
        all of which would be clipped. With the flag cleared, it is treated like any other
        optimizer: gradients are unscaled before, and a step with an infinite gradient is not made.

        Args:
            optimizer: The optimizer with the groups of `player_groups`.
        """
        optimizer._step_supports_amp_scaling = False
        optimizer.register_step_pre_hook(self.before_step)

    def begin_step(self) -> None:
        """Reset the norms and drops of the previous step."""
        self.norms = {}
        self.dropped = []
        self._moved = set()

    def begin_update(self, with_data: Collection[str]) -> None:
        """Announce an update; the players in `with_data` have tokens in the loss on some rank.

        A player's count increases once per step, with its first update.
        """
        self._with_data = frozenset(with_data)
        self._seen = set()
        self._has_begun = True

    def end_update(self) -> dict[str, float]:
        """Close an update; returns the norm of each player's gradient before clipping.

        Raises:
            NonFiniteError: Three updates of a player in a row were dropped, or twenty with a loss
                scale.
        """
        for name in sorted((self._with_data or frozenset()) - self._seen):
            # DeepSpeed and a loss scale skip the optimizer if any player's gradient is not finite.
            self._drop(
                name,
                "the optimizer step was skipped because the gradient over all players is not "
                "finite",
            )
        norms = {}
        for name, norm in self.norms.items():
            if name in self._seen:
                norms[name] = norm
        self._with_data = None
        for name, count in self.streaks.items():
            if count >= self._limit:
                raise NonFiniteError(
                    f"{name}: {count} updates in a row were dropped because the gradient was not "
                    "finite; the weights are those before these updates. Lower LEARNING_RATE or "
                    "MAX_GRAD_NORM, or check the last recorded games for rewards and logprobs "
                    "that are out of range; RESUME=latest continues from the last checkpoint."
                )
        return norms

    def end_step(self) -> None:
        """Mark the step as counted."""
        self.is_stepping = False

    @torch.no_grad()
    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Check each player's gradient right before the optimizer uses it."""
        if self._with_data is None:
            if self._has_begun:
                raise SettingsError(
                    "a second optimizer step on the same games, whose players are not known. "
                    "Do not set ms-swift's options --num_iterations and --steps_per_generation; "
                    "set HANABI_UPDATES_PER_STEP for several updates per step."
                )
            # Before training: DeepSpeed may step once to allocate.
            return
        self.is_stepping = True
        for group in optimizer.param_groups:
            if group["params"]:
                self._check(group)

    def _check(self, group: dict[str, Any]) -> None:
        name = group["player"]
        if name in self._seen:
            raise SettingsError(
                f"{name}: a second optimizer step in one update. ZeRO-3 splits adapters that have "
                "more than sub_group_size parameters; set a larger sub_group_size, e.g. 1e9, in "
                "the file that DEEPSPEED names."
            )
        self._seen.add(name)
        has_data = name in (self._with_data or ())
        gradients = [value.grad for value in group["params"] if value.grad is not None]
        norm = 0.0
        if has_data:
            norm = self._norm(gradients, group["params"][0].device)
        if not has_data or not math.isfinite(norm):
            for value in group["params"]:
                value.grad = None
            if has_data:
                self.norms.pop(name, None)
                self._drop(name, f"the gradient's norm is {norm}")
            return
        if norm > self._max_norm:
            torch._foreach_mul_(gradients, self._max_norm / (norm + _CLIP_EPSILON))
        self.norms[name] = norm
        self.streaks[name] = 0
        if name not in self._moved:
            group["updates"] += 1
            self._moved.add(name)

    def _norm(self, gradients: Sequence[torch.Tensor], device: torch.device) -> float:
        total = torch.zeros((), device=device)
        if gradients:
            norms = torch._foreach_norm([gradient.float() for gradient in gradients])
            total = torch.stack(list(norms)).square().sum()
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
            f"{name}: {reason}; the update is dropped, and weights and optimizer state stay as "
            f"they were ({self.streaks[name]} dropped in a row; {self._limit} stop the run)",
            player=name,
        )
