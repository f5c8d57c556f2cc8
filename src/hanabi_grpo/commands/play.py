"""`hanabi-grpo play`: a person in one seat of any environment.

Scripts or models have the other seats.
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
from typing import Annotated, Any

import typer

from hanabi_grpo.agents.person import PersonPlayer
from hanabi_grpo.agents.remote_server import RemotePlayer
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.client.lineups import parse_lineup, short_name
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.commands.console import INTERRUPTED, make_console, sayer
from hanabi_grpo.commands.playing import Env, OwnServer, Players, Preset, Temperature, choose
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.config import StateConfig
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.loop import Player, play_episode
from hanabi_grpo.rollout.recordings import write_recordings
from hanabi_grpo.settings.refs import HUMAN, Role, ScriptRef
from hanabi_grpo.texts import visible
from hanabi_grpo.types import Episode, player_name

SUITE = "human"
_MAX_RANDOM_SEED = 2**31


def play(
    lineup: Annotated[
        str | None,
        typer.Argument(
            help="One policy for every partner (iggi), or one for every seat with human in yours "
            "(served,human). A policy is a script, served, player_1@latest, base, or the folder of "
            "a checkpoint.",
            show_default="random",
        ),
    ] = None,
    env: Env = None,
    preset: Preset = None,
    players: Players = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**63 - 1, help="Number of the task.", show_default="random"),
    ] = None,
    temperature: Temperature = None,
    out: Annotated[
        Path | None, typer.Option(help="New file of the game.", show_default="in outputs/played/")
    ] = None,
    own_server: OwnServer = False,
) -> None:
    """Play a game yourself and see what a model sees.

    At the prompt, l lists legal actions and q quits. The game is written when it is over. Exits
    with 130 if you quit before.

    Environment: HANABI_ENV, HANABI_PRESET, HANABI_PLAYERS; with models VLLM_SERVER_PORT,
    TEMPERATURE and the others of evaluate.
    """
    if sys.stdin is None:
        raise SettingsError("hanabi-grpo play: there is no standard input to read replies from.")
    console = make_console()
    chosen = choose(env, preset, players, temperature)
    game = chosen.game
    specs = _specs_of_seats(lineup, game.spec.num_players)
    team = parse_lineup(",".join(specs), game.spec.num_players, env=game.env, human=True)
    if not team.needs_server and isinstance(game.config, StateConfig):
        # No model plays, so the prompts may be those for people.
        game = replace(game, config=game.config.model_copy(update={"style": "full"}))
    number = secrets.randbelow(_MAX_RANDOM_SEED) if seed is None else seed
    if out is None:
        name = f"{datetime.now():%Y%m%d-%H%M%S}-{game.spec.preset}-{number}.jsonl"
        target = Path("outputs/played") / name
    else:
        target = out
    if target.exists():
        raise SettingsError(f"--out {target}: exists already; choose another name or remove it.")
    _prepare_input()
    print_lines = sayer(console)

    def say(text: str) -> None:
        print_lines(visible(text))

    with chosen.serving(console, needed=team.needs_server, own=own_server) as served:
        seat_names = list(team.specs)
        seated: list[Player] = []
        for seat, ref in enumerate(team.refs):
            if ref is Role.HUMAN:
                seated.append(PersonPlayer(say=say, ask=input))
            elif isinstance(ref, ScriptRef):
                seated.append(make_script(game, seat_names[seat]))
            else:
                assert served is not None
                assert isinstance(served.client, RolloutClient)
                seat_names[seat] = served.resolver.seat(ref, seat)
                model = RemotePlayer(
                    client=served.client,
                    name=seat_names[seat],
                    max_tokens=served.max_tokens,
                    temperature=served.temperature,
                )
                seated.append(model)
        others = []
        for seat, spec in enumerate(specs):
            if spec != HUMAN:
                others.append(f"{player_name(seat)} {short_name(spec)}")
        say(
            f"{game.env}, {game.spec.preset}, start {SUITE}/{number}; with you play "
            f"{', '.join(others) or 'nobody'}."
        )
        try:
            episode = _play(game, number, seated, tuple(seat_names))
        except (EOFError, KeyboardInterrupt):
            say("\nYou left; the game is not kept.")
            raise typer.Exit(INTERRUPTED) from None
    figures = {**episode.result, "your return": episode.reward(specs.index(HUMAN))}
    listed = ", ".join(f"{name} {value:g}" for name, value in figures.items())
    say(f"\nThe game is over ({episode.status}): {listed}")
    write_recordings(target, [Recording(episode=episode, source=target.stem)])
    say(f"wrote {target}\nwatch it: hanabi-grpo view {shlex.quote(str(target))}")


def _specs_of_seats(lineup: str | None, num_players: int) -> list[str]:
    """Return a policy spec for every seat, among them one for the person.

    Raises:
        SettingsError: The lineup has another number of seats, or no seat or several for the person.
    """
    specs = [spec.strip() for spec in (lineup or "random").split(",")]
    if len(specs) == 1 and specs != [HUMAN]:
        partner = specs[0]
        specs = [HUMAN] + [partner] * (num_players - 1)
    if specs.count(HUMAN) != 1 or len(specs) != num_players:
        raise SettingsError(
            f"lineup {lineup!r} for {num_players} players: give one policy for every partner, or "
            f"one for every seat with {HUMAN} in yours, e.g. {HUMAN},random."
        )
    return specs


def _prepare_input() -> None:
    """Accept any bytes from standard input, and let a person edit the line."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if sys.stdin.isatty():
        # Loading it lets `input` edit lines and remember them.
        import readline  # noqa: F401


def _play(
    game: Setup[Any], number: int, players: list[Player], seat_names: tuple[str, ...]
) -> Episode:
    """Play one game.

    Args:
        game: What is played.
        number: Number of the task.
        players: One per seat.
        seat_names: Their names in the record.
    """
    # `asyncio.run` would take Ctrl-C for itself, and reading a line would not see it.
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        task = game.task(SUITE, number)
        return loop.run_until_complete(play_episode(task, players, names=seat_names))
