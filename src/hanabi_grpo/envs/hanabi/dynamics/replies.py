"""Length and form of replies."""

from collections.abc import Sequence

from hanabi_grpo.types import Episode, ReplyKind, Turn, is_trained, player_name


def reply_figures(
    episodes: Sequence[Episode], own: Sequence[str], *, reply_limit: int = 0, end_id: int | None = None
) -> dict[str, float]:
    """Return the form of each trained player's replies.

    Per player, of its turns:

    - `bad_reply_share` = replies that were illegal or unparsable / replies.
    - `unparsable_share` = replies in which no move could be read / replies.
    - `tokens_per_reply` = sampled tokens / replies with tokens; the token that ends a reply counts.
    - `cut_share` = replies with tokens that have `reply_limit` of them and do not end with `end_id`, as a share; absent
      without a limit.

    Args:
        episodes: Games.
        own: Words of the trained seats, see `partners.own_seats`; empty: all seats are.
        reply_limit: Most tokens of one reply; 0: unknown.
        end_id: The token that ends a reply; None: every reply of the greatest length counts as cut.
    """
    figures = {}
    for player in range(max((episode.num_players for episode in episodes), default=0)):
        turns = [
            turn
            for episode in episodes
            if player < episode.num_players and (not own or is_trained(episode, player, own))
            for turn in episode.trajectory(player)
        ]
        if not turns:
            continue
        name = player_name(player)
        figures[f"{name}/bad_reply_share"] = sum(turn.kind is not ReplyKind.LEGAL for turn in turns) / len(turns)
        figures[f"{name}/unparsable_share"] = sum(turn.kind is ReplyKind.UNPARSABLE for turn in turns) / len(turns)
        said = [turn for turn in turns if turn.reply_ids]
        if not said:
            continue
        figures[f"{name}/tokens_per_reply"] = sum(len(turn.reply_ids) for turn in said) / len(said)
        if reply_limit:
            figures[f"{name}/cut_share"] = sum(_is_cut(turn, reply_limit, end_id) for turn in said) / len(said)
    return figures


def _is_cut(turn: Turn, reply_limit: int, end_id: int | None) -> bool:
    return len(turn.reply_ids) >= reply_limit and turn.reply_ids[-1] != end_id
