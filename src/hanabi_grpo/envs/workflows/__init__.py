"""Teams that answer problems together: vote, debate, summary, pioneer and observer.

docs/teams.md describes them.
"""
