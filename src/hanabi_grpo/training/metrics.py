"""Metrics of one step, computed from its games."""

import resource
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hanabi_grpo.envs.base import EnvSpec, Setup
from hanabi_grpo.envs.starts import start_numbers
from hanabi_grpo.envs.thoughts import thought_figures
from hanabi_grpo.envs.tools.figures import tool_figures
from hanabi_grpo.runs.task_statistics import MIN_STARTS, clustered_error
from hanabi_grpo.settings.gpus import find_card
from hanabi_grpo.training.groups import flatten_groups
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, Turn, is_trained, player_name

_BYTES_PER_GIB = 2**30
_KIB_PER_GIB = 2**20


def episode_metrics(
    groups: Sequence[Sequence[Episode]],
    setups: Mapping[str, Setup[Any]],
    *,
    games_dropped: int = 0,
    groups_dropped: int = 0,
    own_seats: Sequence[str] = (),
    partners: Mapping[str, str] | None = None,
    reply_limit: int = 0,
    end_id: int | None = None,
    end_ids: Mapping[str, int | None] | None = None,
) -> dict[str, float]:
    """Return the step's metrics: scores, failures, and figures per player and per environment.

    The score of a game is the figure that `EnvSpec.score` names, or player 0's return. `score/se`
    is its standard error, clustered by start, and `score/normalized` the mean of score / greatest
    score. Rates are per game. `entropy_estimate` is the mean of −logprob over sampled tokens, in
    nats. Figures of `Environment.metrics` are prefixed with the environment's name if a step has
    several environments. `tokens/prompts_per_game` and `tokens/replies_per_game` are the tokens in
    the players' conversations: with HANABI_MEMORY=game each token counts once, otherwise once for
    each turn that still sees it. Per player, `reward`, `score/max` and `score/min` are the mean,
    maximum and minimum return of its games, and `samples` is their number.

    A figure is absent if the games do not determine it. Scores and rates cover all games and all
    seats. Figures of training progress (a player's reward, replies and games without a turn,
    zero-variance groups, games with only bad replies) cover only the trained seats.

    Args:
        groups: Per task, its games.
        setups: The environments that are played, by the hash of their rules.
        games_dropped: Number of games that are in no group.
        groups_dropped: Number of tasks that were left out because too few of their games remained.
        own_seats: Per seat, the run's own adapter, e.g. "player_0@7"; empty: all seats are trained.
        partners: The name of each partner by its seat reference. If given, there are separate
            scores for each partner, see `_scores_by_partner`.
        reply_limit: Most tokens of one reply; 0: no reply counts as cut.
        end_id: The token that ends a reply; None: every reply of maximal length counts as cut.
        end_ids: End token of each adapter whose base model is not player_0's.
    """
    episodes = flatten_groups(groups)
    num_all_bad = 0
    for episode in episodes:
        num_all_bad += _is_all_bad(episode, own_seats)
    # A group of one game has nothing to be compared with.
    compared = [group for group in groups if len(group) > 1]
    num_without_spread = 0
    for group in compared:
        num_without_spread += not has_spread(group, own_seats)
    metrics = _environment_figures(episodes, setups)
    metrics |= score_figures(episodes, setups)
    metrics |= {
        "games": float(len(episodes)),
        "games_dropped": float(games_dropped),
        "groups_dropped": float(groups_dropped),
        "games_all_bad": float(num_all_bad),
        "groups_without_spread": float(num_without_spread),
    }
    if compared:
        metrics["flat_group_share"] = metrics["groups_without_spread"] / len(compared)
    metrics |= _rates(episodes)
    if any(setup.tools for setup in setups.values()):
        metrics |= tool_figures(episodes)
    metrics |= thought_figures(episodes)
    if partners is not None:
        metrics |= _scores_by_partner(episodes, setups, own_seats, partners)
    num_seats = max((episode.num_players for episode in episodes), default=0)
    for seat in range(num_seats):
        adapter = own_seats[seat].partition("@")[0] if own_seats else player_name(seat)
        end = (end_ids or {}).get(adapter, end_id)
        figures = _seat_figures(episodes, seat, own_seats, reply_limit, end)
        for name, value in figures.items():
            metrics[f"{player_name(seat)}/{name}"] = value
    return metrics


def score_figures(
    episodes: Sequence[Episode],
    setups: Mapping[str, Setup[Any]],
    own_seats: Sequence[str] = (),
) -> dict[str, float]:
    """Return the mean score of the games and its standard error, also per preset and normalized.

    Games of one start are correlated, so errors are clustered by start, see
    `task_statistics.estimate`; with a single start there is none.

    Args:
        episodes: The games.
        setups: The environments that are played, by the hash of their rules.
        own_seats: See `score_of`.

    Returns:
        "score/mean", "score/se", "score/normalized" (mean of `_score_share`), per preset
        "score/<preset>" and "games/<preset>", and with several boards "score/normalized_se".
    """
    scores: list[float] = []
    shares: list[float] = []
    by_preset: dict[str, list[float]] = {}
    for episode in episodes:
        score = score_of(episode, setups, own_seats)
        scores.append(score)
        by_preset.setdefault(episode.preset, []).append(score)
        share = _score_share(score, setups[episode.spec_hash].spec)
        if share is not None:
            shares.append(share)
    figures: dict[str, float] = {}
    for preset, values in by_preset.items():
        figures[f"games/{preset}"] = float(len(values))
        figures[f"score/{preset}"] = fmean(values)
    if shares:
        figures["score/normalized"] = fmean(shares)
    if scores:
        figures["score/mean"] = fmean(scores)
    clusters = _start_clusters(episodes, setups)
    if len(set(clusters)) < MIN_STARTS:
        return figures
    _, figures["score/se"], _ = clustered_error(np.asarray(scores), clusters)
    num_boards = len({episode.spec_hash for episode in episodes})
    # Without a share for every game, there is no mean over all boards that could have an error.
    if num_boards > 1 and len(shares) == len(scores):
        _, figures["score/normalized_se"], _ = clustered_error(np.asarray(shares), clusters)
    return figures


def has_spread(group: Sequence[Episode], own_seats: Sequence[str]) -> bool:
    """Tell whether the games of a group differ in the return of any trained player.

    Args:
        group: Games of one task.
        own_seats: See `episode_metrics`; "" stands for a seat that is not trained.
    """
    num_seats = max((episode.num_players for episode in group), default=0)
    for seat in range(num_seats):
        returns: set[float] = set()
        for episode in group:
            if episode.trajectory(seat) and _trains(episode, seat, own_seats):
                returns.add(episode.reward(seat))
        if len(returns) > 1:
            return True
    return False


def peak_gib(device: torch.device) -> float:
    """Return the peak memory of this process so far, in GiB.

    On a GPU, it is the memory that torch has allocated there, otherwise that of the whole process.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / _BYTES_PER_GIB
    # `ru_maxrss` is in KiB on Linux.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _KIB_PER_GIB


def utilisation(device: torch.device, operations: float, seconds: float) -> dict[str, float]:
    """Return operations per second as a share of the GPU's peak according to its data sheet.

    Args:
        device: Where they were computed.
        operations: Number of floating-point operations.
        seconds: How long they took.

    Returns:
        {"utilisation/learning": share}; empty on a CPU or an unknown GPU.
    """
    if device.type != "cuda":
        return {}
    card = find_card(torch.cuda.get_device_name(device))
    if card is None:
        return {}
    return {"utilisation/learning": operations / seconds / card.operations}


def score_of(
    episode: Episode, setups: Mapping[str, Setup[Any]], own_seats: Sequence[str] = ()
) -> float:
    """Return the score of a game: the figure that `EnvSpec.score` names, or a return.

    Args:
        episode: The game.
        setups: The environments that are played, by the hash of their rules.
        own_seats: Per seat, the run's own adapter, e.g. "player_0@7", if others play, too. The
            score of a game without a common score is then the mean return of the run's own players.
            If empty, it is the return of player 0.
    """
    spec = setups[episode.spec_hash].spec
    if own_seats and not spec.has_common_score:
        seats = range(episode.num_players)
        own = [episode.reward(seat) for seat in seats if is_trained(episode, seat, own_seats)]
        if own:
            return fmean(own)
    return episode.reward(0) if spec.score == "return" else episode.result[spec.score]


def _environment_figures(
    episodes: Sequence[Episode], setups: Mapping[str, Setup[Any]]
) -> dict[str, float]:
    by_env: dict[str, list[Episode]] = {}
    for episode in episodes:
        by_env.setdefault(episode.env, []).append(episode)
    metrics: dict[str, float] = {}
    for env, played in by_env.items():
        setup = setups[played[0].spec_hash]
        prefix = "" if len(by_env) == 1 else f"{env}/"
        for name, value in setup.metrics(played).items():
            metrics[f"{prefix}{name}"] = value
    return metrics


def _rates(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return rates per game, over all seats."""
    statuses = Counter(episode.status for episode in episodes)
    kinds: Counter[ReplyKind] = Counter()
    num_turns = 0
    num_prompt_tokens = 0
    num_reply_tokens = 0
    for episode in episodes:
        num_turns += len(episode.moves)
        for turn in episode.turns:
            kinds[turn.kind] += 1
            num_prompt_tokens += len(turn.prompt_ids)
            num_reply_tokens += len(turn.reply_ids)
    figures = {"reply_tokens": float(num_reply_tokens)}
    if not episodes:
        return figures
    num_games = len(episodes)
    num_truncated = sum(count for status, count in statuses.items() if status.is_truncated)
    return figures | {
        "truncated_per_game": num_truncated / num_games,
        "out_of_tokens_per_game": statuses[EpisodeStatus.TRUNCATED_TOKENS] / num_games,
        "illegal_per_game": kinds[ReplyKind.ILLEGAL] / num_games,
        "unparsable_per_game": kinds[ReplyKind.UNPARSABLE] / num_games,
        "turns_per_game": num_turns / num_games,
        "tokens/prompts_per_game": num_prompt_tokens / num_games,
        "tokens/replies_per_game": num_reply_tokens / num_games,
    }


def _seat_figures(
    episodes: Sequence[Episode],
    seat: int,
    own_seats: Sequence[str],
    reply_limit: int,
    end_id: int | None,
) -> dict[str, float]:
    """Return one seat's figures of training progress, over the games in which it is trained."""
    replies: list[Turn] = []
    returns: list[float] = []
    num_without_turn = 0
    for episode in episodes:
        if seat >= episode.num_players or not _trains(episode, seat, own_seats):
            continue
        trajectory = episode.trajectory(seat)
        replies += trajectory
        if trajectory:
            returns.append(episode.reward(seat))
        else:
            num_without_turn += 1
    figures = {
        "games_without_turn": float(num_without_turn),
        "samples": float(len(returns)),
    }
    if returns:
        figures["reward"] = fmean(returns)
        figures["score/max"] = max(returns)
        figures["score/min"] = min(returns)
    return figures | _reply_figures(replies, reply_limit, end_id)


def _reply_figures(turns: Sequence[Turn], limit: int, end_id: int | None) -> dict[str, float]:
    figures: dict[str, float] = {}
    moves = [turn for turn in turns if not turn.is_call]
    if moves:
        figures["bad_reply_share"] = fmean([turn.kind is not ReplyKind.LEGAL for turn in moves])
        figures["unparsable_share"] = fmean([turn.kind is ReplyKind.UNPARSABLE for turn in moves])
    with_tokens = [turn for turn in turns if turn.reply_ids]
    if not with_tokens:
        return figures
    figures["tokens_per_reply"] = fmean([len(turn.reply_ids) for turn in with_tokens])
    logprobs: list[float] = []
    cuts: list[bool] = []
    for turn in with_tokens:
        logprobs.extend(turn.logprobs)
        is_full = len(turn.reply_ids) >= limit
        cuts.append(is_full and turn.reply_ids[-1] != end_id)
    figures["entropy_estimate"] = -fmean(logprobs)
    if limit:
        figures["cut_share"] = fmean(cuts)
    return figures


def _scores_by_partner(
    episodes: Sequence[Episode],
    setups: Mapping[str, Setup[Any]],
    own_seats: Sequence[str],
    partners: Mapping[str, str],
) -> dict[str, float]:
    """Return scores and numbers of games of self-play and with each partner.

    There is no score where the number of games is 0. In a game without a common score, the score is
    the return of the run's own players, in whichever seat, if a partner plays, and the return of
    player 0 in self-play.
    """
    scores: dict[str, list[float]] = {"self_play": []}
    for name in partners.values():
        scores[f"partners/{name}"] = []
    for episode in episodes:
        names: set[str] = set()
        for seat, reference in enumerate(episode.seats):
            if not _trains(episode, seat, own_seats):
                names.add(f"partners/{partners.get(reference, reference)}")
        score = score_of(episode, setups, own_seats if names else ())
        for name in sorted(names) or ["self_play"]:
            scores.setdefault(name, []).append(score)
    figures: dict[str, float] = {}
    for name, values in scores.items():
        figures[f"{name}/games"] = float(len(values))
        if values:
            figures[f"{name}/score"] = fmean(values)
    return figures


def _is_all_bad(episode: Episode, own_seats: Sequence[str]) -> bool:
    """Tell whether a game has replies of trained seats, none of which is legal."""
    turns = [turn for turn in episode.moves if _trains(episode, turn.player, own_seats)]
    return bool(turns) and all(turn.kind is not ReplyKind.LEGAL for turn in turns)


def _trains(episode: Episode, seat: int, own_seats: Sequence[str]) -> bool:
    return not own_seats or is_trained(episode, seat, own_seats)


def _score_share(score: float, spec: EnvSpec) -> float | None:
    """Return score / greatest score, so that scores of different boards can be averaged.

    Where no score is positive, the share is counted from the least score, since a quotient would
    grow with worse play. None: all games of the board score the same.
    """
    least, greatest = spec.score_range
    if greatest > 0:
        return score / greatest
    if greatest > least:
        return (score - least) / (greatest - least)
    return None


def _start_clusters(
    episodes: Sequence[Episode], setups: Mapping[str, Setup[Any]]
) -> NDArray[np.int64]:
    """Return for each game the number of its start, counted from 0 in order of appearance.

    If all tasks have the same start, they are numbered instead, as draws of that start.
    """
    seeds_by_suite: dict[tuple[str, str], dict[int, None]] = {}
    for episode in episodes:
        seeds = seeds_by_suite.setdefault((episode.spec_hash, episode.suite), {})
        seeds[episode.seed] = None
    start_of_task: dict[tuple[str, str, int], tuple[str, str, int]] = {}
    for (spec_hash, suite), seeds in seeds_by_suite.items():
        starts = start_numbers(setups[spec_hash], suite, tuple(seeds))
        for seed, start in zip(seeds, starts, strict=True):
            start_of_task[spec_hash, suite, seed] = (spec_hash, suite, start)
    has_one_start = len(set(start_of_task.values())) == 1
    numbers: dict[tuple[str, str, int], int] = {}
    clusters = []
    for episode in episodes:
        task = (episode.spec_hash, episode.suite, episode.seed)
        cluster = task if has_one_start else start_of_task[task]
        clusters.append(numbers.setdefault(cluster, len(numbers)))
    return np.asarray(clusters, dtype=np.int64)
