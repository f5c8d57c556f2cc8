"""Teams that answer problems together: vote, debate, summary, pioneer and observer, revise.

docs/teams.md describes them.
"""
