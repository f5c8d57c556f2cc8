"""Talking to rollout servers: requests and their limits, sessions, several servers, a server of one's own."""
