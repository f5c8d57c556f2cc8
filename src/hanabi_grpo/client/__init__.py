"""Clients of rollout servers.

`rollout_client.py` has the routes of one server, `calls.py` a single bounded call, and `answers.py`
the validation of answers. `fleet.py` handles several servers, `own_server.py` a server that a
command starts for itself. `lineups.py` turns seat assignments from the command line into seats of a
server.
"""
