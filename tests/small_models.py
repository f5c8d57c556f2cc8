"""Models for tests: random ones, where only what is done with them matters, and the one that is
shipped.
"""

from pathlib import Path

from transformers import Qwen3Config, Qwen3ForCausalLM

from hanabi_grpo.settings.defaults import TINY_MODEL

SHIPPED = Path(__file__).parents[1] / TINY_MODEL
"""Nobody may write into it."""


def small_model(**other: float) -> Qwen3ForCausalLM:
    """Return a Qwen3 of one layer and width 16, unless `other` says otherwise; the weights are
    torch's next ones.
    """
    shape = {
        "vocab_size": 16,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
    }
    return Qwen3ForCausalLM(Qwen3Config(**shape | other))
