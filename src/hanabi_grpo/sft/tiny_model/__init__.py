"""The model of the laptop demo: a small Qwen3 architecture that this package makes itself.

- `tokenizer`: one token per word of the compact prompt, with a ChatML template.
- `corpus`: conversations of a noisy teacher, as the ids of a rollout.
- `warm_start`: the architecture and its supervised start on those conversations.
- `recipe`: everything that the result depends on, and its hash.
- `card`: the README of a finished folder.
- `build`: all of it, cached.
- `shipped`: the check of `data/tiny-model`, the model of the default board; others are made on demand.
"""

from hanabi_grpo.sft.tiny_model.build import build_tiny_model
from hanabi_grpo.sft.tiny_model.recipe import Recipe

__all__ = ["Recipe", "build_tiny_model"]
