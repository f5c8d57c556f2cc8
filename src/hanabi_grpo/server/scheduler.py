"""Request rows in, games out: pairs the rows of a deal into games and plays them concurrently.

A row asks for one player's trajectory in one game: `data_dict` carries `env_config`, `suite`, `seed` and
`player`. The n-th row of a player for a deal belongs to game n, so 16 rows per player are a group of 16 games.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.chat import ChatFormat
from hanabi_grpo.env_config import EnvConfig
from hanabi_grpo.errors import HanabiGrpoError, SettingsError, VersionError
from hanabi_grpo.rollouts import play_episode
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.engine import SamplingConfig
from hanabi_grpo.server.seats import Sampler, ServedPolicy
from hanabi_grpo.types import Episode, ReplyKind, adapter_of, player_name
from hanabi_grpo.wire import episode_to_outputs

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """One deal to be played `num_games` times; `rows[player][game]` are positions in the request."""

    config: EnvConfig
    suite: str
    seed: int
    rows: tuple[tuple[int, ...], ...]

    @property
    def num_games(self) -> int:
        """Size of the group."""
        return len(self.rows[0])


def group_rows(rows: Sequence[Mapping[str, Any]]) -> list[Deal]:
    """Group request rows into deals, in order of first appearance.

    Raises:
        SettingsError: A row that cannot be played, or a deal whose players do not have equally many rows.
    """
    found: dict[tuple[str, str, int], dict[int, list[int]]] = {}
    configs: dict[str, EnvConfig] = {}
    for position, row in enumerate(rows):
        data = row.get("data_dict") or {}
        try:
            config = EnvConfig.parse(data["env_config"])
            suite, seed, player = str(data["suite"]), int(data["seed"]), int(data["player"])
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(
                f"request row {position}: data_dict needs env_config, suite, seed and player; "
                f"{type(error).__name__}: {error}"
            ) from error
        if not 0 <= player < config.players:
            raise SettingsError(f"request row {position}: player={player}: allowed are 0 to {config.players - 1}.")
        key = config.model_dump_json()
        configs[key] = config
        found.setdefault((key, suite, seed), {}).setdefault(player, []).append(position)
    deals = []
    for (key, suite, seed), by_player in found.items():
        counts = [len(by_player.get(player, ())) for player in range(configs[key].players)]
        if len(set(counts)) != 1:
            raise SettingsError(f"deal {suite}/{seed}: rows per player are {counts}; every player needs equally many.")
        players = tuple(tuple(by_player[player]) for player in range(configs[key].players))
        deals.append(Deal(config=configs[key], suite=suite, seed=seed, rows=players))
    return deals


class Scheduler:
    """Plays requests on one engine. Each game is its own coroutine."""

    def __init__(
        self,
        sampler: Sampler,
        chat: ChatFormat,
        store: AdapterStore,
        *,
        max_model_len: int,
        games_at_once: int,
        instance_id: str,
    ) -> None:
        """Bind the engine, the conversation format and the adapters.

        Args:
            sampler: The engine.
            chat: How conversations become ids.
            store: Which adapters are served.
            max_model_len: Token budget of one conversation.
            games_at_once: How many games may wait on the engine together.
            instance_id: Stamped on every episode.
        """
        self._sampler, self._chat, self._store = sampler, chat, store
        self._max_model_len, self._instance_id = max_model_len, instance_id
        self._places = asyncio.Semaphore(games_at_once)
        self.games_in_flight = 0
        self.games_played = 0

    async def run(
        self, rows: Sequence[Mapping[str, Any]], sampling: SamplingConfig, adapters: Mapping[str, str | None] | None
    ) -> list[dict[str, Any]]:
        """Play every game that the rows ask for.

        Args:
            rows: Request rows, see the module docstring.
            sampling: Limits and temperature.
            adapters: Per player name "adapter@version" that must be served, or None for the base model; no mapping
                at all takes what is served now.

        Returns:
            One RolloutOutput dict per row, in row order.

        Raises:
            SettingsError: Rows that cannot be played.
            VersionError: A required version is not served; nothing was sampled.
        """
        deals = group_rows(rows)
        if sampling.max_tokens >= self._max_model_len:
            raise SettingsError(
                f"MAX_COMPLETION_LENGTH={sampling.max_tokens}: a reply must be shorter than the conversation that this "
                f"server can hold, HANABI_MAX_MODEL_LEN={self._max_model_len}."
            )
        wanted = _wanted(adapters)
        async with self._store.lease(wanted) as leased:
            tasks: dict[tuple[int, int], asyncio.Task[Episode]] = {}
            policies = []
            async with asyncio.TaskGroup() as group:
                for index, deal in enumerate(deals):
                    policy = ServedPolicy(
                        self._sampler,
                        self._chat,
                        loras=_loras(deal.config.players, adapters, leased),
                        sampling=sampling,
                        config=deal.config,
                        max_model_len=self._max_model_len,
                    )
                    policies.append(policy)
                    games = [group.create_task(self._play(deal, policy, game)) for game in range(deal.num_games)]
                    tasks.update({(index, game): task for game, task in enumerate(games)})
                    group.create_task(_report(deal, games, leased))
        outputs: list[dict[str, Any]] = [{} for _ in rows]
        for (index, game), task in tasks.items():
            systems = [policies[index].system(player) for player in range(deals[index].config.players)]
            for player, output in enumerate(
                episode_to_outputs(task.result(), model="hanabi_grpo", system_prompts=systems)
            ):
                outputs[deals[index].rows[player][game]] = output
        return outputs

    async def _play(self, deal: Deal, policy: ServedPolicy, game: int) -> Episode:
        async with self._places:
            self.games_in_flight += 1
            try:
                return await play_episode(
                    deal.config,
                    [policy] * deal.config.players,
                    suite=deal.suite,
                    seed=deal.seed,
                    game=game,
                    instance_id=self._instance_id,
                )
            finally:
                self.games_in_flight -= 1
                self.games_played += 1


def _wanted(adapters: Mapping[str, str | None] | None) -> dict[str, int] | None:
    if adapters is None:
        return None
    wanted: dict[str, int] = {}
    for player, name in adapters.items():
        if name is None:
            continue
        adapter, _, version = name.partition("@")
        if not version.isdecimal():
            raise VersionError(f"adapters[{player!r}]={name!r}: write it as adapter@version, e.g. player_0@7.")
        wanted[adapter] = int(version)
    return wanted


def _loras(
    num_players: int, adapters: Mapping[str, str | None] | None, leased: Mapping[str, Any]
) -> dict[str, tuple[Any, int]]:
    loras = {}
    for index in range(num_players):
        player = player_name(index)
        if adapters is None:
            held = leased.get(adapter_of(player, leased))
        else:
            if player not in adapters:
                raise VersionError(
                    f"adapters: nothing said of {player}; name adapter@version or null for the base model."
                )
            held = leased.get((adapters[player] or "").partition("@")[0])
        if held is not None:
            loras[player] = (held.lora, held.version)
    return loras


async def _report(deal: Deal, games: Sequence[asyncio.Task[Episode]], leased: Mapping[str, Any]) -> None:
    start = time.perf_counter()
    results = await asyncio.gather(*games, return_exceptions=True)
    episodes = [result for result in results if isinstance(result, Episode)]
    if len(episodes) < len(results) or not episodes:
        return
    seconds = time.perf_counter() - start
    turns = [turn for episode in episodes for turn in episode.turns]
    kinds = Counter(turn.kind for turn in turns)
    statuses = Counter(str(episode.status) for episode in episodes)
    logger.info(
        "deal %s/%d: %d games, score %.2f (kept %.2f), %.1f turns, %d illegal, %d unparsable, %s, %.1f s, "
        "%.0f tok/s, %s",
        deal.suite,
        deal.seed,
        len(episodes),
        sum(episode.score for episode in episodes) / len(episodes),
        sum(episode.score_kept for episode in episodes) / len(episodes),
        len(turns) / len(episodes),
        kinds[ReplyKind.ILLEGAL],
        kinds[ReplyKind.UNPARSABLE],
        " ".join(f"{status} {count}" for status, count in sorted(statuses.items())),
        seconds,
        sum(len(turn.reply_ids) for turn in turns) / max(seconds, 1e-9),
        " ".join(f"{held.adapter}@{held.version}" for held in leased.values()) or "base model",
    )


def unwrap(error: BaseException) -> BaseException:
    """Return the first error of ours inside an exception group, else the first error of all."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [unwrap(inner) for inner in error.exceptions]
    return next((leaf for leaf in leaves if isinstance(leaf, HanabiGrpoError)), leaves[0])
