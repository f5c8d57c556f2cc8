"""The model of a team whose players have different base models: all of them as one module.

Optimizer, isolation, DeepSpeed and checkpoints see one model with every player's adapter. A forward
pass goes through one base model, that of the adapter that was chosen last
(`adapters.use_adapter`), which is right because a micro-batch is of one player.
"""

from collections.abc import Iterator
from typing import Any

from peft import PeftModel, PeftModelForCausalLM
from torch import nn


class TeamModel(PeftModelForCausalLM):
    """player_0's base model with its adapters, and within it the others with theirs.

    Everything that is asked of it as of a `PeftModel`, its configuration or its embeddings, is of
    player_0's base model; `part_of` returns that of another player.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        """Make the first part, as `PeftModelForCausalLM`; `add` takes the others."""
        super().__init__(*args, **options)
        self.others = nn.ModuleList()
        """The parts beside the first; their order is that of `base_models`."""
        self._part_numbers: dict[str, int] = {}
        """By adapter its part's number in `others`; those of the first part are not in it."""
        self._chosen = ""
        """The adapter whose part computes."""

    def add(self, part: PeftModel) -> None:
        """Add a base model with its players' adapters.

        Raises:
            ValueError: It has an adapter of a name that is here already.
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
        """Let the next forward pass go through the base model of an adapter."""
        self._chosen = adapter

    def forward(self, *args: Any, **options: Any) -> Any:
        """Compute what the chosen part computes."""
        part = self.part_of(self._chosen)
        if part is self:
            return super().forward(*args, **options)
        return part(*args, **options)
