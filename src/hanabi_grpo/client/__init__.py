"""Talking to rollout servers: requests and their limits, several servers, a server of one's own,
who sits where.
"""
