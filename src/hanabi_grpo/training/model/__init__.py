"""The model that is trained: one LoRA adapter per player on a frozen base.

- `adapters` is all that touches PEFT, `start_from` fills adapters from earlier runs.
- `forward` returns the logprobs of replies, `output_head` makes them from hidden states without the
  logits of a whole micro-batch.
- `prefix_tree` cuts sequences into micro-batches and finds shared prefixes, `shared_prefixes` lets
  the model compute those once, and nothing that no loss reads.
- `dropout` switches off what a sampler does not have.
- `row_owners` lets several players' rows share a forward pass, each under its own adapter.
"""
