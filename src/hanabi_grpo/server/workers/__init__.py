"""Episodes in processes of their own, for environments and scripts that may block.

The server's event loop must go on whatever an environment does: a call that computes for seconds,
waits for another machine or never returns. Such episodes are played by worker processes. A worker
runs the same loop as everybody else (`rollout.loop.play_episode`) with the environment and the
scripts; only the seats of models are asked for in the server, by the text of their message.

- `messages` are what the two sides send each other, `process` is the worker, `pool` the server's
  side.
- Workers are forked from a process that has imported what they need (`fork_server`; `forking` is
  the server's side of it), so that a new one costs little.

A call that never returns is ended with its worker. The other episodes of that worker move to
another one, where they are played again from the replies that were already sampled: an episode is
determined by its task and its replies, so nothing is sampled twice.
"""
