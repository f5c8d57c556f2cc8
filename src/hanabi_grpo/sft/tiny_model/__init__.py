"""The model of the laptop demo: a small Qwen3 architecture that this package makes itself.

- `tokenizer`: one token per word of the compact prompt, with a ChatML template.
- `corpus`: conversations of a noisy teacher, rendered exactly as a rollout renders them.
- `warm_start`: the architecture and its supervised start on those conversations.
- `recipe`: everything that the result depends on, its hash, and the manifest of a finished folder.
- `build`: all of it, cached.
"""

from hanabi_grpo.sft.tiny_model.build import build_tiny_model
from hanabi_grpo.sft.tiny_model.recipe import Recipe

__all__ = ["Recipe", "build_tiny_model"]
