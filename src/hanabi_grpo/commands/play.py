"""`hanabi-grpo play`: a person in one seat, with scripts or models as partners."""

import asyncio
import contextlib
import io
import secrets
import shlex
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hanabi_grpo.client.remote_seat import RemotePolicy
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.commands.console import make_console
from hanabi_grpo.commands.interruption import INTERRUPTED
from hanabi_grpo.commands.play_choice import read_game
from hanabi_grpo.commands.playing import OwnServer, chosen_temperature, serving
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.human.ending import end_screen
from hanabi_grpo.envs.hanabi.human.screens import show
from hanabi_grpo.envs.hanabi.human.seat import HumanPolicy, PlayerLeftError
from hanabi_grpo.envs.hanabi.prompts import ObservationStyle
from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.rollout.lineups import read_player_ref, short_name
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.rollout.players import Player, make_script
from hanabi_grpo.runs.recordings import write_recordings
from hanabi_grpo.settings import load_settings
from hanabi_grpo.settings.refs import HUMAN
from hanabi_grpo.types import player_name

SUITE = "human"


def play(
    partners: Annotated[
        str | None,
        typer.Argument(
            help="One word for every partner (iggi), one for each (iggi,piers), or with human in your seat one for "
            "every player (served,human). A word is a script, served, player_1@latest, base, or a checkpoint's folder; "
            "iggi when left out.",
            show_default=False,
        ),
    ] = None,
    seat: Annotated[str | None, typer.Option(help="Your seat; player_0 when left out.")] = None,
    preset: Annotated[str | None, typer.Option(help="Board; full when left out, with models as in training.")] = None,
    players: Annotated[int | None, typer.Option(help="Players, you included.")] = None,
    seed: Annotated[int | None, typer.Option(help="Names the deal; a random one when left out.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of models, 0 for greedy; else TEMPERATURE.")] = None,
    out: Annotated[Path | None, typer.Option(help="New file of the game; in outputs/played/ when left out.")] = None,
    own_server: OwnServer = False,
) -> None:
    """Play a game yourself, with scripts or models as partners; ? at the prompt lists your moves.

    The game is written when it is over. Exits with 130 when you leave before.

    Environment: with models, HANABI_PRESET, VLLM_SERVER_PORT, TEMPERATURE and the others of evaluate.
    """
    console, loaded = make_console(), load_settings()
    if sys.stdin is None:
        raise SettingsError("hanabi-grpo play: there is no standard input to read moves from.")
    words, config = read_game(partners or "iggi", seat, preset, players, loaded.settings)
    number = secrets.randbelow(2**31) if seed is None else seed
    heat = chosen_temperature(loaded.settings, temperature)
    if not 0 <= number < 2**63:
        raise SettingsError(f"--seed {number}: a deal's seed is a whole number from 0 to 2**63 - 1.")
    target = out or Path("outputs/played") / f"{datetime.now():%Y%m%d-%H%M%S}-{config.preset}-{number}.jsonl"
    if target.exists():
        raise SettingsError(f"--out {target}: exists already; choose another name or remove it.")
    with contextlib.ExitStack() as stack:
        seats = words
        partner: Callable[[str], Player] = partial(make_script, Setup(HANABI, config))
        if any(word not in (HUMAN, *HANABI.policies) for word in words):
            client, served = stack.enter_context(serving(loaded, Setup(HANABI, config), heat, console, own=own_server))
            seats = tuple(
                word
                if word in (HUMAN, *HANABI.policies)
                else served.resolver.seat(read_player_ref(word, ",".join(words)), player)
                for player, word in enumerate(words)
            )
            partner = partial(_partner, client, served, config)
        _play(console, words, seats, config, number, target, partner)


def _play(
    console: Console,
    words: tuple[str, ...],
    seats: tuple[str, ...],
    config: EnvConfig,
    seed: int,
    out: Path,
    partner: Callable[[str], Player],
) -> None:
    own = seats.index(HUMAN)
    labels = [
        "you" if player == own else visible(f"{player_name(player)} {short_name(word)}")
        for player, word in enumerate(words)
    ]
    spec = config.spec()
    others = ", ".join(label for label in labels if label != "you")
    console.print(
        f"{spec.preset}, {spec.num_players} players, deal {SUITE}/{seed}: {spec.num_colors} colours, ranks 1 to "
        f"{spec.num_ranks}, at most {spec.reachable_max} points. You are {player_name(own)}; with you play {others}.",
        markup=False,
    )
    policies = [_policy(console, word, config, labels, partner) for word in seats]
    # `asyncio.run` would take Ctrl-C for itself, and reading a line would not see it.
    loop = asyncio.new_event_loop()
    try:
        with contextlib.closing(loop):
            episode = loop.run_until_complete(
                play_episode(Setup(HANABI, config).task(SUITE, seed), policies, names=seats)
            )
    except (PlayerLeftError, KeyboardInterrupt):
        console.print("\nYou left; the game is not kept.")
        raise typer.Exit(INTERRUPTED) from None
    recording = Recording(episode=episode, source=out.stem)
    show(console, end_screen(recording, own))
    write_recordings(out, [recording])
    console.print(f"wrote {visible(str(out))}", markup=False, soft_wrap=True)
    again = shlex.quote(str(out))
    console.print(f"watch it: hanabi-grpo view {visible(again)} --hands", markup=False, soft_wrap=True)


def _policy(
    console: Console, word: str, config: EnvConfig, labels: list[str], partner: Callable[[str], Player]
) -> Player:
    if word != HUMAN:
        return partner(word)
    style = ObservationStyle(config.observation)
    return HumanPolicy(console=console, ask=_asker(console), labels=labels, style=style)


def _partner(client: RolloutClient, served: Served, config: EnvConfig, word: str) -> Player:
    if word in HANABI.policies:
        return make_script(Setup(HANABI, config), word)
    return RemotePolicy(
        client=client,
        seat_word=word,
        max_tokens=served.max_tokens,
        temperature=served.temperature,
    )


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
