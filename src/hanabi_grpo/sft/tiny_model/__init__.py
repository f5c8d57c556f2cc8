"""The model for machines without a GPU: a small Qwen3 that this package builds for any environment.

- `tokenizer`: one token per word, with a ChatML template.
- `recipe`: everything that the result depends on, the games that it learns from, and its hash.
- `network`: the architecture and its supervised pretraining.
- `transfer`: start from a tiny model that knows other words, e.g. of a game with fewer players.
- `build`: the cached folder with its card, and the check of `data/tiny-model`, the model for
  Hanabi's default board.
"""

from hanabi_grpo.sft.tiny_model.build import build_tiny_model, check_shipped
from hanabi_grpo.sft.tiny_model.recipe import Recipe

__all__ = ["Recipe", "build_tiny_model", "check_shipped"]
