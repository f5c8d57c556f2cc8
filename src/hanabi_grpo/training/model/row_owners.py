"""Several players' rows in one forward pass, each computed by its own player's adapter.

The last micro-batch of a player is mostly far from full, and a small pass costs about as much as a
larger one. So such micro-batches share a pass (`training.shared_passes`): their trees are one long
row of nodes, player by player. What works element by element, or row by row, takes all nodes at
once. Three kinds of modules take each player's rows by themselves:

- layers with adapters, because each player has its own. A matrix product is no exception where the
  weights are the same: which kernel a library takes, and in which order it adds up, depends on the
  number of rows;
- activation functions, whose last elements a CPU computes with other instructions;
- attention, see `shared_prefixes`.

So a player's values and gradients are computed from the same numbers in tensors of the same shapes
as in a pass of its own. On CPUs they are equal bit by bit, and no other player's data changes them.
PEFT's own mixed batches (`adapter_names`) refuse to train.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer

from hanabi_grpo.training.model.adapters import lora_layers, use_adapters


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedRows:
    """Neighbouring rows of a forward pass that belong to one player."""

    adapter: str
    """The player's."""
    num_nodes: int
    """Rows of the whole pass."""
    num_predicting: int
    """Those of them from which a token is predicted, see `shared_prefixes.only_at`."""


class RowOwners:
    """Which adapter computes which rows of the forward pass in progress."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Begin with passes of one player, who owns all rows.

        Args:
            model: With all adapters.
        """
        self._model = model
        self._layers = lora_layers(model)
        self._adapters: tuple[str, ...] = ()
        self._lengths: dict[int, list[int]] = {}
        """Rows of each owner by the rows of all."""
        self._split = _Split()

    def share(self, owned: Sequence[OwnedRows]) -> None:
        """Let the next pass, and what is computed again in its backward pass, have these owners.

        It ends with the next `adapters.use_adapter`.

        Args:
            owned: In the order of the rows.
        """
        self._adapters = tuple(rows.adapter for rows in owned)
        self._lengths = {}
        for lengths in (
            [rows.num_predicting for rows in owned],
            [rows.num_nodes for rows in owned],
        ):
            self._lengths[sum(lengths)] = lengths
        self._split = _Split()
        use_adapters(self._model, self._adapters)

    @property
    def is_shared(self) -> bool:
        """Whether the pass in progress is one of several players."""
        return len(self._layers[0].active_adapters) > 1

    def lengths_of(self, x: torch.Tensor) -> list[int]:
        """Return how many rows of a layer's input are each owner's.

        Args:
            x: [1, rows, width].

        Raises:
            RuntimeError: These are not the rows of the pass.
        """
        lengths = self._lengths.get(x.shape[1]) if x.dim() == 3 and len(x) == 1 else None
        if lengths is None:
            raise RuntimeError(
                f"a layer was called with a tensor of {tuple(x.shape)} in a pass of several "
                f"players; it must be [1, rows, width] with rows {sorted(self._lengths)}."
            )
        return lengths

    def rows_of(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return each owner's rows of a layer's input [1, rows, width]."""
        return x.split(self.lengths_of(x), dim=1)

    def with_adapters(
        self, compute: Callable[[str, torch.Tensor], torch.Tensor], x: torch.Tensor
    ) -> torch.Tensor:
        """Return [1, rows, …] what a layer makes of each owner's rows with the owner's adapter.

        Layers that read the same input are given the same tensors. So gradients add up at a
        player's rows in the order in which they do in a pass of its own; in 16 bits that shows.

        Args:
            compute: (adapter, [1, its rows, width]) -> [1, its rows, …].
            x: [1, rows, width].
        """
        if self._split.whole is not x:
            self._split = _Split(whole=x, rows=self.rows_of(x))
            if x.requires_grad:
                # All gradients of its rows have been added up by then.
                x.register_hook(self._forget_input)
        outputs = []
        # Nor is a player left out who has no rows here: every process needs its gradient of zeros.
        for adapter, rows in zip(self._adapters, self._split.rows, strict=True):
            outputs.append(compute(adapter, rows))
        return torch.cat(outputs, dim=1)

    def _forget_input(self, _: torch.Tensor) -> None:
        """Keep no layer's input in memory behind a backward pass."""
        self._split = _Split()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """The input of a layer, and each owner's rows of it."""

    whole: torch.Tensor | None = None
    rows: Sequence[torch.Tensor] = ()


def split_activations(model: PeftModel, owners: RowOwners) -> None:
    """Let every activation function take each owner's rows by themselves.

    Args:
        model: With all adapters.
        owners: Of the rows.
    """
    for module in _activations(model):
        module.forward = partial(_activate, owners, partial(type(module).forward, module))


def _activate(
    owners: RowOwners,
    forward: Callable[..., torch.Tensor],
    x: torch.Tensor,
    *args: Any,
    **options: Any,
) -> torch.Tensor:
    if args or options or not owners.is_shared:
        return forward(x, *args, **options)
    return torch.cat([forward(rows) for rows in owners.rows_of(x)], dim=1)


def _activations(model: PeftModel) -> list[torch.nn.Module]:
    """Return the modules in a model's layers that compute without weights or parts."""
    in_adapters: set[torch.nn.Module] = set()
    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            in_adapters.update(layer.modules())
    modules = []
    decoder: Any = model.get_base_model().get_decoder()
    for decoder_layer in getattr(decoder, "layers", ()):
        for module in decoder_layer.modules():
            is_leaf = not [*module.children(), *module.parameters()]
            is_exact = isinstance(module, torch.nn.Dropout | torch.nn.Identity)
            if is_leaf and not is_exact and module not in in_adapters:
                modules.append(module)
    return modules
