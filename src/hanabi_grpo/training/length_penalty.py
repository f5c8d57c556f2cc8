"""What long replies cost."""

from dataclasses import replace

from hanabi_grpo.types import Episode, Turn


def with_length_penalty(episode: Episode, *, per_token: float, free: int) -> Episode:
    """Return a game in which long replies cost their mover something: the part "length" of a turn's rewards.

    It is −per_token × (tokens of the reply − free) for a turn with more than `free` sampled tokens, closing tokens
    included. The trainer adds it, since games are played in text.
    """
    if not per_token or all(len(turn.reply_ids) <= free for turn in episode.turns):
        return episode

    def priced(turn: Turn) -> Turn:
        beyond = len(turn.reply_ids) - free
        if beyond <= 0:
            return turn
        rewards = list(turn.rewards)
        rewards[turn.player] = {**rewards[turn.player], "length": -per_token * beyond}
        return replace(turn, rewards=tuple(rewards))

    return replace(episode, turns=tuple(map(priced, episode.turns)))
