"""The trainer: ms-swift's GRPO with one LoRA adapter per player.

`main` starts a process, `arguments` turns settings into ms-swift's options, `pipeline` is the place where
ms-swift is told of our model, data and trainer, `trainer` is the subclass, `batching` makes micro-batches that
hold one player each, `parity` compares sampler and trainer, `isolation` keeps players from moving each other,
`adapters` is all that touches PEFT, `link` talks to the server, `checkpoints` saves.
"""
