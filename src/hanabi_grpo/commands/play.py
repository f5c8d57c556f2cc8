"""`hanabi-grpo play`: a person in one seat of any environment, with scripts or models in the
others.
"""

import asyncio
import contextlib
import io
import secrets
import shlex
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.agents.person import PersonPlayer
from hanabi_grpo.agents.remote_server import RemotePlayer
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.client.lineups import parse_lineup, short_name
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.commands.console import INTERRUPTED, make_console, sayer
from hanabi_grpo.commands.playing import Env, OwnServer, Players, Preset, Temperature, choose
from hanabi_grpo.envs.config import StateConfig
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.texts import visible
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.loop import Player, play_episode
from hanabi_grpo.rollout.recordings import write_recordings
from hanabi_grpo.settings.refs import HUMAN, Role, ScriptRef
from hanabi_grpo.types import player_name

SUITE = "human"


def play(
    lineup: Annotated[
        str | None,
        typer.Argument(
            help="One word for every partner (iggi), or one for every seat with human in yours "
            "(served,human). A word "
            "is a script, served, player_1@latest, base, or a checkpoint's folder; random when "
            "left out.",
            show_default=False,
        ),
    ] = None,
    env: Env = None,
    preset: Preset = None,
    players: Players = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Names the start; else a random one.")
    ] = None,
    temperature: Temperature = None,
    out: Annotated[
        Path | None, typer.Option(help="New file of the game; in outputs/played/ when left out.")
    ] = None,
    own_server: OwnServer = False,
) -> None:
    """Play a game yourself and see what a model sees; l at the prompt lists legal actions, q
    leaves.

    The game is written when it is over. Exits with 130 when you leave before.

    Environment: HANABI_ENV, HANABI_PRESET, HANABI_PLAYERS; with models VLLM_SERVER_PORT,
    TEMPERATURE and the others of
    evaluate.
    """
    if sys.stdin is None:
        raise SettingsError("hanabi-grpo play: there is no standard input to read replies from.")
    console, chosen = make_console(), choose(env, preset, players, temperature)
    game, words = chosen.game, [word.strip() for word in (lineup or "random").split(",")]
    count = game.spec.num_players
    if len(words) == 1 and words != [HUMAN]:
        words = [HUMAN, *words * (count - 1)]
    if words.count(HUMAN) != 1 or len(words) != count:
        raise SettingsError(
            f"lineup {lineup!r} for {count} players: give one word for every partner, or one "
            "for every seat with "
            f"{HUMAN} in yours, e.g. {HUMAN},random."
        )
    team = parse_lineup(",".join(words), count, env=game.env, human=True)
    if not team.needs_server and isinstance(game.config, StateConfig):
        # No model plays, so the words may be those for people.
        game = replace(game, config=game.config.model_copy(update={"style": "full"}))
    number = secrets.randbelow(2**31) if seed is None else seed
    target = (
        out
        or Path("outputs/played")
        / f"{datetime.now():%Y%m%d-%H%M%S}-{game.spec.preset}-{number}.jsonl"
    )
    if target.exists():
        raise SettingsError(f"--out {target}: exists already; choose another name or remove it.")
    print_lines = sayer(console)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if sys.stdin.isatty():
        # Loading it lets `input` edit lines and remember them.
        import readline  # noqa: F401

    def say(text: str) -> None:
        print_lines(visible(text))

    with chosen.serving(console, needed=team.needs_server, own=own_server) as served:
        seats, table = list(team.specs), list[Player]()
        for place, ref in enumerate(team.refs):
            if ref is Role.HUMAN:
                table.append(PersonPlayer(say=say, ask=input))
            elif isinstance(ref, ScriptRef):
                table.append(make_script(game, seats[place]))
            else:
                assert served is not None and isinstance(served.client, RolloutClient)
                seats[place] = served.resolver.seat(ref, place)
                limit, heat = served.max_tokens, served.temperature
                player = RemotePlayer(
                    client=served.client, name=seats[place], max_tokens=limit, temperature=heat
                )
                table.append(player)
        others = [
            f"{player_name(place)} {short_name(word)}"
            for place, word in enumerate(words)
            if word != HUMAN
        ]
        say(
            f"{game.env}, {game.spec.preset}, start {SUITE}/{number}; with you play "
            f"{', '.join(others) or 'nobody'}."
        )
        # `asyncio.run` would take Ctrl-C for itself, and reading a line would not see it.
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            try:
                episode = loop.run_until_complete(
                    play_episode(game.task(SUITE, number), table, names=tuple(seats))
                )
            except (EOFError, KeyboardInterrupt):
                say("\nYou left; the game is not kept.")
                raise typer.Exit(INTERRUPTED) from None
    figures = {**episode.result, "your return": episode.reward(words.index(HUMAN))}
    say(
        f"\nThe game is over ({episode.status}): "
        f"{', '.join(f'{name} {value:g}' for name, value in figures.items())}"
    )
    write_recordings(target, [Recording(episode=episode, source=target.stem)])
    say(f"wrote {target}\nwatch it: hanabi-grpo view {shlex.quote(str(target))}")
