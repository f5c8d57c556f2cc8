"""The trainer: GRPO with one LoRA adapter per player, on ms-swift, DeepSpeed and PEFT.

Start with `loop`: it shows the whole algorithm. Each of its lines calls a method of
`run.TrainingRun`, which is composed of independent parts.

- Setup: `main` is the process, `pipeline` passes our settings, model and data to ms-swift,
  `trainer` connects ms-swift to the loop.
- Rollouts: `tasks` selects a step's tasks, `link` talks to a rollout server (`fleet_link` to
  several), `partner_seats` seats the partners, which `matchmaking` draws by the run's scores,
  `overlap` prefetches the episodes of later steps, `resampling` replaces zero-variance groups,
  `validation` and `phases` evaluate versions and decide which players are trained.
- Learning: `seats` is the seat assignment of a step and `groups` its episodes; `batching` builds
  `micro_batch`es with the `advantages` of `estimators` (and of `learned` critics); `policy`
  computes logprobs, `mismatch` compares them with the sampler's (on the tokens of `check_sample`,
  with the statistics of `evidence`), `loss` is the objective, `updates` orders the optimizer
  updates and `shared_passes` their passes, `isolation` keeps each player's update independent of
  the others.
- State and records: `state` is what one step passes to the next, `checkpoint` saves and restores
  it, `record` and `metrics` compute and write the figures of a step.

`model` is the trained model: a frozen base with the adapters, and its forward pass.
"""
