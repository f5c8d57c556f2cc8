"""The trainer: ms-swift's GRPO with one LoRA adapter per player.

Start: `main` is the process, `pipeline` tells ms-swift of our settings, model, data and trainer.
A step, in order: `tasks` are played through `link` (`fleet_link` with several servers, `overlap` a
step ahead, `partner_seats` with partners) and checked, `batching` makes micro-batches that hold one
player each with `advantages` of one of the `estimators`, for which `learned.value_learner` shows
the games to critics or heads of credit where something is learned, `mismatch` compares sampler and trainer, `loss` is what is optimised,
`updates` says which micro-batches make which optimizer update, `isolation` keeps players from
moving each other, `metrics` counts. State: `saving` writes checkpoints and what they hold for a
resume. `trainer` puts these into ms-swift's trainer, and `model` is what is trained."""
