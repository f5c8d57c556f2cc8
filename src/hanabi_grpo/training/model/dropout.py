"""No dropout, whatever the model's configuration contains.

The trainer's logprobs must equal those that the sampler drew from. Dropout would change them in
each pass: noise in the importance ratio, and a mismatch with the sampler that stops the run. Some
models are published with a dropout of 0.1, which vLLM ignores.

A warm start has no dropout either, so that its seed determines the result, and a resumed warm start
is bit-identical to an uninterrupted one.
"""

import torch

_PART_OF_NAME = "drop"
"""Common part of the attribute names: `attention_dropout`, `attn_pdrop`, `layerdrop`."""


def switch_off_dropout(model: torch.nn.Module) -> dict[str, float]:
    """Make a model compute the same in training mode as when it is served.

    Args:
        model: Its dropout modules are set to 0, as are the probabilities that other modules store
            for attention and `functional.dropout`.

    Returns:
        The probabilities that were above 0, by the name of the attribute or class, sorted.
    """
    shares: dict[str, float] = {}
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            if module.p:
                shares[type(module).__name__] = module.p
                module.p = 0.0
            continue
        for name, value in vars(module).items():
            if isinstance(value, float) and value and _PART_OF_NAME in name:
                shares[name] = value
                setattr(module, name, 0.0)
    return dict(sorted(shares.items()))
