"""The trainer: GRPO with one LoRA adapter per player, on ms-swift, DeepSpeed and PEFT.

`loop` is the page to begin with: the whole algorithm. Each of its lines is a method of
`run.TrainingRun`, which is made of parts that stand alone.

- Before the loop: `main` is the process, `pipeline` tells ms-swift of our settings, model and data,
  `trainer` is the seam between ms-swift and the loop.
- Playing: `tasks` names a step's tasks, `link` talks to a rollout server (`fleet_link` to several),
  `partner_seats` seats partners, which `matchmaking` draws by the run's scores, `overlap` plays a
  step ahead, `resampling` replaces zero-variance groups, `validation` and `phases` say how versions
  do and who is trained.
- Learning: `seats` is the seat assignment of a step and `groups` its episodes; `batching` makes
  `micro_batch`es with the `advantages` of `estimators` (and of `learned` critics); `policy`
  computes logprobs, `mismatch` compares them with the sampler's (`check_sample` is what it looks
  at, `evidence` its statistics), `loss` is what is optimized, `updates` orders
  the optimizer updates and `shared_passes` their passes, `isolation` keeps players from moving each
  other.
- Remembering: `state` is what a step hands on, `checkpoint` writes and restores, `record` and
  `metrics` count.

`model` is what is trained: a frozen base with the adapters, and its forward pass.
"""
