"""Numbers of one step, from its games, and what they warn of."""

from collections.abc import Mapping, Sequence

from hanabi_grpo.envs.hanabi.dynamics import dynamics_figures
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, is_trained, player_name

ALL_BAD_SHARE = 0.5
"""Share of games without a single legal reply from which on a step warns."""


def episode_metrics(
    groups: Sequence[Sequence[Episode]],
    *,
    games_dropped: int = 0,
    groups_dropped: int = 0,
    own: Sequence[str] = (),
    partners: Mapping[str, str] | None = None,
    reply_limit: int = 0,
    end_id: int | None = None,
) -> dict[str, float]:
    """Return the step's figures: scores, what went wrong, how the team plays, and per player its own.

    `score/mean` is OpenSpiel's scoring (0 on a bomb), `score_kept/mean` the points on the table; rates are per game
    unless named otherwise; `entropy_estimate` is the mean of −logprob over sampled tokens, in nats. A figure that the
    games do not determine is absent: every mean of a step without games, the error of a single game, the reward of a
    player without a turn. Counts are always there.

    Scores and rates are of all games and all seats. What says how training goes (a player's reward, entropy and games
    without a turn, zero-variance groups, games whose replies were all bad) is of the trained seats alone. How play
    changes (kinds of moves, hints, form of replies, blind play) is described in `dynamics`.

    Args:
        groups: Per deal its games.
        games_dropped: Games that were dropped and are in no group.
        groups_dropped: Deals that were left out because too few of their games remained.
        own: Words of the trained seats, see `partners.own_seats`; empty: all seats are.
        partners: For a run with partners: the word of a partner's seat to its name. Scores of self-play and with each
            partner are then told apart.
        reply_limit: Most tokens of one reply; 0: unknown, and no reply counts as cut.
        end_id: The token that ends a reply.
    """
    episodes = [episode for group in groups for episode in group]
    turns = [turn for episode in episodes for turn in episode.turns]
    metrics = {
        "games": float(len(episodes)),
        "games_dropped": float(games_dropped),
        "groups_dropped": float(groups_dropped),
        "games_all_bad": float(sum(_is_all_bad(episode, own) for episode in episodes)),
        "groups_without_spread": float(sum(not _has_spread(group, own) for group in groups)),
        "reply_tokens": float(sum(len(turn.reply_ids) for turn in turns)),
    }
    if groups:
        metrics["flat_group_share"] = metrics["groups_without_spread"] / len(groups)
    if episodes:
        metrics |= _means(episodes)
        metrics |= dynamics_figures(groups, own, reply_limit=reply_limit, end_id=end_id)
    if partners is not None:
        metrics |= _scores_by_partner(episodes, own, partners)
    for player in range(max((episode.num_players for episode in episodes), default=0)):
        trained = [episode for episode in episodes if _trains(episode, player, own)]
        logprobs = [value for episode in trained for turn in episode.trajectory(player) for value in turn.logprobs]
        returns = [episode.reward(player) for episode in trained if episode.trajectory(player)]
        name = player_name(player)
        metrics[f"{name}/games_without_turn"] = float(len(trained) - len(returns))
        if returns:
            metrics[f"{name}/reward"] = sum(returns) / len(returns)
        if logprobs:
            metrics[f"{name}/entropy_estimate"] = -sum(logprobs) / len(logprobs)
    return metrics


def step_warnings(metrics: Mapping[str, float], num_groups: int) -> list[str]:
    """Return one sentence for each thing that makes a step teach less than it seems to.

    Args:
        metrics: Of `episode_metrics`.
        num_groups: Groups that are trained on.
    """
    games = int(metrics["games"])
    dropped, groups_dropped = int(metrics["games_dropped"]), int(metrics["groups_dropped"])
    all_bad, flat = int(metrics["games_all_bad"]), int(metrics["groups_without_spread"])
    found = []
    if dropped or groups_dropped:
        found.append(
            f"{dropped} game(s) and {groups_dropped} whole group(s) were dropped; this step has {games} game(s) in "
            f"{num_groups} group(s)."
        )
    if games and all_bad >= ALL_BAD_SHARE * games:
        found.append(
            f"all replies were illegal or unparsable in {all_bad} of {games} games; look at the newest file in "
            "episodes/, and compare the prompt's format with what the model was trained on."
        )
    if games and not any(name.endswith("/reward") for name in metrics):
        found.append(
            f"no trained player had a turn in any of {games} games, so nothing moves in this step; does a partner end "
            "them on its first move?"
        )
    elif num_groups and flat >= num_groups:
        found.append(
            f"every group has zero variance in rewards ({num_groups} of {num_groups}): comparing their games teaches "
            "nothing in this step; a higher TEMPERATURE or an easier board gives games that differ."
        )
    return found


def _means(episodes: Sequence[Episode]) -> dict[str, float]:
    num_games = len(episodes)
    scores = [episode.score for episode in episodes]
    mean = sum(scores) / num_games
    turns = [turn for episode in episodes for turn in episode.turns]
    means = {
        "score/mean": mean,
        "score_kept/mean": sum(episode.score_kept for episode in episodes) / num_games,
        "bombs_per_game": sum(episode.result["bombed"] for episode in episodes) / num_games,
        "truncated_per_game": sum(episode.status.is_truncated for episode in episodes) / num_games,
        "out_of_tokens_per_game": sum(one.status is EpisodeStatus.TRUNCATED_TOKENS for one in episodes) / num_games,
        "illegal_per_game": sum(turn.kind is ReplyKind.ILLEGAL for turn in turns) / num_games,
        "unparsable_per_game": sum(turn.kind is ReplyKind.UNPARSABLE for turn in turns) / num_games,
        "hints_per_game": sum(turn.action.startswith("Hint") for turn in turns) / num_games,
        "turns_per_game": len(turns) / num_games,
    }
    if num_games > 1:
        spread = (sum((score - mean) ** 2 for score in scores) / (num_games - 1)) ** 0.5
        means["score/se"] = spread / num_games**0.5
    return means


def _scores_by_partner(
    episodes: Sequence[Episode], own: Sequence[str], partners: Mapping[str, str]
) -> dict[str, float]:
    """Return `self_play/score`, `partners/<name>/score`, and the games behind each; without a game only the latter."""
    scores: dict[str, list[int]] = {"self_play": [], **{f"partners/{name}": [] for name in partners.values()}}
    for episode in episodes:
        others = [seat for player, seat in enumerate(episode.seats) if not _trains(episode, player, own)]
        names = [f"partners/{partners.get(seat, seat)}" for seat in others] or ["self_play"]
        for name in dict.fromkeys(names):
            scores.setdefault(name, []).append(episode.score)
    found = {f"{name}/games": float(len(values)) for name, values in scores.items()}
    return found | {f"{name}/score": sum(values) / len(values) for name, values in scores.items() if values}


def _trains(episode: Episode, player: int, own: Sequence[str]) -> bool:
    return not own or is_trained(episode, player, own)


def _is_all_bad(episode: Episode, own: Sequence[str]) -> bool:
    turns = [turn for turn in episode.turns if _trains(episode, turn.player, own)]
    return bool(turns) and all(turn.kind is not ReplyKind.LEGAL for turn in turns)


def _has_spread(group: Sequence[Episode], own: Sequence[str]) -> bool:
    """Return whether the games of a deal differ in any trained player's return; only games with a turn of it count."""
    for player in range(max((episode.num_players for episode in group), default=0)):
        playing = [one for one in group if one.trajectory(player) and _trains(one, player, own)]
        if len({episode.reward(player) for episode in playing}) > 1:
            return True
    return False
