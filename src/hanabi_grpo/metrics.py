"""Numbers of one step, from its games."""

from collections.abc import Sequence

from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, player_name


def episode_metrics(groups: Sequence[Sequence[Episode]]) -> dict[str, float]:
    """Return the step's figures: scores, what went wrong, how the team plays, and per player its own.

    `score/mean` is OpenSpiel's scoring (0 on a bomb), `score_kept/mean` the points on the table; rates are per game
    unless named otherwise; `entropy_estimate` is the mean of −logprob over sampled tokens, in nats.
    """
    episodes = [episode for group in groups for episode in group]
    num_games = len(episodes)
    scores = [episode.score for episode in episodes]
    mean = sum(scores) / num_games
    spread = (sum((score - mean) ** 2 for score in scores) / max(num_games - 1, 1)) ** 0.5
    turns = [turn for episode in episodes for turn in episode.turns]
    metrics = {
        "score/mean": mean,
        "score/se": spread / num_games**0.5,
        "score_kept/mean": sum(episode.score_kept for episode in episodes) / num_games,
        "bombs_per_game": sum(episode.status is EpisodeStatus.BOMBED for episode in episodes) / num_games,
        "truncated_per_game": sum(episode.status.is_truncated for episode in episodes) / num_games,
        "illegal_per_game": sum(turn.kind is ReplyKind.ILLEGAL for turn in turns) / num_games,
        "unparsable_per_game": sum(turn.kind is ReplyKind.UNPARSABLE for turn in turns) / num_games,
        "hints_per_game": sum(turn.action.startswith("Hint") for turn in turns) / num_games,
        "turns_per_game": len(turns) / num_games,
        "reply_tokens": float(sum(len(turn.reply_ids) for turn in turns)),
        "groups_without_spread": float(sum(len({episode.score for episode in group}) == 1 for group in groups)),
    }
    for player in range(max(episode.num_players for episode in episodes)):
        own = [turn for turn in turns if turn.player == player]
        logprobs = [value for turn in own for value in turn.logprobs]
        returns = [episode.reward(player) for episode in episodes if episode.trajectory(player)]
        name = player_name(player)
        metrics[f"{name}/reward"] = sum(returns) / max(len(returns), 1)
        metrics[f"{name}/entropy_estimate"] = -sum(logprobs) / max(len(logprobs), 1)
        metrics[f"{name}/games_without_turn"] = float(num_games - len(returns))
    return metrics
