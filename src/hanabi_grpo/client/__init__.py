"""Talking to rollout servers.

`rollout_client.py` has the routes of one server, `calls.py` a single bounded call, `answers.py` the
examination of what came back; `fleet.py` is about several servers, `own_server.py` about one that a
command starts for itself. `lineups.py` turns what people type into seats of a server.
"""
