"""`hanabi-grpo openenv`: one seat of any environment for clients of OpenEnv."""

import socket
from typing import Annotated

import typer

from hanabi_grpo.commands.console import make_console, sayer
from hanabi_grpo.commands.playing import Env, Players, Preset, choose
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.messages import check_script
from hanabi_grpo.server.main import listen
from hanabi_grpo.types import player_names


def openenv(
    env: Env = None,
    preset: Preset = None,
    players: Players = None,
    seat: Annotated[str, typer.Option(help="Seat that clients play.")] = "player_0",
    partner: Annotated[
        str, typer.Option(help="Script for all other seats, or one per seat: iggi,random.")
    ] = "random",
    host: Annotated[
        str, typer.Option(help="Address; one that other machines reach requires HANABI_API_KEY.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8100,
    sessions: Annotated[int, typer.Option(min=1, max=4096, help="Concurrent sessions.")] = 64,
    idle_seconds: Annotated[
        int, typer.Option(min=1, help="Seconds after which an idle session is closed.")
    ] = 1800,
    split: Annotated[
        str,
        typer.Option(
            help="Suites that a reset may name; the first is the default. A reset's seed is the "
            "number of a task in the suite. Held-out suites must be named here: openenv,test."
        ),
    ] = "openenv,train",
) -> None:
    """Serve one seat of an environment to OpenEnv clients; scripts play the others.

    Requires the extra openenv. Without HANABI_API_KEY, only programs on this machine are served.
    With it, clients put the key into the address: http://key:KEY@host:8100.

    Environment: HANABI_API_KEY, HANABI_ENV, HANABI_PRESET, HANABI_PLAYERS and the fields of the
    environment's config.
    """
    chosen = choose(env, preset, players, None)
    game = chosen.game
    names = player_names(game.spec.num_players)
    if seat not in names:
        raise SettingsError(f"--seat {seat}: {game.env} {game.spec.preset} has {', '.join(names)}.")
    others = [player for player, name in enumerate(names) if name != seat]
    scripts = [script.strip() for script in partner.split(",")]
    if len(scripts) == 1:
        scripts = scripts * len(others)
    if len(scripts) != len(others):
        raise SettingsError(
            f"--partner {partner}: give one script, or one for each of the {len(others)} other "
            "seats."
        )
    for script in scripts:
        check_script(game, script)
    try:
        from hanabi_grpo.envs.interop.openenv_server import openenv_app
        from hanabi_grpo.server.openenv_door import behind_door, check_host, uvicorn_config
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"hanabi-grpo openenv: {error}; install it: uv pip install 'hanabi-grpo[openenv]'."
        ) from error
    import uvicorn

    secret = chosen.loaded.settings.api_key
    api_key = secret.get_secret_value() if secret else None
    check_host("--host", host, api_key)
    policies = {}
    for player, script in zip(others, scripts, strict=True):
        make_policy = game.environment.policies[script]
        policies[player] = make_policy()
    app = openenv_app(
        game,
        names.index(seat),
        policies,
        sessions=sessions,
        idle_seconds=idle_seconds,
        splits=[name.strip() for name in split.split(",")],
    )
    listener = _listen(host, port)
    sayer(make_console())(
        f"OpenEnv: {seat} of {game.env} {game.spec.preset}, others {partner}, on "
        f"http://{host}:{port}, up to {sessions} concurrent sessions, for "
        + ("clients with the key" if api_key else "programs on this machine")
    )
    guarded = behind_door(app, api_key=api_key, host=host)
    config = uvicorn_config(guarded, host=host, port=port, sessions=sessions)
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    uvicorn would end the process itself, with an exit code of its own.

    Raises:
        ServerError: The address cannot be used.
    """
    try:
        return listen(host, port)
    except ServerError as error:
        reason = getattr(error.__cause__, "strerror", None) or error
        raise ServerError(
            f"--host {host} --port {port}: cannot listen there ({reason}). Stop the process on "
            "that port, or choose another --port."
        ) from error
