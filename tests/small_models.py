"""Random models of a few thousand parameters, for tests of what is done with a model and not of what it says."""

from transformers import Qwen3Config, Qwen3ForCausalLM


def small_model(**other: int) -> Qwen3ForCausalLM:
    """Return a Qwen3 of one layer and width 16, unless `other` says otherwise; the weights are torch's next ones."""
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
