"""Numbers of one step, from its games."""

import resource
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.settings.gpus import find_card
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, Turn, is_trained, player_name


def episode_metrics(
    groups: Sequence[Sequence[Episode]],
    setups: Mapping[str, Setup[Any]],
    *,
    games_dropped: int = 0,
    groups_dropped: int = 0,
    own: Sequence[str] = (),
    partners: Mapping[str, str] | None = None,
    reply_limit: int = 0,
    end_id: int | None = None,
) -> dict[str, float]:
    """Return the step's figures: scores, what went wrong, per player its own, and what the
    environment adds.

    The score of a game is the figure that `EnvSpec.score` names, or player 0's return; `score/se`
    is its standard error over all games, `score/normalized` the mean of score / greatest score.
    Rates are per game; `entropy_estimate` is the mean of −logprob over sampled tokens, in nats.
    Figures of `Environment.metrics` have the name of the environment before them where a step has
    several. `tokens/prompts_per_game` and `tokens/replies_per_game` are what the players'
    conversations hold: with HANABI_MEMORY=game each token once, else once for each turn that still
    sees it.

    A figure that the games do not determine is absent. Scores and rates are of all games and all
    seats; what says how training goes (a player's reward, replies and games without a turn,
    zero-variance groups, games whose replies were all bad) is of the trained seats alone.

    Args: groups: Per task its games. setups: What is played, by the hash of its rules.
        games_dropped: Games that are in no group. groups_dropped: Tasks that were left out because
        too few of their games remained. own: Words of the trained seats, see `partners.own_seats`;
        empty: all seats are. partners: The name of each partner by the word of its seat. Scores
        with each are then told apart. reply_limit: Most tokens of one reply; 0: no reply counts as
        cut. end_id: The token that ends a reply; None: every reply of the greatest length counts as
        cut.
    """
    episodes = [episode for group in groups for episode in group]
    turns = [turn for episode in episodes for turn in episode.turns]
    metrics = _environment_figures(episodes, setups) | score_figures(episodes, setups)
    metrics |= {
        "games": float(len(episodes)),
        "games_dropped": float(games_dropped),
        "groups_dropped": float(groups_dropped),
        "games_all_bad": float(sum(_is_all_bad(episode, own) for episode in episodes)),
        "groups_without_spread": float(sum(not has_spread(group, own) for group in groups)),
        "reply_tokens": float(sum(len(turn.reply_ids) for turn in turns)),
    }
    if groups:
        metrics["flat_group_share"] = metrics["groups_without_spread"] / len(groups)
    if episodes:
        metrics |= {
            "truncated_per_game": fmean([one.status.is_truncated for one in episodes]),
            "out_of_tokens_per_game": fmean(
                [one.status is EpisodeStatus.TRUNCATED_TOKENS for one in episodes]
            ),
            "illegal_per_game": sum(turn.kind is ReplyKind.ILLEGAL for turn in turns)
            / len(episodes),
            "unparsable_per_game": sum(turn.kind is ReplyKind.UNPARSABLE for turn in turns)
            / len(episodes),
            "turns_per_game": len(turns) / len(episodes),
            "tokens/prompts_per_game": sum(len(turn.prompt_ids) for turn in turns) / len(episodes),
            "tokens/replies_per_game": metrics["reply_tokens"] / len(episodes),
        }
    if partners is not None:
        metrics |= _scores_by_partner(episodes, setups, own, partners)
    for player in range(max((episode.num_players for episode in episodes), default=0)):
        trained = [
            one for one in episodes if player < one.num_players and _trains(one, player, own)
        ]
        replies = [turn for one in trained for turn in one.trajectory(player)]
        returns = [episode.reward(player) for episode in trained if episode.trajectory(player)]
        found = {"games_without_turn": float(len(trained) - len(returns))}
        found |= {"reward": fmean(returns)} if returns else {}
        found |= _reply_figures(replies, reply_limit, end_id)
        metrics |= {f"{player_name(player)}/{name}": value for name, value in found.items()}
    return metrics


def _score(episode: Episode, setups: Mapping[str, Setup[Any]]) -> float:
    name = setups[episode.spec_hash].spec.score
    return episode.reward(0) if name == "return" else episode.result[name]


def score_figures(
    episodes: Sequence[Episode], setups: Mapping[str, Setup[Any]]
) -> dict[str, float]:
    """Return the scores of some games: their mean and its standard error, per preset, and as shares
    of the greatest.
    """
    scores, shares = [_score(episode, setups) for episode in episodes], []
    by_preset: dict[str, list[float]] = {}
    for episode, score in zip(episodes, scores, strict=True):
        by_preset.setdefault(episode.preset, []).append(score)
        spec = setups[episode.spec_hash].spec
        if greatest := spec.return_range[1] if spec.max_score is None else spec.max_score:
            shares.append(score / greatest)
    figures = {f"games/{preset}": float(len(values)) for preset, values in by_preset.items()}
    figures |= {f"score/{preset}": fmean(values) for preset, values in by_preset.items()}
    figures |= {"score/normalized": fmean(shares)} if shares else {}
    figures |= {"score/mean": fmean(scores)} if scores else {}
    figures |= {"score/se": _standard_error(scores)} if len(scores) > 1 else {}
    if len({episode.spec_hash for episode in episodes}) > 1 and len(shares) > 1:
        figures["score/normalized_se"] = _standard_error(shares)
    return figures


def _environment_figures(
    episodes: Sequence[Episode], setups: Mapping[str, Setup[Any]]
) -> dict[str, float]:
    by_env: dict[str, list[Episode]] = {}
    for episode in episodes:
        by_env.setdefault(episode.env, []).append(episode)
    found: dict[str, float] = {}
    for env, played in by_env.items():
        setup = setups[played[0].spec_hash]
        figures = setup.environment.metrics(setup.config, played)
        found |= (
            figures
            if len(by_env) == 1
            else {f"{env}/{name}": value for name, value in figures.items()}
        )
    return found


def _reply_figures(turns: Sequence[Turn], limit: int, end_id: int | None) -> dict[str, float]:
    figures = {}
    if turns:
        figures["bad_reply_share"] = fmean([turn.kind is not ReplyKind.LEGAL for turn in turns])
        figures["unparsable_share"] = fmean([turn.kind is ReplyKind.UNPARSABLE for turn in turns])
    if said := [turn for turn in turns if turn.reply_ids]:
        figures["tokens_per_reply"] = fmean([len(turn.reply_ids) for turn in said])
        figures["entropy_estimate"] = -fmean([value for turn in said for value in turn.logprobs])
        if limit:
            figures["cut_share"] = fmean(
                [len(one.reply_ids) >= limit and one.reply_ids[-1] != end_id for one in said]
            )
    return figures


def _scores_by_partner(
    episodes: Sequence[Episode],
    setups: Mapping[str, Setup[Any]],
    own: Sequence[str],
    partners: Mapping[str, str],
) -> dict[str, float]:
    scores: dict[str, list[float]] = {
        "self_play": [],
        **{f"partners/{name}": [] for name in partners.values()},
    }
    for episode in episodes:
        others = [
            seat for player, seat in enumerate(episode.seats) if not _trains(episode, player, own)
        ]
        names = [f"partners/{partners.get(seat, seat)}" for seat in others] or ["self_play"]
        for name in dict.fromkeys(names):
            scores.setdefault(name, []).append(_score(episode, setups))
    found = {f"{name}/games": float(len(values)) for name, values in scores.items()}
    return found | {f"{name}/score": fmean(values) for name, values in scores.items() if values}


def _standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) / len(values) ** 0.5


def _trains(episode: Episode, player: int, own: Sequence[str]) -> bool:
    return not own or is_trained(episode, player, own)


def _is_all_bad(episode: Episode, own: Sequence[str]) -> bool:
    turns = [turn for turn in episode.turns if _trains(episode, turn.player, own)]
    return bool(turns) and all(turn.kind is not ReplyKind.LEGAL for turn in turns)


def peak_gib(device: torch.device) -> float:
    """Return the most memory that this process has held so far, in GiB: what torch had on a GPU,
    else all of it.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    # In KiB on Linux.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def utilisation(device: torch.device, operations: float, seconds: float) -> dict[str, float]:
    """Return `operations` a second as a share of what the GPU's data sheet says; nothing on a CPU
    or an unknown GPU.
    """
    card = find_card(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return {"utilisation/learning": operations / seconds / card.operations} if card else {}


def has_spread(group: Sequence[Episode], own: Sequence[str]) -> bool:
    """Tell whether the games of a group differ in what any player earned whose seat is trained;
    `own` as above.
    """
    for player in range(max((episode.num_players for episode in group), default=0)):
        playing = [one for one in group if one.trajectory(player) and _trains(one, player, own)]
        if len({episode.reward(player) for episode in playing}) > 1:
            return True
    return False
