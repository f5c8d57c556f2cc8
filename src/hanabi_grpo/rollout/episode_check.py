"""What must hold of every game before anything is learned from it: finite numbers, ids that the model has."""

import math

from hanabi_grpo.errors import NonFiniteError, ServerError
from hanabi_grpo.types import Episode, Reply, Turn, player_name


def check_episode(episode: Episode, *, vocab_size: int | None) -> None:
    """Refuse a game whose numbers cannot be trained on.

    Args:
        episode: The game.
        vocab_size: Rows of the model's token embedding; None leaves the upper bound of ids unchecked.

    Raises:
        NonFiniteError: A reward, a player's return or a logprob is infinite or no number.
        ServerError: A token id that the model does not have, or logprobs that are not one for each reply id.
    """
    for index, turn in enumerate(episode.turns):
        where = f"{player_name(turn.player)}, turn {index}"
        for part, reward in turn.rewards.items():
            if not math.isfinite(reward):
                raise NonFiniteError(f"{where}: reward {part}={reward}; a reward must be finite.")
        check_sampled(turn, where, vocab_size)
    for player in range(episode.num_players):
        value = episode.reward(player)
        if not math.isfinite(value):
            raise NonFiniteError(
                f"{player_name(player)}: its return over the game is {value}; a return must be finite. "
                "Use smaller reward weights (reward_* in the dataset's env_config)."
            )


def check_sampled(turn: Turn | Reply, where: str, vocab_size: int | None) -> None:
    """Refuse ids and logprobs that cannot be trained on, of a turn or of a reply outside any game.

    Raises:
        NonFiniteError: A logprob is infinite or no number.
        ServerError: A token id that the model does not have, or logprobs that are not one for each reply id.
    """
    if len(turn.logprobs) != len(turn.reply_ids):
        raise ServerError(
            f"{where}: {len(turn.logprobs)} logprobs for {len(turn.reply_ids)} reply ids; each id needs its own. "
            "Ask the sampler for the logprob of every sampled token."
        )
    for place, value in enumerate(turn.logprobs):
        if not math.isfinite(value):
            raise NonFiniteError(
                f"{where}: logprob {place} of its reply is {value}; a logprob must be finite. "
                "Do the adapter and the base model hold finite weights?"
            )
    for name, ids in (("prompt", turn.prompt_ids), ("reply", turn.reply_ids)):
        for token in ids:
            if token < 0 or (vocab_size is not None and token >= vocab_size):
                raise ServerError(
                    f"{where}: {name} id {token}; allowed are 0 to {'…' if vocab_size is None else vocab_size - 1}. "
                    "Do tokenizer and model belong together?"
                )
