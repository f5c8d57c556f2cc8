"""A step's optimizer updates: which micro-batches make which, and how one step of Hugging Face's
loop holds several.

A step is one set of games, and the unit of versions, schedules, checkpoints and MAX_STEPS. It makes
one update or several: HANABI_UPDATES_PER_STEP passes over all players' micro-batches, or, with
HANABI_UPDATE=sequential, these passes over one player's after the other's.

Hugging Face's loop knows one update a step, after `gradient_accumulation_steps` micro-steps.
`StepUpdates` closes the earlier ones itself; under DeepSpeed the update is part of
`accelerator.backward`. A micro-step holds one micro-batch or several, as many on every rank, whose
gradients add up in it.

**Sequential updates.** HAPPO (Kuba et al. 2022, arXiv 2109.11251) lets agent i_m, the m-th of a
random order, follow its clipped objective with M = (Π_{j<m} π_new^{i_j}(a^{i_j}|o) /
π_old^{i_j}(a^{i_j}|o)) · A(s, a). In Hanabi one player moves at a time. Where i_m moves the others
have no choice, so the product over that state is 1, and since the players' adapters share no
weights, the update would be that of independent players, bit by bit.

Here the advantages come from the returns of whole games, so the product goes over all replies of
the earlier players in the game: games of the old team stand for games of the team in which they
have moved already. It varies with the length of the game, so it is cut to [1 / MAX_WEIGHT,
MAX_WEIGHT].

Only what a game is worth is weighted. KL term and entropy bonus (`loss`) keep the strength that
their settings say, as the entropy term of HAPPO's own code, which M does not multiply."""

import contextlib
import random
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import DistributedType, gather_object
from transformers import Trainer, TrainerCallback
from trl import GRPOTrainer

from hanabi_grpo.settings import Settings
from hanabi_grpo.training.model.adapters import use_adapter
from hanabi_grpo.training.model.prefix_tree import cut_by_rows
from hanabi_grpo.types import adapter_of, player_names

MAX_WEIGHT = 2.0
MicroStep = list[dict[str, Any]]
"""One micro-batch or several, of one player and update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One optimizer update."""

    batches: tuple[dict[str, Any], ...]
    """Micro-batches of the players below and of nobody else whose data counts."""
    adapters: frozenset[str]
    """Who moves."""
    first_pass: bool
    """True where these micro-batches are met for the first time in the step: the policy is still
    that which sampled.
    """
    last_of_player: str = ""
    """The player that has made its last update of the step by this one; empty when it is
    everybody's.
    """


def player_order(settings: Settings, step: int) -> tuple[str, ...]:
    """Return the order of a sequential step, drawn anew for each (as in Kuba et al. 2022)."""
    names = list(player_names(settings.players))
    random.Random(f"{settings.seed} {step}").shuffle(names)
    return tuple(names)


def order_updates(
    batches: Sequence[dict[str, Any]],
    settings: Settings,
    *,
    step: int,
    adapters: Sequence[str],
    active: Collection[str],
) -> list[Update]:
    """Return the updates of a step; all updates of a run have the same number of micro-steps.

    `step` is the number of steps before this one, `active` which of the run's `adapters` have data
    in it and may move."""
    sequential = settings.update == "sequential"
    updates = []
    for player in player_order(settings, step) if sequential else ("",):
        own = [batch for batch in batches if player in ("", batch["grpo_batch"].player)]
        for number in range(settings.updates_per_step):
            updates.append(
                Update(
                    # ms-swift may write further arguments of the forward pass into "model_inputs".
                    batches=tuple(
                        {**batch, "model_inputs": dict(batch["model_inputs"])} for batch in own
                    ),
                    adapters=frozenset(active) & {adapter_of(player, adapters)}
                    if sequential
                    else frozenset(active),
                    first_pass=number == 0,
                    last_of_player=player if number == settings.updates_per_step - 1 else "",
                )
            )
    return updates


def game_log_ratios(
    new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor, games: Sequence[int]
) -> dict[int, float]:
    """Return per game Σ_t log π_new(a_t) − log π_old(a_t) of one player's replies, [batch, tokens]
    before and after.

    `games` are [batch] numbers of each row's game; rows without a sampled token are left out.
    """
    sums = torch.where(mask, new - old, 0.0).double().sum(1).tolist()
    present = mask.any(1).tolist()
    return {game: total for game, total, there in zip(games, sums, present, strict=True) if there}


def game_weights(log_ratios: Sequence[Mapping[int, float]], games: Sequence[int]) -> torch.Tensor:
    """Return [batch, 1] weights of a later player's rows, from each earlier player's ratios; 1
    without its replies.
    """
    totals = torch.tensor(
        [sum(one.get(game, 0.0) for one in log_ratios) for game in games], dtype=torch.float64
    )
    return totals.exp().clamp(1 / MAX_WEIGHT, MAX_WEIGHT).nan_to_num(1.0).float()[:, None]


class StepUpdates(GRPOTrainer):
    """A trainer whose batches are `MicroStep`, and whose step has several updates."""

    _updates: Sequence[Update] = ()
    is_last_step = False
    """Whether the run stops behind this step, before MAX_STEPS."""
    _number: int = 0
    _log_ratios: tuple[dict[int, float], ...] = ()
    _micro_batch: dict[str, Any] | None = None

    def begin_updates(self, updates: Sequence[Update]) -> list[MicroStep]:
        """Announce a step's updates to the guard; returns their micro-steps in the order of
        training.
        """
        self._updates, self._number, self._log_ratios = updates, 0, ()
        self.guard.begin(updates[0].adapters)
        found = []
        for update in updates:
            for player in dict.fromkeys(batch["grpo_batch"].player for batch in update.batches):
                own = [batch for batch in update.batches if batch["grpo_batch"].player == player]
                spans = cut_by_rows(len(own), self.plan.micro_batches_per_player)
                found += [own[start:end] for start, end in spans]
        return found

    @property
    def in_first_pass(self) -> bool:
        """True while the policy of the micro-batch's player is still that which sampled its
        tokens.
        """
        return self._updates[self._number].first_pass

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Train on one micro-step; returns its loss as a mean over the passes, for the log."""
        start = time.perf_counter()
        model.train()
        *earlier, last = super()._prepare_inputs(inputs)
        whole_step = self.plan.gradient_accumulation_steps
        place = self._step % whole_step + 1
        closes_early = place < whole_step and place % (whole_step // len(self._updates)) == 0
        state = self.accelerator.gradient_state
        closes = state.sync_gradients or closes_early
        loss = torch.zeros((), device=self.accelerator.device)
        # DeepSpeed asks the flag instead.
        is_deepspeed = self.accelerator.distributed_type == DistributedType.DEEPSPEED
        try:
            state._set_sync_gradients(False)
            for self._micro_batch in earlier:
                with contextlib.nullcontext() if is_deepspeed else self.accelerator.no_sync(model):
                    # Not trl's: it counts micro-steps.
                    loss += Trainer.training_step(self, model, inputs, num_items_in_batch)
            state._set_sync_gradients(closes)
            self._micro_batch = last
            self._current_train_step_time += time.perf_counter() - start
            loss = loss + super().training_step(model, inputs, num_items_in_batch)
        finally:
            self._micro_batch = None
        if closes_early:
            # Without effect under DeepSpeed, whose engine has made the update by now.
            self.optimizer.step()
            model.zero_grad()
            self.end_update()
        return loss / self.settings.updates_per_step

    def end_update(self) -> None:
        """Count and show what the guard did with an update, and announce the next one."""
        for name, norm in self.guard.finish().items():
            self._metrics["train"][f"{name}/grad_norm"].append(norm)
        done = self._updates[self._number]
        self._number += 1
        if self._number < len(self._updates):
            if done.last_of_player:
                self._weigh_next(done)
            self.guard.again(self._updates[self._number].adapters)
            return
        self._metrics["train"]["grad_norm"].append(
            sum(norm**2 for norm in self.guard.norms.values()) ** 0.5
        )
        self._metrics["train"]["updates_dropped"].append(float(len(self.guard.dropped)))

    def _prepare_inputs(self, inputs: Any) -> Any:
        return super()._prepare_inputs(inputs) if self._micro_batch is None else self._micro_batch

    def _weigh_next(self, done: Update) -> None:
        # All ranks hold the same players' rows, but of different games; a game's rows may be on
        # different ranks.
        ratios: dict[int, float] = {}
        if done.adapters:
            use_adapter(self.accelerator.unwrap_model(self.model), *done.adapters)
            for batch in done.batches:
                data = batch["grpo_batch"]
                ratios |= game_log_ratios(
                    self.logps_of(batch), data.old_per_token_logps, data.completion_mask, data.games
                )
        everywhere = {game: ratio for one in gather_object([ratios]) for game, ratio in one.items()}
        self._log_ratios = (*self._log_ratios, everywhere)
        for batch in self._updates[self._number].batches:
            data = batch["grpo_batch"]
            weights = game_weights(self._log_ratios, data.games).to(data.advantages.device)
            # w·(A − f) + f: the entropy bonus is of this player's own policy, not of the game.
            data.advantages = data.advantages * weights
            if data.shaping is not None:
                data.advantages = data.advantages + data.shaping * (1 - weights)
            self._metrics["train"][f"{data.player}/game_weight"].append(weights.mean().item())


class AfterStep(TrainerCallback):
    """Runs on every rank after each optimizer step of `StepUpdates`, and asks for another save
    after a failed one.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the step's last update."""
        self._trainer.end_update()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count the step; the last one is saved."""
        self._trainer.guard.stepping = False
        # Not before: transformers would stop between two micro-steps.
        control.should_training_stop |= self._trainer.is_last_step
        control.should_save |= control.should_training_stop or self._trainer.failed_saves > 0
