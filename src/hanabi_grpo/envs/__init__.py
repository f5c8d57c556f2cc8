"""What is played: environments behind one interface. No torch and no HTTP here.

`base` is the interface: a new environment is one file that implements `Game` and `Environment`, or
a folder such as `hanabi/`. `registry` names environments, `referee` makes replies into rewards,
`conformance` checks any environment and `wrappers` makes it one of PettingZoo or Gymnasium.
"""
