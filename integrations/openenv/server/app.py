"""The app that openenv.yaml names: player_0 of Hanabi on the laptop board, with iggi as partner.

Without HANABI_API_KEY, it answers only programs on this machine, however it is served. With a key,
it answers clients that have the key in the address: http://key:KEY@host:8100.
"""

import os

import uvicorn

from hanabi_grpo.envs.interop.openenv_server import openenv_app
from hanabi_grpo.envs.registry import setup
from hanabi_grpo.server.openenv_door import behind_door, check_host, uvicorn_config

PORT = 8100
SEAT = 0
PARTNER = 1
SESSIONS = 64

_HOST = os.environ.get("HANABI_HOST", "127.0.0.1")
_API_KEY = os.environ.get("HANABI_API_KEY")
_GAME = setup("hanabi", {"preset": "laptop"})
_SCRIPT = _GAME.environment.policies["iggi"]()
app = behind_door(
    openenv_app(_GAME, SEAT, {PARTNER: _SCRIPT}, sessions=SESSIONS), api_key=_API_KEY, host=_HOST
)


def main() -> None:
    """Serve it."""
    check_host("HANABI_HOST", _HOST, _API_KEY)
    config = uvicorn_config(app, host=_HOST, port=PORT, sessions=SESSIONS)
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
