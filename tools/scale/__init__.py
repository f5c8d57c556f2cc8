"""What a step takes with many rollout servers: real parts measured, the rest simulated.

`docs/scale.md` says which is which.
"""
