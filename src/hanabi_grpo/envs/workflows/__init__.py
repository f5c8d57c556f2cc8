"""Workflows in which a team answers problems: vote, debate, summary, pioneer-observer, revise.

docs/teams.md describes them.
"""
