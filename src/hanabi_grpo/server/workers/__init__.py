"""Episodes in worker processes, for environments and scripts that may block.

The server's event loop must keep running even if a call of an environment computes for seconds,
waits for another machine or never returns. Such episodes are played by worker processes. A worker
runs the usual loop (`rollout.loop.play_episode`) with the environment and the scripts; only the
replies of models come from the server, which gets the text of their messages.

- `messages` defines the messages between the two sides, `process` is the worker, `pool` the
  server's side. `current_call` is memory in which the server reads whose code a worker runs.
- Workers are forked from a process with preloaded modules (`fork_server`; `forking` is the server's
  side of it), so that a new worker starts quickly.

A call that never returns is ended by killing its worker. The other episodes of that worker move to
another one, where they are replayed from the replies that were already sampled: an episode is
determined by its task and its replies, so nothing is sampled twice.
"""
