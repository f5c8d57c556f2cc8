"""Advantages: how much better a turn was than its alternatives, for one player at a time.

`HANABI_ADVANTAGE` names an estimator of `estimators`; formula and source stand there:

| name | credit | compared with |
|---|---|---|
| `grpo` | the whole game's return | its group: mean, standard deviation |
| `turn` | the team's game, and the turn's own penalties | its group: mean, standard deviation |
| `rloo` | the whole game's return | the other games of its group: mean |
| `return_to_go` | what came from the turn on | all turns of the step: mean |
| `reinforce_pp` | the whole game's return | all turns of the step: mean, standard deviation |
| `baseline` | the whole game's return | earlier steps: moving mean |

A group's games are of the same deal, so its baseline is about play and not about luck. `step` applies an estimator to a
step or to recorded games and says what has equal weight in the loss.

GAE with a value head is left out. It needs a critic for each player, with an optimizer and a state in checkpoints of
its own, and its error is a bias where λ < 1; games have few turns and a group has many games of the same deal, so a
mean over games is at hand. GAE with γ = λ = 1 and a mean as its value is `return_to_go`.
"""
