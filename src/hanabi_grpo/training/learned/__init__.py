"""What is learned beside the model, for estimators that need it (`Estimator.needs`).

`value_learner` shows a step's episodes to what learns, and is all that the training loop sees.
`features` makes of each turn what the model says of it; `heads` are small networks with optimizers
of their own. `critic` learns what a state is worth (`ippo`, `mappo`), `credit` whose doing a return
was (`vdn`, `qmix`).

All features are detached, so what learns here needs no part in the loss, in DeepSpeed or in a
weight sync.
"""
