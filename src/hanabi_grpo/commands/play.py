"""`hanabi-grpo play`: a person in one seat of any environment.

Scripts or models have the other seats.
"""

import asyncio
import contextlib
import functools
import io
import secrets
import shlex
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from hanabi_grpo.agents.person import PersonPlayer
from hanabi_grpo.agents.remote_server import RemotePlayer
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.client.lineups import Lineup, parse_lineup, short_name
from hanabi_grpo.client.page_game import PageGame, play_on_page
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.commands.console import INTERRUPTED, make_console, sayer
from hanabi_grpo.commands.playing import Env, OwnServer, Players, Preset, Temperature, choose
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.endings import outcome
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.rollout.loop import Player, play_episode
from hanabi_grpo.rollout.person_messages import SUITE, NewGameRequest
from hanabi_grpo.rollout.recordings import write_recordings
from hanabi_grpo.runs.run_folder import PLAYED, results_folder
from hanabi_grpo.settings.refs import Role, ScriptRef
from hanabi_grpo.settings.zoo import use_zoo
from hanabi_grpo.texts import visible
from hanabi_grpo.types import HUMAN, Episode, player_name

_MAX_RANDOM_SEED = 2**31


def play(
    lineup: Annotated[
        str | None,
        typer.Argument(
            help="One policy for all partners (iggi), or one per seat with human in yours "
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
        Path | None,
        typer.Option(
            help="New file for the game.", show_default="in played/ of OUTPUT_DIR, or of outputs/"
        ),
    ] = None,
    own_server: OwnServer = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Show what a model would read in your seat.")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Play on a page in your browser; requires a server.")
    ] = False,
    open_browser: Annotated[
        bool, typer.Option("--open", help="With --web: open the page.")
    ] = False,
) -> None:
    """Play a game yourself.

    Shows the table, what the others did since your last turn, and your moves. Type a move or its
    number; l lists the moves, r shows the rules and q quits. The game is saved when it is over.
    Exits with 130 if you quit before the end.

    Environment: HANABI_ENV, HANABI_PRESET, HANABI_PLAYERS; with models VLLM_SERVER_PORT,
    TEMPERATURE and the others of evaluate.
    """
    if open_browser and not web:
        raise SettingsError("--open: opens the page of --web; add --web.")
    if raw and web:
        raise SettingsError("--raw and --web: the page shows the table; choose one of them.")
    if sys.stdin is None and not web:
        raise SettingsError("hanabi-grpo play: there is no standard input to read replies from.")
    console = make_console()
    own_server = use_zoo([lineup or ""]) or own_server
    chosen = choose(env, preset, players, temperature)
    game = chosen.game
    specs = _specs_of_seats(lineup, game)
    team = parse_lineup(",".join(specs), game.spec.num_players, env=game.env, human=True)
    number = secrets.randbelow(_MAX_RANDOM_SEED) if seed is None else seed
    if out is None:
        name = f"{datetime.now():%Y%m%d-%H%M%S}-{game.spec.preset}-{number}.jsonl"
        target = results_folder(chosen.loaded.settings) / PLAYED / name
    else:
        target = out
    if target.exists():
        raise SettingsError(f"--out {target}: already exists; choose another name or remove it.")
    print_lines = sayer(console)

    def say(text: str) -> None:
        print_lines(visible(text))

    if web:
        with chosen.serving(console, needed=True, own=own_server) as served:
            assert served is not None
            _play_on_page(game, number, team, served, target, say, open_browser, own_server)
        return
    _prepare_input()
    with chosen.serving(console, needed=team.needs_server, own=own_server) as served:
        seat_names = list(team.specs)
        seated: list[Player] = []
        person = PersonPlayer(say=say, ask=input, raw=raw)
        for seat, ref in enumerate(team.refs):
            if ref is Role.HUMAN:
                seated.append(person)
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
                    renew=functools.partial(served.resolver.renewed, ref, seat),
                )
                seated.append(model)
        say(_title(game, specs))
        try:
            episode = _play(game, number, seated, tuple(seat_names))
        except (EOFError, KeyboardInterrupt):
            say("\nYou quit; the game was not saved.")
            raise typer.Exit(INTERRUPTED) from None
    person.show_end()
    seat = specs.index(HUMAN)
    figures = {**episode.result, "your return": episode.reward(seat)}
    listed = ", ".join(f"{name} {value:g}" for name, value in figures.items())
    say(
        f"\nThe game is over. {outcome(game.spec, episode, seat)}\n({episode.status}: {listed}; "
        f"{_start(number)})"
    )
    _write(target, episode, say)


def _specs_of_seats(lineup: str | None, game: Setup[Any]) -> list[str]:
    """Return a policy spec for every seat, among them one for the person.

    Raises:
        SettingsError: The lineup has a wrong number of seats, or not exactly one for the person;
            or it names partners in a game for one player.
    """
    num_players = game.spec.num_players
    specs = [spec.strip() for spec in (lineup or "random").split(",")]
    if num_players == 1 and lineup is not None and specs != [HUMAN]:
        options = f"--env {game.env} --preset {game.spec.preset}"
        if "players" in type(game.config).model_fields:
            options += " --players 1"
        raise SettingsError(
            f"lineup {lineup!r}: {game.spec.preset} has one player, which is you; omit the lineup. "
            f"To watch a policy play: hanabi-grpo collect {shlex.quote(lineup)} {options} --tasks "
            "4 --out outputs/watched, then hanabi-grpo view outputs/watched."
        )
    if len(specs) == 1 and specs != [HUMAN]:
        partner = specs[0]
        specs = [HUMAN] + [partner] * (num_players - 1)
    if specs.count(HUMAN) != 1 or len(specs) != num_players:
        raise SettingsError(
            f"lineup {lineup!r} for {num_players} players: give one policy for all partners, or "
            f"one per seat with {HUMAN} in yours, e.g. {HUMAN},random."
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
        game: The game to play.
        number: Number of the task.
        players: One per seat.
        seat_names: Their names in the record.
    """
    # `asyncio.run` would intercept Ctrl-C, and reading a line would not see it.
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        task = game.task(SUITE, number)
        return loop.run_until_complete(play_episode(task, players, names=seat_names))


def _title(game: Setup[Any], specs: Sequence[str]) -> str:
    """Return a line that names the game and the partners.

    The task is named only after the game, since hidden cards can be computed from its number.
    """
    others = []
    for seat, spec in enumerate(specs):
        if spec != HUMAN:
            others.append(f"{player_name(seat)} {short_name(spec)}")
    return f"{game.env}, {game.spec.preset}; you play with {', '.join(others) or 'nobody'}."


def _start(number: int) -> str:
    """Return the name of a task."""
    return f"start {SUITE}/{number}"


def _play_on_page(
    game: Setup[Any],
    number: int,
    team: Lineup,
    served: Served,
    target: Path,
    say: Callable[[str], None],
    open_browser: bool,
    stay: bool,
) -> None:
    """Start a game on the server's page, and write it when it is over.

    Args:
        game: The game to play.
        number: Number of the task.
        team: The seat assignment.
        served: The server.
        target: File of the game.
        say: Prints a text.
        open_browser: Whether to open the page.
        stay: Whether the server ends with this command, which then waits for Ctrl-C.
    """
    seats = []
    for seat, ref in enumerate(team.refs):
        seats.append(HUMAN if ref is Role.HUMAN else served.resolver.seat(ref, seat))
    assert isinstance(served.client, RolloutClient)
    wanted = NewGameRequest(
        **game.row(), seats=tuple(seats), seed=number, temperature=served.temperature
    )
    page = PageGame(served.client, wanted)

    def open_page(address: str) -> None:
        say(f"{_title(game, list(team.specs))}\nplay here: {address}")
        if "authorization" in served.client.headers:
            say("the page asks for the server's key, HANABI_API_KEY")
        say("Ctrl-C quits the game")
        if open_browser and not webbrowser.open(address):
            say("could not open a browser; open the address above yourself")

    played = play_on_page(page, open_page)
    if played is None:
        say("\nYou quit; the game was not saved.")
        raise typer.Exit(INTERRUPTED)
    episode, outcome_text = played
    say(f"The game is over. {outcome_text} ({_start(number)})")
    _write(target, episode, say)
    if stay:
        say("the page stays open for more games; Ctrl-C closes it")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


def _write(target: Path, episode: Episode, say: Callable[[str], None]) -> None:
    """Write a game to a new file and say how to watch it."""
    write_recordings(target, [Recording(episode=episode, source=target.stem)])
    say(f"wrote {target}\nwatch it: hanabi-grpo view {shlex.quote(str(target))}")
