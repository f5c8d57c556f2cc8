"""The app that openenv.yaml names: player_0 of Hanabi on the laptop board, beside iggi."""

import uvicorn

from hanabi_grpo.envs.interop.openenv_server import openenv_app
from hanabi_grpo.envs.registry import setup

PORT = 8100
SEAT = 0
PARTNER = 1

_GAME = setup("hanabi", {"preset": "laptop"})
_SCRIPT = _GAME.environment.policies["iggi"]()
app = openenv_app(_GAME, SEAT, {PARTNER: _SCRIPT})


def main() -> None:
    """Serve it."""
    uvicorn.run(app, host="0.0.0.0", port=PORT)


if __name__ == "__main__":
    main()
