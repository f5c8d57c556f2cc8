"""Models of real sizes with random weights: what time and memory need, without a download.

python -m gpu.random_model NAME FOLDER cuda|cpu      # with tools/ on PYTHONPATH
"""

import sys
from pathlib import Path
from typing import Any

_QWEN3 = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}


def _sizes(hidden: int, inner: int, layers: int, heads: int) -> dict[str, Any]:
    own = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    return {"model_type": "qwen3", **own, **_QWEN3}


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _sizes(1024, 3072, 28, 16),
    "qwen3-1.7b": _sizes(2048, 6144, 28, 16),
    "qwen3-4b": _sizes(2560, 9728, 36, 32),
    "small": {**_sizes(64, 128, 2, 4), "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512},
}
"""Name to the sizes in `config.json` of Qwen/Qwen3-0.6B, -1.7B and -4B; `small` is for machines
without a GPU.
"""


def random_model(
    name: str, device: str, *, attention: str = "sdpa", dtype: str = "bfloat16"
) -> Any:
    """Return the causal language model of an architecture on a device, the same at every call
    there.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**ARCHITECTURES[name])
    with torch.random.fork_rng(devices=[0] if device == "cuda" else []), torch.device(device):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation=attention
        )


def save_random_model(name: str, folder: Path, device: str) -> None:
    """Write a model folder for both terminals, with a word-level tokenizer of the board `laptop`.

    The model's vocabulary is larger than the tokenizer's, as that of real models is: what has no
    word decodes to nothing, so a reply is rarely a move, and hardly ever ends before its limit."""
    from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
    from hanabi_grpo.envs.hanabi.rules import make_spec
    from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer

    dtype = "float32" if device == "cpu" else "bfloat16"
    model, tokenizer = (
        random_model(name, device, dtype=dtype),
        build_tokenizer(compact_vocabulary(make_spec("laptop"))),
    )
    for one in (model.config, model.generation_config):
        one.eos_token_id, one.pad_token_id, one.bos_token_id = (
            tokenizer.eos_token_id,
            tokenizer.pad_token_id,
            None,
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    save_random_model(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
