"""Clients of rollout servers.

`rollout_client.py` has the routes of one server, `calls.py` a single bounded call, `answers.py` the
validation of answers; `fleet.py` is about several servers, `own_server.py` about one that a command
starts for itself. `lineups.py` turns the seat assignments of the command line into seats of a
server.
"""
