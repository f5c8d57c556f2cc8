"""`hanabi-grpo play`: a person in one seat, with scripts or models as partners."""

import asyncio
import contextlib
import io
import secrets
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console

from hanabi_grpo.client.own_server import own_server
from hanabi_grpo.client.remote_seat import RemotePolicy
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.commands.console import make_console
from hanabi_grpo.commands.interruption import INTERRUPTED
from hanabi_grpo.commands.play_choice import read_game
from hanabi_grpo.commands.play_journal import SUFFIX, Journal, SavedGame, journal_policies, read_journal
from hanabi_grpo.commands.train import wait_for_server
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.human.ending import end_screen
from hanabi_grpo.envs.hanabi.human.screens import show
from hanabi_grpo.envs.hanabi.human.seat import HumanPolicy, PlayerLeftError
from hanabi_grpo.envs.hanabi.policies import SCRIPTED, Policy, make_policy
from hanabi_grpo.envs.hanabi.prompts import ObservationStyle
from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.lineups import parse_line_up, read_player_ref, short_name
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.rollout.resolver import SeatResolver
from hanabi_grpo.runs.recordings import write_recordings
from hanabi_grpo.settings import LoadedSettings, load_settings
from hanabi_grpo.settings.refs import HUMAN
from hanabi_grpo.types import Episode, player_name

SUITE = "human"


def play(
    partners: str | None,
    *,
    seat: str | None = None,
    preset: str | None = None,
    players: int | None = None,
    seed: int | None = None,
    temperature: float | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    own: bool = False,
) -> int:
    """Play one game at the terminal and write it to a file.

    Args:
        partners: Who else plays, see `read_game`; None: iggi.
        seat: The person's seat, e.g. "player_0".
        preset: Board; None: HANABI_PRESET or full, with models that of DATASET.
        players: Number of players.
        seed: Names the deal; None: a random one.
        temperature: Of models' sampling; None: TEMPERATURE.
        out: New file of the game; None: one in outputs/played/.
        resume: An unfinished game to go on with; then only `out` and `own` may be given beside it.
        own: Start a rollout server for this game alone.

    Returns:
        Exit code: 0 when the game is over, 130 when the person left before.

    Raises:
        SettingsError: Bad options, or a file that cannot be read or written.
        ServerError: No server, or one that failed; the game can be gone on with.
    """
    console, loaded = make_console(), load_settings()
    if sys.stdin is None:
        raise SettingsError("hanabi-grpo play: there is no standard input to read moves from.")
    with contextlib.ExitStack() as stack:
        table = _Table(loaded, console, stack, own=own)
        if resume is None:
            words, config = read_game(partners or "iggi", seat, preset, players, loaded.settings)
            number = secrets.randbelow(2**31) if seed is None else seed
            journal = _new_journal(table, words, config, number, temperature, out)
        else:
            given = {"PARTNERS": partners, "--seat": seat, "--preset": preset, "--players": players, "--seed": seed}
            extra = [name for name, value in {**given, "--temperature": temperature}.items() if value is not None]
            if extra:
                raise SettingsError(f"{extra[0]} with --resume {resume}: the file says how to go on; leave it out.")
            journal = _old_journal(table, read_journal(resume), out)
        return _play(table, journal)


class _Table:
    """The terminal, and the server as soon as somebody at the table needs it."""

    def __init__(
        self, loaded: LoadedSettings, console: Console, stack: contextlib.ExitStack, *, own: bool = False
    ) -> None:
        self.loaded, self.console, self._stack, self._own = loaded, console, stack, own
        self._client: RolloutClient | None = None

    def connect(self, config: EnvConfig) -> RolloutClient:
        """Return the server, waited for or started at the first call; a game needs room for its players."""
        if self._client is None:
            settings = self.loaded.settings
            if self._own:
                game = {"HANABI_PRESET": config.preset, "HANABI_PLAYERS": str(config.players)}
                settings = self._stack.enter_context(own_server(settings, self.say, environ=game))
            else:
                wait_for_server(self.loaded, self.console)
            self._client = self._stack.enter_context(RolloutClient.from_settings(settings))
        return self._client

    def seats(self, words: tuple[str, ...], config: EnvConfig) -> tuple[str, ...]:
        """Return who really sits in each seat."""
        local = (HUMAN, *SCRIPTED)
        client = None if all(word in local for word in words) else self.connect(config)
        resolver = SeatResolver(client, self.loaded.settings)
        return tuple(
            word if word in local else resolver.seat(read_player_ref(word, ",".join(words)), player)
            for player, word in enumerate(words)
        )

    def say(self, text: str) -> None:
        """Print a line; long paths are not broken."""
        self.console.print(visible(text), markup=False, soft_wrap=True)


def _new_journal(
    table: _Table, words: tuple[str, ...], config: EnvConfig, seed: int, temperature: float | None, out: Path | None
) -> Journal:
    settings = table.loaded.settings
    heat = settings.temperature if temperature is None else temperature
    if not 0 <= heat <= 2:
        raise SettingsError(f"--temperature {heat}: must be 0 (greedy) to 2.")
    if not 0 <= seed < 2**63:
        raise SettingsError(f"--seed {seed}: a deal's seed is a whole number from 0 to 2**63 - 1.")
    target = out or Path("outputs/played") / f"{datetime.now():%Y%m%d-%H%M%S}-{config.preset}-{seed}.jsonl"
    path = target.with_name(target.name.removesuffix(".jsonl") + SUFFIX)
    _check_free(target)
    if path.exists():
        raise SettingsError(
            f"--out {target}: a game is unfinished there; go on with it by --resume {path}, remove it, or choose "
            "another name."
        )
    game = SavedGame(
        env_config=config,
        spec_hash=config.spec().hash,
        words=words,
        seats=table.seats(words, config),
        suite=SUITE,
        seed=seed,
        max_tokens=settings.max_completion_length,
        temperature=heat,
        out=str(target),
    )
    return Journal(path=path, game=game)


def _old_journal(table: _Table, journal: Journal, out: Path | None) -> Journal:
    game = journal.game
    parse_line_up(",".join(game.words), len(game.words), human=True)
    seats = table.seats(game.words, game.env_config)
    for player, (then, now) in enumerate(zip(game.seats, seats, strict=True)):
        if then != now:
            raise SettingsError(
                f"--resume {journal.path}: {player_name(player)} was {then}, and {game.words[player]} is now {now}; "
                "a game is ended by those who began it. Serve that version again, or start another game."
            )
    if out is not None:
        journal.game = game.model_copy(update={"out": str(out)})
    _check_free(Path(journal.game.out))
    return journal


def _check_free(out: Path) -> None:
    if out.exists():
        raise SettingsError(f"--out {out}: exists already; choose another name or remove it.")


def _play(table: _Table, journal: Journal) -> int:
    game, console = journal.game, table.console
    own = game.seats.index(HUMAN)
    labels = [
        "you" if seat == own else visible(f"{player_name(seat)} {short_name(word)}")
        for seat, word in enumerate(game.words)
    ]
    journal.save()
    _introduce(table, journal, labels)
    go_on = f"go on: hanabi-grpo play --resume {shlex.quote(str(journal.path))}"
    try:
        policies = [_policy(table, journal, seat, labels) for seat in range(len(game.seats))]
        episode = _run(journal, journal_policies(policies, journal))
        recording = Recording(episode=episode, source=Path(game.out).stem)
        write_recordings(Path(game.out), [recording])
    except (PlayerLeftError, KeyboardInterrupt):
        num = len(journal.replies)
        table.say(f"\nThe game is kept as it stands, after {num} move{'s' * (num != 1)}.")
        table.say(go_on)
        return INTERRUPTED
    except (ServerError, OSError, SettingsError) as error:
        if len(journal.replies) > len(game.replies):
            table.say("The game is kept up to the last move that could be written.")
            table.say(go_on)
        raise error
    journal.path.unlink(missing_ok=True)
    show(console, end_screen(recording, own, journal.note))
    table.say(f"wrote {game.out}")
    table.say(f"watch it: hanabi-grpo view {shlex.quote(game.out)} --hands")
    return 0


def _introduce(table: _Table, journal: Journal, labels: list[str]) -> None:
    game, spec = journal.game, journal.game.env_config.spec()
    resumed = f" after {len(game.replies)} moves" if game.replies else ""
    others = ", ".join(label for label in labels if label != "you")
    board = (
        f"{spec.preset}, {spec.num_players} players, deal {game.suite}/{game.seed}{resumed}: {spec.num_colors} "
        f"colours, ranks 1 to {spec.num_ranks}, at most {spec.reachable_max} points. "
    )
    team = f"You are {player_name(game.seats.index(HUMAN))}; with you play {others}."
    table.console.print(board + team, markup=False)
    table.say(f"kept after every move: {journal.path}")


def _policy(table: _Table, journal: Journal, player: int, labels: list[str]) -> Policy:
    game = journal.game
    word, config = game.seats[player], game.env_config
    style = ObservationStyle(config.observation)
    if word == HUMAN:
        ask = _asker(table.console)
        return HumanPolicy(console=table.console, ask=ask, labels=labels, note=journal.note, style=style)
    if word in SCRIPTED:
        return make_policy(word, style=style)
    return RemotePolicy(
        client=table.connect(game.env_config),
        seat_word=word,
        config=config,
        max_tokens=game.max_tokens,
        temperature=game.temperature,
        said=journal.said(player),
    )


def _run(journal: Journal, policies: Sequence[Policy]) -> Episode:
    game = journal.game
    # `asyncio.run` would take Ctrl-C for itself, and reading a line would not see it.
    loop = asyncio.new_event_loop()
    with contextlib.closing(loop):
        return loop.run_until_complete(
            play_episode(game.env_config, policies, suite=game.suite, seed=game.seed, names=game.seats)
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
