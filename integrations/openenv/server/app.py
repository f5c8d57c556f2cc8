"""The app that openenv.yaml names: player_0 of Hanabi on the laptop board, beside iggi."""

import uvicorn

from hanabi_grpo.envs.interop.openenv_server import openenv_app
from hanabi_grpo.envs.registry import setup

_GAME = setup("hanabi", {"preset": "laptop"})
app = openenv_app(_GAME, 0, {1: _GAME.environment.policies["iggi"]()})


def main() -> None:
    """Serve it."""
    uvicorn.run(app, host="0.0.0.0", port=8100)


if __name__ == "__main__":
    main()
