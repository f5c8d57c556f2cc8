"""The model that is trained: one LoRA adapter per player on a frozen base.

`adapters` is all that touches PEFT, `start_from` fills adapters from earlier runs, `forward`
returns reply logprobs, `prefix_tree` cuts sequences and finds what they share, `shared_prefixes`
computes nothing twice or in vain."""
