"""Models for tests: random ones, where only the code around them matters, and the shipped one."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from hanabi_grpo.settings.defaults import TINY_MODEL

SHIPPED = Path(__file__).parents[1] / TINY_MODEL
"""No test may write into it."""


def untaught_model(folder: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Write a model of two layers and width 64 that knows nothing, with its tokenizer.

    Args:
        folder: A new one, which is returned.
        tokenizer: Its words are the model's.
    """
    torch.manual_seed(0)
    model = small_model(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        head_dim=32,
        initializer_range=0.1,
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def random_model(
    folder: Path,
    tokenizer_of: Path,
    model_class: type[PreTrainedModel],
    config_class: type[PretrainedConfig],
    **sizes: Any,
) -> Path:
    """Write a random model of any architecture with the words of another one.

    Args:
        folder: A new one, which is returned.
        tokenizer_of: Folder of the model whose tokenizer it has.
        model_class: Its class.
        config_class: The class of its configuration.
        sizes: Fields of the configuration.
    """
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer_of / file, folder)
    words = json.loads((tokenizer_of / "config.json").read_text())
    for name in ("vocab_size", "eos_token_id", "pad_token_id"):
        sizes[name] = words[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model_class(config_class(**sizes)).save_pretrained(folder)
    return folder


def small_model(**other_sizes: float) -> Qwen3ForCausalLM:
    """Return a random Qwen3 of one layer and width 16.

    Its weights are drawn from torch's generator as it is.

    Args:
        other_sizes: Fields of the configuration that differ.
    """
    sizes = {
        "vocab_size": 16,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
    }
    sizes.update(other_sizes)
    return Qwen3ForCausalLM(Qwen3Config(**sizes))
