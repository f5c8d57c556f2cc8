"""How a game ended, as told to the person in a seat."""

from hanabi_grpo.envs.base import EnvSpec
from hanabi_grpo.types import REPLY_PARTS, Episode, player_name


def outcome(spec: EnvSpec, episode: Episode, player: int) -> str:
    """Return how a game ended for a person, in a sentence or two.

    Args:
        spec: Spec of the game.
        episode: The finished episode.
        player: The person's seat.

    Example:
        "Your team scored 3 of 4." or "You won 2; player_1 lost 2."
    """
    sentences = []
    if episode.status.is_truncated:
        sentences.append(f"The game was ended by its limit ({episode.status}).")
    own = _game_return(episode, player)
    if spec.payoff == "zero_sum":
        sentences.append(_zero_sum_text(episode, player, own))
    elif spec.has_common_score:
        value = own if spec.score == "return" else episode.result.get(spec.score, 0.0)
        who = "You" if episode.num_players == 1 else "Your team"
        sentences.append(f"{who} scored {value:g} of {most_score(spec):g}.")
    else:
        sentences.append(f"You got {own:g} of at most {most_score(spec):g}")
        sentences[-1] += _others_text(episode, player)
    return " ".join(sentences)


def most_score(spec: EnvSpec) -> float:
    """Return the maximum of the figure that measures how well players did."""
    return spec.return_range[1] if spec.max_score is None else spec.max_score


def _game_return(episode: Episode, player: int) -> float:
    """Return what the game itself paid a player, without penalties for bad replies."""
    return episode.reward(player) - episode.reward(player, *sorted(REPLY_PARTS))


def _zero_sum_text(episode: Episode, player: int, own: float) -> str:
    if own == 0:
        return "A draw."
    others = []
    for other in range(episode.num_players):
        if other != player:
            others.append(f"{player_name(other)} {_won_or_lost(_game_return(episode, other))}")
    return f"You {_won_or_lost(own)}; {', '.join(others)}."


def _won_or_lost(value: float) -> str:
    return f"{'won' if value > 0 else 'lost'} {abs(value):g}"


def _others_text(episode: Episode, player: int) -> str:
    others = []
    for other in range(episode.num_players):
        if other != player:
            others.append(f"{player_name(other)} {_game_return(episode, other):g}")
    return f"; {', '.join(others)}." if others else "."
