"""Supervised learning from games before any reinforcement learning: `hanabi-grpo warm-start`.

- `sources`: games of scripts and from files, and which of their replies are learned.
- `encoding`: a player's conversation in one game as the token ids of a rollout, with the replies
  that are learned marked.
- `beliefs`: questions about hidden cards among them.
- `samples`: these sequences; which starts are held out, batches, and the logits of reply tokens.
- `learning`: the adapters or the whole model that learn, their updates, and held-out loss and
  accuracy.
- `state`: what is kept on disk: the best, the last, and what a resume needs.
- `kept_games`: the encoded games of scripts on disk, so that a resume plays none again.
- `resume_key`: what a resume must not change.
- `run`: one warm start from its options to its result.
- `tiny_model`: the small model for machines without a GPU.

Forward passes, prefix sharing, adapters and checkpoint writing are those of reinforcement learning
(`training.model`, `runs.checkpoints`).
"""
