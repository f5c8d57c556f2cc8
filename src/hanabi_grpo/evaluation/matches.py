"""Games of a line-up over a list of deals, in every seat order: by scripts here, by models on a rollout server.

Everybody who counts games (evaluation, cross-play, conventions, data collection) takes them from `play_line_up`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hanabi_grpo.client.rollout_client import RolloutResult
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.replays.timeline import replayed_game
from hanabi_grpo.envs.hanabi.rules import Game
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.lineups import LineUp
from hanabi_grpo.rollout.resolver import SeatResolver
from hanabi_grpo.settings.refs import NOT_HELD, Ref
from hanabi_grpo.types import Episode

_SCRIPTED_CHUNK = 50
_SERVED_CHUNK = 100
"""Deals of one request: enough to fill the engine, few enough for a progress bar that moves."""
_MAX_REASONS = 3


class Player(Protocol):
    """The one call of `RolloutClient` that plays games."""

    def play(
        self, deals: Sequence[Mapping[str, Any]], *, num_games: int, max_tokens: int, temperature: float
    ) -> RolloutResult:
        """Play each deal `num_games` times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How the games of models are played."""

    client: Player
    resolver: SeatResolver
    max_tokens: int
    """Per reply."""
    temperature: float
    """Of sampling; 0 is greedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedGame:
    """One game."""

    seed: int
    """With the suite, names the deal."""
    order: int
    """Which of the line-up's seat orders."""
    game: Game
    """The table at the end: every move, the deck, the score. Not over where a limit of ours cut the game."""
    episode: Episode | None
    """What was said; None when scripts filled every seat."""


def play_line_up(
    line_up: LineUp,
    config: EnvConfig,
    seeds: Sequence[int],
    *,
    suite: str,
    served: Served | None = None,
    rotate: bool = True,
) -> Iterator[list[PlayedGame]]:
    """Play every deal once in each seat order; yields the games of some deals at a time, whole deals only.

    Args:
        line_up: Who plays.
        config: The game.
        seeds: The deals.
        suite: Which stream of deals.
        served: Needed unless scripts fill every seat.
        rotate: Whether a list of different players changes seats.

    Raises:
        SettingsError: A model has to play and there is no server, or the line-up is for another number of players.
        ServerError: The server failed, or dropped a game: figures over the rest would be biased by whatever broke it.
    """
    if len(line_up.refs) != config.players:
        raise SettingsError(f"line-up {line_up.text!r}: {len(line_up.refs)} seats for players={config.players}.")
    orders = line_up.orders(rotate=rotate)
    if not line_up.needs_server:
        yield from _scripted(orders, config, seeds, suite)
        return
    if served is None:
        raise SettingsError(f"line-up {line_up.text!r}: needs a rollout server: start one, or add --own-server.")
    chunk = max(1, _SERVED_CHUNK // len(orders))
    for start in range(0, len(seeds), chunk):
        asked = [(seed, number) for seed in seeds[start : start + chunk] for number in range(len(orders))]
        refs, deals = [orders[number] for _, number in asked], [seed for seed, _ in asked]
        groups = ask_games(served, refs, config, deals, suite=suite, label=line_up.text)
        yield [
            PlayedGame(seed=seed, order=number, game=replay(episode), episode=episode)
            for (seed, number), [episode] in zip(asked, groups, strict=True)
        ]


def ask_games(
    served: Served,
    refs: Sequence[Sequence[Ref]],
    config: EnvConfig,
    seeds: Sequence[int],
    *,
    suite: str,
    label: str,
    num_games: int = 1,
) -> list[list[Episode]]:
    """Return per deal the games that the server plays.

    A lent adapter that the server does not hold any more is lent again: others lent theirs meanwhile, or it is another
    server process. The seats stay, because their words are digests.

    Args:
        served: The server and how it plays.
        refs: Per deal the line-up, in turn order.
        config: The game.
        seeds: Per deal its number in the suite.
        suite: Which stream of deals.
        label: What errors call the line-up.
        num_games: Of each deal.

    Raises:
        SettingsError: A checkpoint that cannot be used.
        ServerError: The server failed, or dropped a game.
    """

    def ask() -> RolloutResult:
        row = config.model_dump(mode="json")
        deals = [
            {"env_config": row, "suite": suite, "seed": seed, "seats": list(served.resolver.seats(order))}
            for seed, order in zip(seeds, refs, strict=True)
        ]
        return served.client.play(
            deals, num_games=num_games, max_tokens=served.max_tokens, temperature=served.temperature
        )

    try:
        result = ask()
    except ServerError as error:
        if NOT_HELD not in str(error):
            raise
        served.resolver.lend_again()
        result = ask()
    if result.dropped or [len(group) for group in result.groups] != [num_games] * len(seeds):
        reasons = [f"deal {game.suite}/{game.seed}: {game.reason}" for game in result.dropped]
        shown = "; ".join(reasons[:_MAX_REASONS]) + ("; …" if len(reasons) > _MAX_REASONS else "")
        wanted, played = num_games * len(seeds), sum(len(group) for group in result.groups)
        raise ServerError(
            f"{label}: {wanted - played} of {wanted} games were not played ({shown or 'no reason given'}); "
            "every deal is needed. Look at the server's log, then give the same command again."
        )
    return result.groups


def replay(episode: Episode) -> Game:
    """Return the table at the end of an episode.

    Raises:
        ServerError: Its moves do not fit the deal that it names.
    """
    named = Recording(episode=episode, source=f"deal {episode.suite}/{episode.seed}", number=episode.game)
    try:
        return replayed_game(named)
    except SettingsError as error:
        raise ServerError(str(error)) from error


def _scripted(
    orders: Sequence[tuple[Ref, ...]], config: EnvConfig, seeds: Sequence[int], suite: str
) -> Iterator[list[PlayedGame]]:
    setup = Setup(HANABI, config)
    policies = {ref: HANABI.policies[str(ref)]() for order in orders for ref in order}
    tables = [dict(enumerate(policies[ref] for ref in order)) for order in orders]
    for start in range(0, len(seeds), _SCRIPTED_CHUNK):
        yield [
            PlayedGame(
                seed=seed,
                order=number,
                game=replay(play_scripts(setup.task(suite, seed), table)),
                episode=None,
            )
            for seed in seeds[start : start + _SCRIPTED_CHUNK]
            for number, table in enumerate(tables)
        ]
