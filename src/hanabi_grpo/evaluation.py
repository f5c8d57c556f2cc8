"""Held-out deals: who plays them, what comes out, and the paired difference of two teams.

Every team plays the same deals, so a difference is taken deal by deal and the luck of the deal drops out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hanabi_grpo.client import RolloutResult
from hanabi_grpo.env_config import EnvConfig
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.evaluation_result import EvaluationResult, PairedDifference, mean_and_error
from hanabi_grpo.games import GameSpec, is_held_out
from hanabi_grpo.metrics import episode_metrics
from hanabi_grpo.policies import make_policy
from hanabi_grpo.rollouts import play_episodes_sync
from hanabi_grpo.types import Episode, adapter_of, player_names

SUITE = "eval"
_CHUNK = 100
"""Deals of one request: enough to fill the engine, few enough for a progress bar that moves."""
_MAX_REASONS = 3


class Player(Protocol):
    """The one call of `RolloutClient` that plays games."""

    def play(
        self,
        deals: Sequence[Mapping[str, object]],
        *,
        num_games: int,
        max_tokens: int,
        temperature: float,
        adapters: Mapping[str, str | None],
    ) -> RolloutResult:
        """Play each deal `num_games` times."""


def summarise(
    label: str, episodes: Sequence[Episode], spec: GameSpec, *, temperature: float | None = None
) -> EvaluationResult:
    """Return the figures of one team.

    Args:
        label: What tables call it.
        episodes: One game per deal.
        spec: The board they were played on.
        temperature: Of sampling, 0 for greedy; None for a script.

    Raises:
        SettingsError: Fewer than two games, a game of another board or suite, or a deal that is there twice.
    """
    if len(episodes) < 2:
        raise SettingsError(f"{label}: {len(episodes)} game(s); a mean with an error needs at least 2 deals.")
    suite = episodes[0].suite
    for episode in episodes:
        if episode.spec_hash != spec.hash or episode.suite != suite:
            raise SettingsError(
                f"{label}: a game of board {episode.spec_hash} and suite {episode.suite!r} among those of "
                f"{spec.hash} and {suite!r}; summarise one board and suite at a time."
            )
    ordered = sorted(episodes, key=lambda episode: episode.seed)
    seeds = tuple(episode.seed for episode in ordered)
    if len(set(seeds)) != len(seeds):
        raise SettingsError(f"{label}: a deal was played more than once; give one game per deal.")
    rates = episode_metrics([ordered])
    return EvaluationResult(
        label=label,
        preset=spec.preset,
        num_players=spec.num_players,
        spec_hash=spec.hash,
        reachable_max=spec.reachable_max,
        suite=suite,
        temperature=temperature,
        seeds=seeds,
        scores=tuple(episode.score for episode in ordered),
        scores_kept=tuple(episode.score_kept for episode in ordered),
        bomb_share=rates["bombs_per_game"],
        truncated_share=rates["truncated_per_game"],
        illegal_per_game=rates["illegal_per_game"],
        unparsable_per_game=rates["unparsable_per_game"],
        hints_per_game=rates["hints_per_game"],
        turns_per_game=rates["turns_per_game"],
    )


def paired_difference(a: EvaluationResult, b: EvaluationResult) -> PairedDifference:
    """Return mean and standard error of `b - a` over the deals that both played.

    Raises:
        SettingsError: The two did not play the same deals.
    """
    for what, mine, theirs in (
        ("boards", f"{a.preset} {a.spec_hash}", f"{b.preset} {b.spec_hash}"),
        ("suites", a.suite, b.suite),
        ("deals", _range(a.seeds), _range(b.seeds)),
    ):
        if mine != theirs or (what == "deals" and a.seeds != b.seeds):
            raise SettingsError(
                f"{a.label} and {b.label} played different {what} ({mine}; {theirs}); "
                "evaluate both with the same --preset and --deals."
            )
    mean, error = mean_and_error([after - before for before, after in zip(a.scores, b.scores, strict=True)])
    return PairedDifference(mean=mean, standard_error=error, num_deals=len(a.seeds))


def evaluate_scripted(name: str, config: EnvConfig, num_deals: int, suite: str = SUITE) -> EvaluationResult:
    """Let a script play deals 0 to `num_deals - 1`.

    Args:
        name: One of `policies.SCRIPTED`.
        config: The game.
        num_deals: How many deals.
        suite: Which stream of deals.

    Raises:
        SettingsError: Unknown script, fewer than two deals, or a suite that training uses.
    """
    _check(num_deals, suite)
    policy = make_policy(name)
    episodes = play_episodes_sync(config, [policy] * config.players, suite, range(num_deals))
    return summarise(name, episodes, config.spec())


def evaluate_served(
    client: Player,
    config: EnvConfig,
    adapters: Mapping[str, str | None],
    num_deals: int,
    max_tokens: int,
    temperature: float,
    progress: Callable[[int], None],
    *,
    label: str = "served",
    suite: str = SUITE,
) -> EvaluationResult:
    """Let a rollout server's model play deals 0 to `num_deals - 1`.

    Args:
        client: A connection to the server.
        config: The game.
        adapters: Per player "adapter@version", or None for the base model; see `served_adapters`.
        num_deals: How many deals.
        max_tokens: Per reply.
        temperature: Of sampling; 0 is greedy.
        progress: Receives the number of deals done.
        label: What tables call the team.
        suite: Which stream of deals.

    Raises:
        SettingsError: Fewer than two deals, or a suite that training uses.
        ServerError: The server failed, holds other versions, or dropped a game: a mean over fewer games than it says
            would be biased by whatever broke them.
    """
    _check(num_deals, suite)
    game = config.model_dump(mode="json")
    episodes: list[Episode] = []
    for start in range(0, num_deals, _CHUNK):
        seeds = range(start, min(start + _CHUNK, num_deals))
        deals = [{"env_config": game, "suite": suite, "seed": seed} for seed in seeds]
        result = client.play(
            deals, num_games=1, max_tokens=max_tokens, temperature=temperature, adapters=dict(adapters)
        )
        _check_complete(result, label, len(deals))
        episodes += [episode for group in result.groups for episode in group]
        progress(len(episodes))
    return summarise(label, episodes, config.spec(), temperature=temperature)


def served_adapters(versions: Mapping[str, int], num_players: int) -> dict[str, str | None]:
    """Return which adapter each player uses, given the versions that a server holds.

    Example:
        served_adapters({"player_0": 7, "player_1": 7}, 2) == {"player_0": "player_0@7", "player_1": "player_1@7"}
        served_adapters({"shared": 7}, 2) == {"player_0": "shared@7", "player_1": "shared@7"}

    Raises:
        ServerError: The server lacks an adapter for one of the players.
    """
    chosen: dict[str, str | None] = {}
    for player in player_names(num_players):
        name = adapter_of(player, versions)
        if name not in versions:
            held = ", ".join(f"{adapter}@{version}" for adapter, version in versions.items()) or "none"
            raise ServerError(
                f"{player}: the server serves no adapter for it (held: {held}). Train first, give --checkpoint, "
                "or play --policy base."
            )
        chosen[player] = f"{name}@{versions[name]}"
    return chosen


def _check(num_deals: int, suite: str) -> None:
    if num_deals < 2:
        raise SettingsError(f"--deals {num_deals}: a mean with an error needs at least 2 deals.")
    if not is_held_out(suite):
        raise SettingsError(f"suite {suite!r}: training may have seen its deals; evaluate on {SUITE!r}.")


def _check_complete(result: RolloutResult, label: str, num_deals: int) -> None:
    played = sum(len(group) for group in result.groups)
    if not result.dropped and played == num_deals:
        return
    reasons = [f"deal {game.suite}/{game.seed}: {game.reason}" for game in result.dropped]
    shown = "; ".join(reasons[:_MAX_REASONS]) + ("; …" if len(reasons) > _MAX_REASONS else "")
    raise ServerError(
        f"{label}: {num_deals - played} of {num_deals} games were not played ({shown or 'no reason given'}); an "
        "evaluation needs every deal. Look at the server's log, then evaluate again."
    )


def _range(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} deals, {seeds[0]} to {seeds[-1]}"
