"""How long a step takes with many rollout servers: real parts are measured, the rest is simulated.

`docs/scale.md` lists which is which.
"""
