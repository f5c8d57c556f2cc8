"""What is played: environments behind one interface. No torch and no HTTP here.

- `base`: the interface. A new environment is one file that implements `Game` and `Environment`; `kuhn` is an example.
- `registry`: environments by name, those of this package and those that installed packages register.
- `replies`: helpers that read an answer out of whatever a model wrote.
- `referee`: one episode from replies to rewards; says what a bad reply means.
- `conformance`: checks that any environment must pass.
- `aec`, `gym`: any environment as a PettingZoo or Gymnasium environment.
- `kuhn`, `hanabi/`: the environments of this package.
"""
