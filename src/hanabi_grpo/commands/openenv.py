"""`hanabi-grpo openenv`: one seat of any environment for clients of OpenEnv."""

from typing import Annotated

import typer

from hanabi_grpo.commands.console import make_console, sayer
from hanabi_grpo.commands.playing import Env, Players, Preset, choose
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.messages import check_script
from hanabi_grpo.types import player_names


def openenv(
    env: Env = None,
    preset: Preset = None,
    players: Players = None,
    seat: Annotated[str, typer.Option(help="The seat that clients play.")] = "player_0",
    partner: Annotated[
        str, typer.Option(help="A script for every other seat, or one each: iggi,random.")
    ] = "random",
    host: Annotated[
        str, typer.Option(help="Address; one that other machines reach needs HANABI_API_KEY.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8100,
    sessions: Annotated[int, typer.Option(min=1, max=4096, help="Sessions at once.")] = 64,
    idle_seconds: Annotated[
        int, typer.Option(min=1, help="After which a session that asks nothing is ended.")
    ] = 1800,
    split: Annotated[
        str,
        typer.Option(
            help="Suites that a reset may name, the first where it names none; its seed is the "
            "number of a task in it. Held-out suites only if you name them: openenv,test."
        ),
    ] = "openenv,train",
) -> None:
    """Serve one seat of an environment to clients of OpenEnv; scripts play the others.

    Needs the extra openenv. Without HANABI_API_KEY it answers programs of this machine; with it,
    whoever has the key, in the client's address: http://key:KEY@host:8100.

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
            f"--partner {partner}: give one script, or one for each of {len(others)} other seats."
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
    sayer(make_console())(
        f"OpenEnv: {seat} of {game.env} {game.spec.preset}, others {partner}, on "
        f"http://{host}:{port}, {sessions} sessions at once, for "
        + ("clients with the key" if api_key else "programs of this machine")
    )
    guarded = behind_door(app, api_key=api_key, host=host)
    config = uvicorn_config(guarded, host=host, port=port, sessions=sessions)
    uvicorn.Server(config).run()
