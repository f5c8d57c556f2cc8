"""Games of deals as rows of a rollout request, and the answers back into games; both sides use the same rule.

A row asks for one player's trajectory in one game: `data_dict` carries `env_config`, `suite`, `seed` and
`player`, and perhaps `seats`: who sits in each seat (see `seating`). The n-th row of a player for a deal belongs to
game n, so 16 rows per player are a group of 16 games. A deal that a request names twice goes on counting: its second
group of 16 holds games 16 to 31. The same deal with other seats is a group of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.rules import shuffled_deck
from hanabi_grpo.errors import ServerError, SettingsError, shown
from hanabi_grpo.rollout.episode_check import check_episode
from hanabi_grpo.runs.wire import outputs_to_game
from hanabi_grpo.settings.refs import check_seat
from hanabi_grpo.types import DroppedGame, Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """One deal to be played `num_games` times; `rows[player][game]` are positions in the request."""

    config: EnvConfig
    suite: str
    seed: int
    rows: tuple[tuple[int, ...], ...]
    seats: tuple[str, ...] | None = None
    """Who sits in each seat; None: as the request says for all deals."""

    @property
    def num_games(self) -> int:
        """Size of the group."""
        return len(self.rows[0])


def rows_of(deals: Sequence[Mapping[str, Any]], num_games: int) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the rows that ask for `num_games` games of each deal, and per row the number of its deal.

    Raises:
        SettingsError: An env_config that cannot be played.
    """
    rows: list[dict[str, Any]] = []
    owners: list[int] = []
    for number, deal in enumerate(deals):
        for player in range(EnvConfig.parse(deal["env_config"]).players):
            rows += [{"messages": [], "data_dict": {**deal, "player": player}} for _ in range(num_games)]
            owners += [number] * num_games
    return rows, owners


def group_rows(rows: Sequence[Mapping[str, Any]]) -> list[Deal]:
    """Group request rows into deals, in order of first appearance.

    Raises:
        SettingsError: A row that cannot be played, or a deal whose players do not have equally many rows.
    """
    found: dict[tuple[str, str, int, tuple[str, ...] | None], dict[int, list[int]]] = {}
    configs: dict[str, EnvConfig] = {}
    keys: dict[str, str] = {}
    for position, row in enumerate(rows):
        try:
            data = row.get("data_dict") or {}
            given = repr(data["env_config"])
            if given not in keys:
                config = EnvConfig.parse(data["env_config"])
                keys[given] = config.model_dump_json()
                configs[keys[given]] = config
            key = keys[given]
            config = configs[key]
            suite, seed, player = _deal_and_player(data)
            seats = _seats(data, config.players)
            group = (key, suite, seed, seats)
            if group not in found:
                # Dealt here only to refuse a suite or a seed that cannot be dealt before anything is sampled.
                shuffled_deck(config.spec(), suite, seed)
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(
                f"request row {position}: data_dict needs env_config, suite, seed and player; "
                f"{type(error).__name__}: {error}"
            ) from error
        if not 0 <= player < config.players:
            raise SettingsError(f"request row {position}: player={player}: allowed are 0 to {config.players - 1}.")
        found.setdefault(group, {}).setdefault(player, []).append(position)
    deals = []
    for (key, suite, seed, seats), by_player in found.items():
        counts = [len(by_player.get(player, ())) for player in range(configs[key].players)]
        if len(set(counts)) != 1:
            raise SettingsError(f"deal {suite}/{seed}: rows per player are {counts}; every player needs equally many.")
        players = tuple(tuple(by_player[player]) for player in range(configs[key].players))
        deals.append(Deal(config=configs[key], suite=suite, seed=seed, rows=players, seats=seats))
    return deals


def games_of(
    rows: Sequence[Mapping[str, Any]], outputs: Any, *, vocab_size: int | None
) -> list[tuple[int, Episode | DroppedGame]]:
    """Return the games that the answers to `rows` hold, each with the position of its first row.

    Args:
        rows: The rows that were sent.
        outputs: The answer as JSON; one output per row, in row order.
        vocab_size: See `check_episode`.

    Raises:
        ServerError: Not one answer per row, malformed answers, or an answer for another game than was asked for.
        NonFiniteError: A game whose numbers cannot be trained on.
    """
    if not isinstance(outputs, list) or len(outputs) != len(rows):
        count = len(outputs) if isinstance(outputs, list) else f"a {type(outputs).__name__} instead of a list of"
        raise ServerError(f"{count} answers for {len(rows)} rows; the server and this client do not fit.")
    games = []
    for deal in group_rows(rows):
        for number in range(deal.num_games):
            places = [positions[number] for positions in deal.rows]
            game = outputs_to_game([outputs[place] for place in places])
            _check_asked(game, deal, number)
            if isinstance(game, Episode):
                check_episode(game, vocab_size=vocab_size)
            games.append((places[0], game))
    return games


def _deal_and_player(data: Mapping[str, Any]) -> tuple[str, int, int]:
    suite, seed, player = data["suite"], data["seed"], data["player"]
    for name, value, wanted in (("suite", suite, str), ("seed", seed, int), ("player", player, int)):
        if type(value) is not wanted:
            raise TypeError(f"{name}={shown(value)} is no {'text' if wanted is str else 'whole number'}")
    return suite, seed, player


def _seats(data: Mapping[str, Any], num_players: int) -> tuple[str, ...] | None:
    given = data.get("seats")
    if given is None:
        return None
    if not isinstance(given, list | tuple) or len(given) != num_players:
        raise TypeError(f"seats={shown(given)}: give a list of {num_players} seats")
    return tuple(check_seat(seat) for seat in given)


def _check_asked(game: Episode | DroppedGame, deal: Deal, number: int) -> None:
    asked: dict[str, Any] = {"suite": deal.suite, "seed": deal.seed, "game": number}
    if isinstance(game, Episode):
        spec = deal.config.spec()
        asked |= {"preset": spec.preset, "num_players": spec.num_players, "spec_hash": spec.hash}
        if deal.seats is not None:
            asked["seats"] = deal.seats
    got = {name: getattr(game, name) for name in asked}
    if got != asked:
        raise ServerError(
            f"asked for {_named(asked)}, the answer is {_named(got)}; nothing is learned from it. "
            "Do server and client run the same version of hanabi_grpo? Restart the server."
        )


def _named(fields: Mapping[str, Any]) -> str:
    named = f"game {fields['game']} of deal {fields['suite']}/{fields['seed']}"
    if "preset" not in fields:
        return named
    seats = f", {','.join(fields['seats'])} in its seats" if fields.get("seats") else ""
    return f"{named} on {fields['preset']} with {fields['num_players']} players (board {fields['spec_hash']}){seats}"
