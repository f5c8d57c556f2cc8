"""The model of machines without a GPU: a small Qwen3 that this package makes for any environment.

- `tokenizer`: one token per word, with a ChatML template.
- `recipe`: everything that the result depends on, the games that it learns from, and its hash.
- `network`: the architecture and its supervised start.
- `build`: the folder with its card, cached; and the check of `data/tiny-model`, the model of
  Hanabi's default board.
"""

from hanabi_grpo.sft.tiny_model.build import build_tiny_model, check_shipped
from hanabi_grpo.sft.tiny_model.recipe import Recipe

__all__ = ["Recipe", "build_tiny_model", "check_shipped"]
