"""Networks that are learned besides the model, for estimators that need them (`Estimator.needs`).

- `value_learner`: the training loop's interface. It passes each step's episodes to the networks
  below and returns what the estimator needs.
- `features`: the features of a turn, computed by the model.
- `heads`: small networks with their own optimizers, and the interface that the next two share.
- `critic`: the value of a state, for `ippo` and `mappo`.
- `credit`: each player's share of the team's return, for `vdn` and `qmix`.

All features are detached from the model, so nothing here takes part in the loss, in DeepSpeed or in
a weight sync.
"""
