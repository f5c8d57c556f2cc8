"""Training on questions about hidden cards: `--beliefs` of `warm-start` and `tiny-model`.

Such a sample is a player's conversation up to one of its turns, with a question from
`Game.questions` appended to the message, and the answer from `Game.truths`. The label is the actual
card, so the lowest possible cross-entropy is the mean entropy of the posterior, as in the belief
loss (`training.belief_labels`). Question and answer are not part of any conversation of the game.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.envs.base import Game, Setup, has_questions
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.per_player import PerPlayer, entries, value_of
from hanabi_grpo.types import player_names

OPTION = "--beliefs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question at one turn, and the right answer."""

    text: str
    """The question as it is appended to the player's message."""
    answer: str


def parse_shares(value: PerPlayer, setup: Setup[Any]) -> tuple[float, ...]:
    """Return, for each seat, the share of its learned replies that answer questions.

    Args:
        value: One share for all seats, or one for each as in "player_0=0.3,player_1=0".
        setup: The game.

    Returns:
        A share per seat; () if all are 0.

    Raises:
        SettingsError: A share is invalid or missing, or this game has no questions.
    """
    names = player_names(setup.spec.num_players)
    try:
        numbers = entries(value)
    except ValueError as error:
        raise SettingsError(
            f"{OPTION} {value}: {error}; give a share for all players, or one for each, as in "
            "player_0=0.3,player_1=0."
        ) from error
    for name, share in numbers.items():
        if name and name not in names:
            raise SettingsError(
                f"{OPTION} {value}: {name} is not a player of this game; allowed are "
                f"{', '.join(names)}."
            )
        if not 0 <= share < 1:
            raise SettingsError(
                f"{OPTION} {value}: the share of the learned replies must be at least 0 and below "
                "1, e.g. 0.3."
            )
    shares = tuple(value_of(value, name, OPTION) for name in names)
    if not any(shares):
        return ()
    if not has_questions(setup):
        raise SettingsError(
            f"{OPTION} {value}: {setup.env} {setup.spec.preset} has no questions for its players; "
            "omit the option, or choose hanabi, kuhn_poker or leduc_poker."
        )
    return shares


def draw_questions(game: Game, player: int, share: float, key: Sequence[object]) -> list[Asked]:
    """Return the questions that a player is asked before its move, each about a different card.

    For a share s of the learned replies, this is s / (1 - s) questions per move: the integer part,
    plus one more with the probability of the fractional part, but at most as many as there are.

    Args:
        game: The game at the player's turn.
        player: The player.
        share: Share of its learned replies that are answers, below 1.
        key: Seed of the draw.
    """
    if not share:
        return []
    questions = game.questions(player)
    truths = game.truths(player)
    rng = random.Random(repr(("belief questions", *key)))
    wanted = share / (1 - share)
    num_questions = int(wanted) + (rng.random() < wanted % 1)
    asked = []
    for number in rng.sample(range(len(questions)), min(num_questions, len(questions))):
        asked.append(Asked(text=questions[number].text, answer=truths[number]))
    return asked
