"""Scores by board, against blind play of the same deals."""

from collections.abc import Sequence

from hanabi_grpo.envs.hanabi.dynamics.played import PlayedGame, board_of
from hanabi_grpo.envs.hanabi.policies import BlindPolicy, play_scripted
from hanabi_grpo.types import Episode


def board_figures(episodes: Sequence[Episode], games: Sequence[PlayedGame]) -> dict[str, float]:
    """Return scores by board.

    - `games/<board>`, `score/<board>`: number of games and mean score on each board.
    - `score/normalized`: mean of score / most points that the board allows (`GameSpec.reachable_max`), so that boards
      can be averaged; of games on boards that this version knows.
    - `blind/<board>`: mean score of blind play (always the oldest card) on the deals of the self-play games, each as
      often as it was played.
    - `over_blind/<board>`: mean of (score of a self-play game - score of blind play on its deal). Common deals take
      most of the luck out of the difference.

    Args:
        episodes: Of any kind.
        games: Those that could be replayed; only self-play is compared with blind play.
    """
    scores: dict[str, list[int]] = {}
    shares = []
    for episode in episodes:
        scores.setdefault(episode.preset, []).append(episode.score)
        board = board_of(episode.preset, episode.num_players, episode.spec_hash)
        if board is not None:
            shares.append(episode.score / board.reachable_max)
    figures = {f"games/{board}": float(len(values)) for board, values in scores.items()}
    figures |= {f"score/{board}": sum(values) / len(values) for board, values in scores.items()}
    if shares:
        figures["score/normalized"] = sum(shares) / len(shares)
    blind_scores: dict[tuple[str, int, str, int], int] = {}
    pairs: dict[str, list[tuple[int, int]]] = {}
    for game in games:
        if not game.is_self_play:
            continue
        episode, spec = game.episode, game.spec
        deal = (episode.preset, episode.num_players, episode.suite, episode.seed)
        if deal not in blind_scores:
            team = [BlindPolicy()] * spec.num_players
            blind_scores[deal] = play_scripted(spec, team, suite=episode.suite, seed=episode.seed).score
        pairs.setdefault(episode.preset, []).append((episode.score, blind_scores[deal]))
    for name, both in pairs.items():
        figures[f"blind/{name}"] = sum(blind for _, blind in both) / len(both)
        figures[f"over_blind/{name}"] = sum(score - blind for score, blind in both) / len(both)
    return figures
