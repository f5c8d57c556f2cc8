"""Episodes in, micro-batches out. Each micro-batch holds one player's trajectories and uses only its adapter.

One sequence per game and player: the tokens that the server sampled, in the order in which it saw them, with the
loss on the replies. A seat that a partner holds has no sequence, whether its turns have tokens or not. Every rank
computes the same plan from the same episodes, so that all ranks work on the same player at the same micro-step, which
DeepSpeed's collectives need.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from swift.rl_core.data import GRPOBatch

from hanabi_grpo.advantages import Estimator
from hanabi_grpo.episode_check import check_episode
from hanabi_grpo.errors import NonFiniteError, ServerError
from hanabi_grpo.partners import is_trained
from hanabi_grpo.types import DroppedGame, Episode, player_name

_MAX_REASONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One player's trajectory as aligned columns, all of the same length."""

    ids: list[int]
    mask: list[bool]
    """True on reply tokens."""
    logprobs: list[float]
    """The sampler's, on reply tokens; 0 elsewhere."""
    advantages: list[float]


@dataclass
class PlayerBatch(GRPOBatch):
    """ms-swift's batch, and whose it is."""

    player: str = ""


def usable_groups(
    groups: Sequence[Sequence[Episode]], dropped: Sequence[DroppedGame], *, min_games: int = 2
) -> tuple[list[list[Episode]], list[str]]:
    """Return the groups that can be trained on, and a sentence for each deal that lost games.

    Every rank computes the same from the same arguments.

    Args:
        groups: Per deal the games that were played.
        dropped: The games that the server gave up.
        min_games: A group with fewer games has no baseline and is left out.
    """
    reasons: dict[str, list[str]] = defaultdict(list)
    for one in dropped:
        reasons[f"{one.suite}/{one.seed}"].append(f"game {one.game}: {one.reason}")
    left: dict[str, int] = dict.fromkeys(reasons, 0)
    kept_groups: list[list[Episode]] = []
    left_out: set[str] = set()
    for group in groups:
        kept = []
        for episode in group:
            name = f"{episode.suite}/{episode.seed}"
            left.setdefault(name, 0)
            try:
                check_episode(episode, vocab_size=None)
            except (NonFiniteError, ServerError) as error:
                reasons[name].append(f"game {episode.game}: {error}")
            else:
                left[name] += 1
                kept.append(episode)
        if len(kept) >= min_games:
            kept_groups.append(kept)
        elif group:
            left_out.add(f"{group[0].suite}/{group[0].seed}")
    sentences = []
    for name, count in left.items():
        why = reasons[name]
        if why:
            shown = "; ".join(why[:_MAX_REASONS]) + ("; …" if len(why) > _MAX_REASONS else "")
            sentence = f"deal {name}: {len(why)} of {count + len(why)} games dropped ({shown})"
        elif name in left_out:
            sentence = f"deal {name}: {count} game(s) played"
        else:
            continue
        too_few = name in left_out or count < min_games
        sentences.append(f"{sentence}; a group needs {min_games}, so it is left out." if too_few else f"{sentence}.")
    return kept_groups, sentences


def players_with_data(groups: Sequence[Sequence[Episode]], own: Sequence[str]) -> set[str]:
    """Return the players that are trained on something of any game, e.g. {"player_0"}; the same on every rank.

    A rank's own share of a step may lack a player whose games all went to the other ranks.

    Args:
        groups: Per deal its games.
        own: Words of the seats that are trained, see `partners.own_seats`.
    """
    return {
        player_name(turn.player)
        for group in groups
        for episode in group
        for turn in episode.turns
        if turn.reply_ids and is_trained(episode, turn.player, own)
    }


def sequences_of(
    groups: Sequence[Sequence[Episode]], player: int, estimator: Estimator, own: Sequence[str]
) -> list[TokenRow]:
    """Return a player's sequences over all groups.

    Games in which it had no turn, or a partner its seat, are left out, of the baseline as well.

    Args:
        groups: Per deal its games.
        player: Number of the seat.
        estimator: Of the advantages.
        own: Words of the seats that are trained, see `partners.own_seats`.

    Raises:
        NonFiniteError: An advantage that is infinite or no number; rewards may be finite and too large to compare.
    """
    found = []
    for group in groups:
        episodes = [episode for episode in group if is_trained(episode, player, own)]
        for episode, values in zip(episodes, estimator(episodes, player), strict=True):
            if not all(map(math.isfinite, values)):
                raise NonFiniteError(
                    f"{player_name(player)}, deal {episode.suite}/{episode.seed}, game {episode.game}: advantages "
                    f"{values}; they must be finite. Use smaller reward weights (reward_* in the dataset's env_config)."
                )
            ids: list[int] = []
            mask: list[bool] = []
            logprobs: list[float] = []
            advantages: list[float] = []
            for turn, value in zip(episode.trajectory(player), values, strict=True):
                skipped, said = len(turn.prompt_ids), len(turn.reply_ids)
                ids += [*turn.prompt_ids, *turn.reply_ids]
                mask += [False] * skipped + [True] * said
                logprobs += [0.0] * skipped + [*turn.logprobs]
                advantages += [0.0] * skipped + [value] * said
            if any(mask):
                found.append(TokenRow(ids=ids, mask=mask, logprobs=logprobs, advantages=advantages))
    return found


def plan_batches(
    groups: Sequence[Sequence[Episode]],
    *,
    own: Sequence[str],
    micro_batches_per_player: int,
    rank: int,
    world_size: int,
    estimator: Estimator,
    pad_id: int,
    device: torch.device,
) -> list[dict[str, Any]]:
    """Return this rank's micro-batches of one step, `micro_batches_per_player` of each player in `own`.

    Sequences are sorted by length before they are cut into micro-batches, so that little is padded, and dealt to
    the ranks in turn. A share that holds nothing becomes one row without loss, so that no rank waits for another.
    """
    batches: list[dict[str, Any]] = []
    for player in range(len(own)):
        sequences = sorted(sequences_of(groups, player, estimator, own), key=lambda one: -len(one.ids))
        num_tokens = max(sum(sum(one.mask) for one in sequences), 1)
        for number in range(micro_batches_per_player):
            start = len(sequences) * number // micro_batches_per_player
            end = len(sequences) * (number + 1) // micro_batches_per_player
            batches.append(
                _collate(sequences[start:end][rank::world_size], player_name(player), num_tokens, pad_id, device)
            )
    return batches


def _collate(rows: list[TokenRow], player: str, num_tokens: int, pad_id: int, device: torch.device) -> dict[str, Any]:
    nothing = TokenRow(ids=[pad_id, pad_id], mask=[False, False], logprobs=[0.0, 0.0], advantages=[0.0, 0.0])
    rows = rows or [nothing]
    width = max(len(row.ids) for row in rows)

    def column(values: Iterable[Sequence[float]], fill: float, dtype: torch.dtype) -> torch.Tensor:
        padded = [[*row, *[fill] * (width - len(row))] for row in values]
        return torch.tensor(padded, dtype=dtype, device=device)

    ids = column((row.ids for row in rows), pad_id, torch.long)
    attention = column(([1] * len(row.ids) for row in rows), 0, torch.long)
    # Position t of these holds the token at t + 1: the first token of a sequence is never predicted.
    mask = column((row.mask for row in rows), False, torch.bool)[:, 1:]
    return {
        "model_inputs": {"input_ids": ids, "attention_mask": attention},
        "grpo_batch": PlayerBatch(
            completion_mask=mask,
            truncated_mask=torch.zeros(len(rows), dtype=torch.bool, device=device),
            seq_lengths=attention.sum(1),
            rollout_per_token_logps=column((row.logprobs for row in rows), 0.0, torch.float32)[:, 1:],
            advantages=column((row.advantages for row in rows), 0.0, torch.float32)[:, 1:],
            # The loss divides by this player's tokens of the whole step, so that neither the cut into
            # micro-batches nor another player's data changes its gradient.
            num_items_in_batch=torch.tensor(num_tokens, device=device),
            logits_to_keep=width - 1,
            player=player,
        ),
    }
