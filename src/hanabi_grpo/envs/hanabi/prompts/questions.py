"""Questions to a player about its own cards, see `envs.questions`.

In the compact style, they use only words that the board's messages and moves contain anyway, so
that every tiny model knows them: `… disc Y1 me slot0` asks for the oldest card, and `R1` is an
answer. With joined cards (HANABI_DEDUCTIONS=joined), an answer is two words, `R 1`, because no
single word names a card alone.
"""

from collections.abc import Sequence

from hanabi_grpo.envs.hanabi.prompts.deductions import JOINED_LEVELS, Deductions
from hanabi_grpo.envs.hanabi.prompts.full import card_name
from hanabi_grpo.envs.hanabi.rules.view import COLOR_LETTERS, Card, PlayerView
from hanabi_grpo.envs.questions import Question


def own_card_questions(
    view: PlayerView, *, style: str, deductions: Deductions = "possible"
) -> tuple[Question, ...]:
    """Return a question for each card of the player's hand, oldest first.

    Args:
        view: What the player may know.
        style: "full" or "compact".
        deductions: What the prompts work out, which decides the words of a compact answer.
    """
    answers = []
    for color in range(view.num_colors):
        for rank in range(view.num_ranks):
            card = Card(color, rank)
            answers.append(card_answer(card, style=style, deductions=deductions))
    questions = []
    for slot in range(len(view.own_hand)):
        question = Question(
            name=f"slot{slot}", text=_text(slot, style, answers), answers=tuple(answers)
        )
        questions.append(question)
    return tuple(questions)


def card_answer(card: Card, *, style: str, deductions: Deductions = "possible") -> str:
    """Return a card as the answer to a question, e.g. "R1", "R 1" or "red 1".

    Args:
        card: The card.
        style: "full" or "compact".
        deductions: See `own_card_questions`.
    """
    if style == "full":
        return card_name(card)
    if deductions in JOINED_LEVELS:
        return f"{COLOR_LETTERS[card.color]} {card.rank + 1}"
    return str(card)


def _text(slot: int, style: str, answers: Sequence[str]) -> str:
    if style == "compact":
        return f" me slot{slot}"
    return (
        f"\n\nDo not move yet. Which card is in slot {slot} of your hand? Reply with its colour "
        f"and rank alone, e.g. {answers[0]}."
    )
