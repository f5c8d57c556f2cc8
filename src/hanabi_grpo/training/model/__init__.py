"""The model that is trained: one LoRA adapter per player on a frozen base.

`adapters` is all that touches PEFT, `start_from` fills adapters from earlier runs, `forward` returns reply logprobs,
`token_wise` leaves tokens without loss out, `prefix_tree` and `shared_prefixes` compute common prefixes once, `lora_op`
joins LoRA's products, `cutting` says how many tokens go together.
"""
