"""Players that do not move each other, and updates that are dropped rather than poisoned.

Every player is a parameter group of its own, and a hook before the optimizer's step looks at each
group alone: its gradient is clipped by its own norm, removed when the player had no data, and
removed and counted when it is not finite; weights, moments and counters then stay. DeepSpeed steps
the same torch optimizer: ZeRO-1 and -2 with all groups at once, ZeRO-3 once for each, with the
parameters of the others taken out.
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
"""Dropped updates of one player, or steps without a game, after which a run stops."""
SCALE_SKIPS_IN_A_ROW = 20
"""The same with a loss scale (float16).

It starts at 2^16 and every skip halves it, so after these it is below 1, and the gradient itself is
not finite.
"""
RUN_PER_DECAY = 3
"""How many times longer than its last part, in which warmup_stable_decay falls, a run is."""
_CLIP_EPSILON = 1e-6
"""Added to a norm before it divides, as in torch's own clipping."""


def player_groups(
    model: torch.nn.Module, names: Sequence[str], rate_of: Callable[[str], float] | None = None
) -> list[dict[str, Any]]:
    """Return one optimizer group per adapter, with "updates", which says how often it moved.

    Args:
        model: With the adapters.
        names: Their names.
        rate_of: (adapter) -> its peak learning rate; None: all have the optimizer's.
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
    """transformers' schedule of one name, at each group's own count of updates.

    A step without a player's data then moves nothing of that player, its place in warm-up and decay
    included.
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

        A player that rests in some steps, as with HANABI_UPDATE=best_response, does not come to the
        schedule's end.

        Args:
            optimizer: With the groups of `player_groups`.
            name: LR_SCHEDULER_TYPE; warmup_stable_decay falls in the last third.
            num_training_steps: Updates of a player that moves in every step.
            num_warmup_steps: Those in which the rate grows.

        Raises:
            SettingsError: transformers has no such schedule, or it is no function of the number of
                updates.
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
                f"LR_SCHEDULER_TYPE={name}: depends on more than the number of updates; allowed "
                "are transformers' schedules by step, such as constant, constant_with_warmup, "
                "linear, cosine and warmup_stable_decay."
            )
        self._factor: Callable[[int], float] = stock.lr_lambdas[0]
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Return each group's rate."""
        groups = self.optimizer.param_groups
        return [group["initial_lr"] * self._factor(group["updates"]) for group in groups]

    def refresh(self) -> None:
        """Set the rates by the groups' counts, behind a step or when counts were restored."""
        self._last_lr = self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate


def forget_gradients(optimizer: Any) -> None:
    """Empty what ZeRO-3 gathers gradients in, behind an update; others are empty by then.

    DeepSpeed (0.19) overwrites the gradients of the update before in the first backward pass of an
    update, and adds to them in all others. Who is not in the first micro-batch would learn from
    all of its updates so far once more, and a gradient that is not finite would stay for ever.

    Args:
        optimizer: accelerate's, or DeepSpeed's.
    """
    inner = getattr(optimizer, "optimizer", optimizer)
    gathered = getattr(inner, "grad_partitions_flat_buffer", None)
    if gathered is not None:
        gathered.zero_()


class PlayerGuard:
    """Decides, before each optimizer step, whose gradient counts and how much.

    The order of calls in a step: `begin_step`, then per update `begin_update`, the optimizer's step
    with its hook `before_step`, `end_update`; and `end_step` once the step is counted.
    """

    def __init__(
        self,
        *,
        max_norm: float,
        sharded: bool,
        report: Callable[..., None],
        loss_scaled: bool = False,
    ) -> None:
        """Prepare; `watch` takes the optimizer, whose groups `player_groups` makes.

        Args:
            max_norm: Largest norm of one player's gradient.
            sharded: Whether each rank's groups hold only its share of the gradient.
            report: Called as report(kind, message, **details) for each dropped update.
            loss_scaled: Whether the loss has a scale that is found by skipping updates (float16).
        """
        self._max_norm = max_norm
        self._sharded = sharded
        self._report = report
        self._limit = SCALE_SKIPS_IN_A_ROW if loss_scaled else BAD_STEPS_IN_A_ROW
        self._with_data: frozenset[str] | None = None
        """Who has data in the update in progress; None between updates."""
        self._seen: set[str] = set()
        """Whom the hook has looked at in this update."""
        self._moved: set[str] = set()
        """Who has moved in this step."""
        self._has_begun = False
        self.norms: dict[str, float] = {}
        """Per player the norm of the last gradient in this step, before it was clipped."""
        self.dropped: list[str] = []
        """Players whose update was dropped in this step, once for each."""
        self.streaks: Counter[str] = Counter()
        """Per player the updates that were dropped in a row."""
        self.is_stepping = False
        """True from a step's first update until the step is counted.

        An interrupt leaves no finished step till then.
        """

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at gradients before each step of an optimizer, and as the loss has them.

        A fused optimizer takes the loss scale (float16) out in its kernel, behind the hook, and
        leaves a step with an infinite gradient out there. torch then calls it with scaled
        gradients, which would all be clipped. Without this mark it is treated as any other: the
        scale is taken out before, and such a step is not made at all.

        Args:
            optimizer: With the groups of `player_groups`.
        """
        optimizer._step_supports_amp_scaling = False
        optimizer.register_step_pre_hook(self.before_step)

    def begin_step(self) -> None:
        """Forget the last step's norms and drops."""
        self.norms = {}
        self.dropped = []
        self._moved = set()

    def begin_update(self, with_data: Collection[str]) -> None:
        """Announce an update; who is in `with_data` has a token in its loss on some rank.

        A player's count grows once a step, by its first update.
        """
        self._with_data = frozenset(with_data)
        self._seen = set()
        self._has_begun = True

    def end_update(self) -> dict[str, float]:
        """Close an update and return the norm of each player's gradient before it was clipped.

        Raises:
            NonFiniteError: A player's update was dropped in three steps in a row; in twenty with a
                loss scale.
        """
        for name in sorted((self._with_data or frozenset()) - self._seen):
            # DeepSpeed and a loss scale leave the optimizer out when the gradient of anybody is not
            # finite.
            self._drop(
                name,
                "the step was skipped before the optimizer: the gradient over all players is not "
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
                    "finite; the weights are those before them. Lower LEARNING_RATE or "
                    "MAX_GRAD_NORM, or look at the last recorded games for rewards and logprobs "
                    "that are out of range; RESUME=latest starts from the last checkpoint."
                )
        return norms

    def end_step(self) -> None:
        """Note that the step is counted."""
        self.is_stepping = False

    @torch.no_grad()
    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Look at each player's gradient right before the optimizer uses it."""
        if self._with_data is None:
            if self._has_begun:
                raise SettingsError(
                    "a second optimizer step on the same games: its players are unknown. "
                    "Leave ms-swift's options --num_iterations and --steps_per_generation alone; "
                    "HANABI_UPDATES_PER_STEP makes several."
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
                f"{name}: a second optimizer step in one update. ZeRO-3 divides adapters of more "
                "than sub_group_size numbers; give a larger one in the file that DEEPSPEED names, "
                "e.g. 1e9."
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
            f"{name}: {reason}; its weights and optimizer state stay as they were "
            f"({self.streaks[name]} in a row, {self._limit} stop the run)",
            player=name,
        )
