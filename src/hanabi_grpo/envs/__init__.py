"""Environments behind one interface. Nothing here uses torch or HTTP.

`base` defines the interface: a new environment is one file that implements `Game` and
`Environment`, or a folder such as `hanabi/`. `registry` finds environments by name, `referee` turns
replies into rewards, `conformance` checks any environment, and `wrappers` exposes it through the
PettingZoo or Gymnasium API.
"""
