"""Agents: everything that can fill a seat. One file per kind.

| file | agent | used by |
|---|---|---|
| `script.py` | a script of the environment | server, evaluation, `hanabi-grpo play` |
| `served_model.py` | the server's own model, with or without an adapter | server |
| `url_model.py` | another model, behind an OpenAI-compatible URL | server |
| `remote_server.py` | a model of a rollout server, in a game played here | `hanabi-grpo play` |
| `person.py` | a person at the terminal | `hanabi-grpo play` |

Each kind has two classes: a `Player`, shared by any number of games, and the `PlayerSeat` that it
makes for one game, with that game's private state. Both are the protocols of `rollout.loop`, whose
`play_episode` depends on nothing else. To add a kind, add a file with these two classes, and
a case where seats are assigned: `server.seats.Tables` for games on the server, `commands.play` for
games in this process.

Shared by several kinds: `conversation.py` (a private conversation as token ids), `memory.py` (the
past turns that a player still sees), `url_calls.py`, `url_client.py` and `url_transcript.py` (calls
to a URL, and their record). `judge.py` makes such calls too, but scores games instead of playing.
"""
