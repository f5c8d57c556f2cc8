"""The trained model: one LoRA adapter per player on a frozen base model.

- `adapters` contains all uses of PEFT, `start_from` fills adapters from earlier runs.
- `forward` returns the logprobs of replies, `output_head` computes them from hidden states without
  the logits of a whole micro-batch.
- `prefix_tree` cuts sequences into micro-batches and finds shared prefixes, `shared_prefixes` makes
  the model compute those once, and skips what no loss reads.
- `dropout` switches off dropout, which a sampler does not have.
- `row_owners` lets several players' rows share a forward pass, each with its own adapter.
"""
