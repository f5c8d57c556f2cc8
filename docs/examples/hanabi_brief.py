"""Hanabi with a reward for short replies: `HANABI_ENV=hanabi_brief`."""

from hanabi_grpo import Episode, with_rewards

FREE_CHARACTERS = 200
"""Characters of a reply that cost nothing."""


def brief(episode: Episode) -> list[float]:
    """Charge each player for the share of its replies that are long."""
    rewards = []
    for player in range(episode.num_players):
        replies = [turn.reply for turn in episode.trajectory(player)]
        num_long = sum(len(reply) > FREE_CHARACTERS for reply in replies)
        rewards.append(-num_long / max(1, len(replies)))
    return rewards


HANABI_BRIEF = with_rewards(
    "hanabi",
    name="hanabi_brief",
    rewards={"brief": brief},
    reward_range=(-1.0, 0.0),
    payoff="general",
)
