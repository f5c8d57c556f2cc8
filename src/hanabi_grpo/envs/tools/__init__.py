"""Tools that a player may call during its turn: definitions, call syntax, and limits.

docs/environments.md shows how an environment offers its own tools.
"""
