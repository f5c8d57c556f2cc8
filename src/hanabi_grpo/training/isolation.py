"""Players that do not move each other: gradients are clipped, and dropped, player by player."""

import math
from collections.abc import Collection, Mapping, Sequence

import torch

from hanabi_grpo.errors import NonFiniteError


def parameters_by_adapter(model: torch.nn.Module, names: Sequence[str]) -> dict[str, list[torch.nn.Parameter]]:
    """Return each adapter's trainable parameters."""
    return {
        name: [value for key, value in model.named_parameters() if f".{name}." in key and value.requires_grad]
        for name in names
    }


def clip_per_player(
    parameters: Mapping[str, Sequence[torch.nn.Parameter]], with_data: Collection[str], max_norm: float
) -> dict[str, float]:
    """Clip each player's gradient by its own norm, and remove those of players without data.

    One norm over all players would let a large gradient of one shrink the others' steps. A gradient of zeros would
    still move its player by momentum; without a gradient torch's optimizers leave weights and state alone.

    Args:
        parameters: Per adapter its parameters, their gradients filled.
        with_data: Adapters that had at least one token with a loss in this step.
        max_norm: Largest norm of one player's gradient.

    Returns:
        Per adapter with data the norm before clipping.

    Raises:
        NonFiniteError: A gradient holds a value that is not a number; nothing was updated.
    """
    norms = {}
    for name, values in parameters.items():
        if name not in with_data:
            for value in values:
                value.grad = None
            continue
        norm = torch.nn.utils.clip_grad_norm_(values, max_norm).item()
        if not math.isfinite(norm):
            raise NonFiniteError(
                f"{name}: the gradient's norm is {norm}; nothing was updated in this step. Lower LEARNING_RATE "
                "or look at the last recorded games for rewards and logprobs that are out of range."
            )
        norms[name] = norm
    return norms
