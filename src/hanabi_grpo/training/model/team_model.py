"""The model of a team whose players have different base models: all of them as one module.

Optimizer, isolation, DeepSpeed and checkpoints see one model with every player's adapter. A forward
pass goes through one base model, that of the adapter chosen last (`adapters.use_adapter`), which is
correct because a micro-batch belongs to one player.
"""

from collections.abc import Iterator
from typing import Any

from peft import PeftModel, PeftModelForCausalLM
from torch import nn


class TeamModel(PeftModelForCausalLM):
    """player_0's base model with its adapters; it contains the other base models with theirs.

    As a `PeftModel`, it has the configuration and the embeddings of player_0's base model;
    `part_of` returns the base model of another player.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        """Create the first part like `PeftModelForCausalLM`; `add` adds the others."""
        super().__init__(*args, **options)
        self.others = nn.ModuleList()
        """All parts except the first, in the order of `base_models`."""
        self._part_numbers: dict[str, int] = {}
        """Index in `others` by adapter; without the adapters of the first part."""
        self._chosen = ""
        """The adapter whose part computes the forward pass."""

    def add(self, part: PeftModel) -> None:
        """Add a base model with its players' adapters.

        Raises:
            ValueError: It has an adapter with a name that already exists.
        """
        known = {*self.peft_config, *self._part_numbers}
        twice = sorted(known & set(part.peft_config))
        if twice:
            raise ValueError(f"adapter {twice[0]} is in two parts of the team's model.")
        for name in part.peft_config:
            self._part_numbers[name] = len(self.others)
        self.others.append(part)

    def part_of(self, adapter: str) -> PeftModel:
        """Return the base model of an adapter, with all its adapters."""
        number = self._part_numbers.get(adapter)
        if number is None:
            return self
        part: PeftModel = self.others[number]
        return part

    def parts(self) -> Iterator[PeftModel]:
        """Yield every part, player_0's first."""
        yield self
        for part in self.others:
            assert isinstance(part, PeftModel), "`add` takes nothing else"
            yield part

    def choose(self, adapter: str) -> None:
        """Make the next forward pass go through the base model of an adapter."""
        self._chosen = adapter

    def forward(self, *args: Any, **options: Any) -> Any:
        """Run the forward pass of the chosen part."""
        part = self.part_of(self._chosen)
        if part is self:
            return super().forward(*args, **options)
        return part(*args, **options)
