"""Supervised learning from games, before any reinforcement: what `hanabi-grpo warm-start` does.

- `teachers`: games of scripts, with a share of random moves that nobody learns.
- `sources`: games of scripts and from files, and which of them are learned.
- `encoding`: a player's conversation in one game as the ids of a rollout, with the replies that are learned marked.
- `samples`: those sequences, and the deals that are held out.
- `batches`: batches of similar length, and the loss on reply tokens.
- `students`: the adapters, or the whole model, that learn; each has an optimizer of its own.
- `learning`: the steps, and the held-out loss and accuracy.
- `state`: what is kept on disk: the best, the last, and what a resume needs.
- `run`: one warm start from its options to its result.
- `tiny_model`: the small model of machines without a GPU.
"""
