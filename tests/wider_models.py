"""A second base model for a team: wider than the shipped one, and with other token ids.

It plays about as well as the shipped one, whose weights it holds in its first dimensions.
"""

import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer
from small_models import SHIPPED

SPARE_WORDS = ("spare", "words", "of", "the", "wider", "model")
"""They make its vocabulary larger."""
_EXTRA_WIDTH = 64
_NOISE = 0.02
"""Of the weights that the shipped model does not have."""


def write_wider_model(folder: Path, *, has_own_words: bool = True) -> Path:
    """Write the model and its tokenizer into a folder; the same bytes at every call.

    Args:
        folder: Where to.
        has_own_words: Whether it has further words and other token ids; else the shipped ones.
    """
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    old_ids = tokenizer.get_vocab()
    if has_own_words:
        words = sorted(old_ids, key=old_ids.__getitem__, reverse=True)
        tokenizer = build_tokenizer([*words, *SPARE_WORDS])
    config = Qwen3Config.from_pretrained(SHIPPED)
    narrow = config.hidden_size
    config.hidden_size = narrow + _EXTRA_WIDTH
    if has_own_words:
        config.vocab_size = len(tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = Qwen3ForCausalLM(config)
        _fill(model, load_file(SHIPPED / "model.safetensors"), _id_map(tokenizer, old_ids), narrow)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _id_map(tokenizer: object, old_ids: dict[str, int]) -> dict[int, int]:
    """Return the shipped model's id of each word, by the wider model's."""
    ids = {}
    for word, number in tokenizer.get_vocab().items():  # type: ignore[attr-defined]
        if word in old_ids:
            ids[number] = old_ids[word]
    return ids


@torch.no_grad()
def _fill(
    model: torch.nn.Module,
    shipped: dict[str, torch.Tensor],
    ids: dict[int, int],
    narrow: int,
) -> None:
    """Put the shipped weights into the first dimensions of a wider model, noise into the others."""
    # The root of a mean of squares is smaller where more of them are about 0.
    scale = math.sqrt(narrow / (narrow + _EXTRA_WIDTH))
    for name, parameter in model.named_parameters():
        known = shipped[name]
        if name.endswith("embed_tokens.weight"):
            parameter.normal_(std=_NOISE)
            for new, old in ids.items():
                parameter[new, :narrow] = known[old]
        elif parameter.shape == known.shape:
            parameter.copy_(known)
        elif parameter.dim() == 1:
            parameter.fill_(scale)
            parameter[:narrow] = scale * known
        else:
            parameter.normal_(std=_NOISE)
            num_out, num_in = known.shape
            parameter[:num_out, :num_in] = known
