"""Supervised learning from games, before any reinforcement: what `hanabi-grpo warm-start` does.

- `sources`: games of scripts and from files, and which of their replies are learned.
- `encoding`: a player's conversation in one game as the ids of a rollout, with the replies that are
  learned marked.
- `samples`: those sequences; the tasks that are held out, batches, and the loss on reply tokens.
- `learning`: the adapters, or the whole model, that learn; their updates, and the held-out loss and
  accuracy.
- `state`: what is kept on disk: the best, the last, and what a resume needs.
- `run`: one warm start from its options to its result.
- `tiny_model`: the small model of machines without a GPU.
"""
