"""`hanabi-grpo play`: a person in one seat of any environment, with scripts or models in the others."""

import asyncio
import contextlib
import io
import secrets
import shlex
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hanabi_grpo.client.lineups import RemotePolicy, parse_line_up, short_name
from hanabi_grpo.commands.console import make_console, sayer
from hanabi_grpo.commands.interruption import INTERRUPTED
from hanabi_grpo.commands.person import Person, PlayerLeftError
from hanabi_grpo.commands.playing import (
    Env,
    OwnServer,
    Players,
    Preset,
    Temperature,
    chosen_temperature,
    game_setup,
    serving,
)
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.texts import visible
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.loop import Player, make_script, play_episode
from hanabi_grpo.runs.recordings import write_recordings
from hanabi_grpo.settings import load_settings
from hanabi_grpo.settings.refs import HUMAN, Role, ScriptRef
from hanabi_grpo.types import player_name

SUITE = "human"


def play(
    line_up: Annotated[
        str | None,
        typer.Argument(
            help="One word for every partner (iggi), or one for every seat with human in yours (served,human). A word "
            "is a script, served, player_1@latest, base, or a checkpoint's folder; random when left out.",
            show_default=False,
        ),
    ] = None,
    env: Env = None,
    preset: Preset = None,
    players: Players = None,
    seed: Annotated[int | None, typer.Option(help="Names the start; a random one when left out.")] = None,
    temperature: Temperature = None,
    out: Annotated[Path | None, typer.Option(help="New file of the game; in outputs/played/ when left out.")] = None,
    own_server: OwnServer = False,
) -> None:
    """Play a game yourself and see what a model sees; l at the prompt lists legal actions, q leaves.

    The game is written when it is over. Exits with 130 when you leave before.

    Environment: HANABI_ENV, HANABI_PRESET, HANABI_PLAYERS; with models VLLM_SERVER_PORT, TEMPERATURE and the others of
    evaluate.
    """
    console, loaded = make_console(), load_settings()
    if sys.stdin is None:
        raise SettingsError("hanabi-grpo play: there is no standard input to read replies from.")
    words = [word.strip() for word in (line_up or "random").split(",")]
    game = game_setup(loaded.settings, preset, players, env=env)
    count = game.spec.num_players
    if len(words) == 1 and words != [HUMAN]:
        words = [HUMAN, *words * (count - 1)]
    if words.count(HUMAN) != 1 or len(words) != count:
        raise SettingsError(
            f"line-up {line_up!r} for {count} players: give one word for every partner, or one for every seat with "
            f"{HUMAN} in yours, e.g. {HUMAN},random."
        )
    team = parse_line_up(",".join(words), count, env=game.env, human=True)
    number = secrets.randbelow(2**31) if seed is None else seed
    heat = chosen_temperature(loaded.settings, temperature)
    if not 0 <= number < 2**63:
        raise SettingsError(f"--seed {number}: a start's seed is a whole number from 0 to 2**63 - 1.")
    target = out or Path("outputs/played") / f"{datetime.now():%Y%m%d-%H%M%S}-{game.spec.preset}-{number}.jsonl"
    if target.exists():
        raise SettingsError(f"--out {target}: exists already; choose another name or remove it.")
    print_lines = sayer(console)

    def say(text: str) -> None:
        print_lines(visible(text))

    with contextlib.ExitStack() as stack:
        seats = team.words
        if team.needs_server:
            client, served = stack.enter_context(serving(loaded, game, heat, console, own=own_server))
            seats = tuple(
                str(ref) if isinstance(ref, ScriptRef) or ref is Role.HUMAN else served.resolver.seat(ref, player)
                for player, ref in enumerate(team.refs)
            )
        table: list[Player] = []
        for ref, seat in zip(team.refs, seats, strict=True):
            if ref is Role.HUMAN:
                table.append(Person(say=say, ask=_asker(console)))
            elif isinstance(ref, ScriptRef):
                table.append(make_script(game, seat))
            else:
                limit = loaded.settings.max_completion_length
                table.append(RemotePolicy(client=client, seat_word=seat, max_tokens=limit, temperature=heat))
        others = [f"{player_name(place)} {short_name(word)}" for place, word in enumerate(words) if word != HUMAN]
        say(f"{game.env}, {game.spec.preset}, start {SUITE}/{number}; with you play {', '.join(others) or 'nobody'}.")
        # `asyncio.run` would take Ctrl-C for itself, and reading a line would not see it.
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            try:
                episode = loop.run_until_complete(play_episode(game.task(SUITE, number), table, names=seats))
            except (PlayerLeftError, KeyboardInterrupt):
                say("\nYou left; the game is not kept.")
                raise typer.Exit(INTERRUPTED) from None
    figures = {**episode.result, "your return": episode.reward(words.index(HUMAN))}
    say(f"\nThe game is over ({episode.status}): {', '.join(f'{name} {value:g}' for name, value in figures.items())}")
    write_recordings(target, [Recording(episode=episode, source=target.stem)])
    say(f"wrote {target}\nwatch it: hanabi-grpo view {shlex.quote(str(target))}")


def _asker(console: Console) -> Callable[[str], str]:
    is_terminal = sys.stdin.isatty()
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if is_terminal:
        # Loading it lets `input` edit lines and remember them.
        import readline  # noqa: F401

    def ask(prompt: str) -> str:
        line = input(prompt)
        if not is_terminal:
            console.print(line, markup=False)
        return line

    return ask
