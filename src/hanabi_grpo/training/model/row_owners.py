"""Several players' rows in one forward pass, each computed with its own player's adapter.

The last micro-batch of a player is usually not full, and a small pass costs about as much as a
larger one. Such micro-batches therefore share a pass (`training.shared_passes`): their trees form
one long row of nodes, player by player. Element-wise and row-wise operations process all nodes at
once. Three kinds of modules process each player's rows separately:

- layers with adapters, because each player has its own adapter. This includes matrix products with
  the same weights: the kernel that a library chooses, and its order of summation, depend on the
  number of rows;
- activation functions, because a CPU computes their last elements with other instructions;
- attention, see `shared_prefixes`.

A player's values and gradients are therefore computed from the same numbers in tensors of the same
shapes as in a separate pass. On CPUs they are bit-identical, and no other player's data changes
them. PEFT's own mixed batches (`adapter_names`) do not support training.
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
    """Consecutive rows of a forward pass that belong to one player."""

    adapter: str
    """The player's adapter."""
    num_nodes: int
    """Number of the player's rows."""
    num_predicting: int
    """Number of these rows that predict a token, see `shared_prefixes.only_at`."""


class RowOwners:
    """The assignment of adapters to rows of the current forward pass."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Start with passes of one player, who owns all rows.

        Args:
            model: The model with all adapters.
        """
        self._model = model
        self._layers = lora_layers(model)
        self._adapters: tuple[str, ...] = ()
        self._lengths: dict[int, list[int]] = {}
        """Rows of each owner, by the total number of rows."""
        self._split = _Split()

    def share(self, owned: Sequence[OwnedRows]) -> None:
        """Set the owners of the next pass, including recomputations in its backward pass.

        This ends with the next `adapters.use_adapter`.

        Args:
            owned: The owners, in the order of the rows.
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
        """Whether the current pass has several players."""
        return len(self._layers[0].active_adapters) > 1

    def lengths_of(self, x: torch.Tensor) -> list[int]:
        """Return each owner's number of rows in a layer's input.

        Args:
            x: [1, rows, width].

        Raises:
            RuntimeError: The input does not have the rows of the pass.
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
        """Return a layer's output, [1, rows, …], computed with each owner's adapter on its rows.

        Layers with the same input get the same split tensors. Gradients are therefore summed at a
        player's rows in the same order as in a separate pass, which matters in 16-bit formats.

        Args:
            compute: (adapter, [1, its rows, width]) -> [1, its rows, …].
            x: [1, rows, width].
        """
        if self._split.whole is not x:
            self._split = _Split(whole=x, rows=self.rows_of(x))
            if x.requires_grad:
                # The hook runs after all gradients of the rows have been summed.
                x.register_hook(self._forget_input)
        outputs = []
        # Players without rows are included, because every process needs their zero gradient.
        for adapter, rows in zip(self._adapters, self._split.rows, strict=True):
            outputs.append(compute(adapter, rows))
        return torch.cat(outputs, dim=1)

    def _forget_input(self, _: torch.Tensor) -> None:
        """Release the layer's input after the backward pass."""
        self._split = _Split()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """The input of a layer, split into each owner's rows."""

    whole: torch.Tensor | None = None
    rows: Sequence[torch.Tensor] = ()


def split_activations(model: PeftModel, owners: RowOwners) -> None:
    """Make every activation function process each owner's rows separately.

    Args:
        model: The model with all adapters.
        owners: The owners of the rows.
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
    """Return the modules in a model's layers without weights and without submodules."""
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
