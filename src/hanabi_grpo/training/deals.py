"""Which deals a step plays: a dataset of deals and a sampler that keeps a deal's players and games together."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset, Sampler

from hanabi_grpo.rollout.datasets import deals


class DealDataset(Dataset[dict[str, Any]]):
    """Deal number n of a run, for n below the number that the run needs. Nothing is stored."""

    def __init__(self, rows: list[dict[str, Any]], num_deals: int) -> None:
        """Wrap dataset rows; `num_deals` is steps × deals per step."""
        self._rows, self._num_deals = rows, num_deals

    def __len__(self) -> int:
        """Return the number of deals of the run."""
        return self._num_deals

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return {"env_config", "suite", "seed"} of one deal."""
        return deals(self._rows, number, 1)[0]


def step_deals(step: int, deals_per_step: int) -> range:
    """Return the numbers of a step's deals in the run, in order."""
    return range(step * deals_per_step, (step + 1) * deals_per_step)


class DealSampler(Sampler[list[int]]):
    """Yields one step's deals, once per micro-step of that step, in order and on every rank alike.

    The trainer asks for data at each micro-step and plays at the first one; a deal, with all its players and all
    games of its group, therefore never falls apart over batches or ranks.
    """

    def __init__(self, *, num_steps: int, deals_per_step: int, micro_steps: int, first_step: int = 0) -> None:
        """Plan the steps from `first_step` up to `num_steps`, of `micro_steps` micro-steps each."""
        self._steps = range(first_step, num_steps)
        self._deals_per_step, self._micro_steps = deals_per_step, micro_steps

    def __len__(self) -> int:
        """Return the number of micro-steps."""
        return len(self._steps) * self._micro_steps

    def __iter__(self) -> Iterator[list[int]]:
        """Yield lists of deal numbers."""
        for step in self._steps:
            batch = list(step_deals(step, self._deals_per_step))
            for _ in range(self._micro_steps):
                yield batch
