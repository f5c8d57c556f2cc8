"""The judge settings that server and trainer must share, and which games can have a judge."""

import hashlib

from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.settings.judge_template import judge_template
from hanabi_grpo.settings.model import Settings

_DIGEST_LENGTH = 12
"""Hexadecimal digits of a template's digest."""


def judge_description(settings: Settings) -> str:
    """Return the text of a judge that server and trainer compare; "" without a judge.

    Example:
        "url:big, weight 1, failure drop, template 0123456789ab"
    """
    if settings.judge is None:
        return ""
    template = judge_template(settings.judge_template)
    digest = hashlib.sha256(template.encode()).hexdigest()[:_DIGEST_LENGTH]
    return (
        f"{settings.judge}, weight {settings.judge_weight:g}, failure {settings.judge_failure}, "
        f"template {digest}"
    )


def check_judge(settings: Settings) -> None:
    """Refuse a judge in a game that cannot pay the same reward to all players.

    Raises:
        HanabiGrpoError: The game is zero-sum: what one player wins, the others lose; or the weight
            or failure of a judge is set without a judge.
    """
    if settings.judge is None:
        choices = {
            f"HANABI_JUDGE_WEIGHT={settings.judge_weight:g}": settings.judge_weight != 1,
            f"HANABI_JUDGE_FAILURE={settings.judge_failure}": settings.judge_failure != "drop",
        }
        for name, is_given in choices.items():
            if is_given:
                raise HanabiGrpoError(
                    f"{name} without HANABI_JUDGE: nobody judges, so it would have no effect; set "
                    "HANABI_JUDGE, or unset it."
                )
        return
    if settings.setup().spec.payoff == "zero_sum":
        raise HanabiGrpoError(
            f"HANABI_JUDGE={settings.judge} with HANABI_ENV={settings.env}: the judge pays all "
            "players the same, and in a zero-sum game what one wins the others lose; unset "
            "HANABI_JUDGE, or play another game."
        )
