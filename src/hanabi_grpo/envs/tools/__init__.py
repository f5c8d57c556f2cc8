"""Tools that a player may call during its turn: what they are, how calls are written, limits.

docs/environments.md shows how an environment offers its own.
"""
