"""The trainer: ms-swift's GRPO with one LoRA adapter per player.

Start: `main` is the process, `arguments` makes settings ms-swift's options, `pipeline` tells ms-swift of our model,
data and trainer.
A step, in order: `deals` are played through `link` (`fleet_link` with several servers, `overlap` a step ahead,
`partner_seats` with partners, `answers` checked), `batching` makes micro-batches that hold one player each with
`advantages`, `mismatch` compares sampler and trainer, `loss` is what is optimised, `updates` says which micro-batches
make which optimizer update (`sequential` weighs games in it), `isolation` and `schedule` keep players from moving each
other, `metrics` counts.
State: `saving` writes checkpoints, `training_state` is what they hold for a resume.
`trainer` puts these into ms-swift's trainer, and `model` is what is trained.
"""
