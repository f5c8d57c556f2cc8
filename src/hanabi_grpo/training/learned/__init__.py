"""What is learned beside the model, for estimators that need it (`Estimator.needs`).

- `value_learner`: the object that the training loop holds. It shows each step's episodes to the
  networks below and returns what the estimator needs.
- `features`: what the networks see of a turn, computed by the model.
- `heads`: small networks with optimizers of their own, and the interface that the next two share.
- `critic`: the value of a state, for `ippo` and `mappo`.
- `credit`: each player's share of the team's return, for `vdn` and `qmix`.

All features are detached from the model, so nothing here takes part in the loss, in DeepSpeed or in
a weight sync.
"""
