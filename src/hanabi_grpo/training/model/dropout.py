"""No dropout, whatever the model's configuration says.

A trainer's logprobs must be those by which the sampler drew. Dropout would make them others at each
pass: noise in the ratio of two policies, and a gap to the sampler that stops the run. Some models
are published with a share of 0.1, which vLLM never reads.

A warm start has none either, so that its seed decides what is learned, and a resumed one ends bit
by bit where an undisturbed one does.
"""

import torch

_PART_OF_NAME = "drop"
"""What names of shares have in common: `attention_dropout`, `attn_pdrop`, `layerdrop`."""


def switch_off_dropout(model: torch.nn.Module) -> dict[str, float]:
    """Let a model compute in training mode what it computes when it is served.

    Args:
        model: Its modules of dropout are set to 0, and so are the shares that other modules keep
            for attention and `functional.dropout`.

    Returns:
        The shares that were above 0, by the name of the attribute or of the class, names ascending.
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
