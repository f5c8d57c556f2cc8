"""OpenEnv servers of ours for the length of a block: real ones, on a free port."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn

from hanabi_grpo.server.main import listen
from hanabi_grpo.server.openenv_door import behind_door, uvicorn_config


@contextlib.contextmanager
def serving(app: Any, *, api_key: str | None = None, **options: Any) -> Iterator[str]:
    """Serve an app of `openenv_app` as `hanabi-grpo openenv` does.

    Args:
        app: The app.
        api_key: The key that every request needs.
        **options: Of uvicorn, in the place of the command's.

    Yields:
        Its address.
    """
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    guarded = behind_door(app, api_key=api_key, host="127.0.0.1")
    # Without a configuration of uvicorn's own its log is pytest's.
    config = uvicorn_config(
        guarded, host="127.0.0.1", port=port, sessions=app.sessions, log_config=None
    )
    for name, value in options.items():
        setattr(config, name, value)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
