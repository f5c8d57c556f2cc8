"""Supervised learning from games before any reinforcement learning: `hanabi-grpo warm-start`.

- `sources`: games played by scripts or read from files, and which of their replies are learned.
- `encoding`: a player's conversation in one game as the token ids of a rollout, with a mask of the
  replies that are learned.
- `beliefs`: questions about hidden cards as additional training samples.
- `samples`: the encoded sequences; held-out starts, batches, and the logits of reply tokens.
- `learning`: the trained adapters or the trained whole model, their updates, and held-out loss and
  accuracy.
- `state`: the files on disk: the best weights, the last ones, and the state for a resume.
- `kept_games`: the encoded games of scripts on disk, so that a resume does not play them again.
- `resume_key`: what a resume must not change.
- `run`: one warm start from its options to its result.
- `tiny_model`: the small model for machines without a GPU.

Forward passes, prefix sharing, adapters and checkpoint writing are those of reinforcement learning
(`training.model`, `runs.checkpoints`).
"""
