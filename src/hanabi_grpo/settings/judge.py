"""What server and trainer must have in common of a judge, and where there can be one."""

import hashlib

from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.settings.judge_template import judge_template
from hanabi_grpo.settings.model import Settings

_DIGEST_LENGTH = 12
"""Hexadecimal digits of a template's digest."""


def judge_description(settings: Settings) -> str:
    """Return what server and trainer compare of a judge; "" without one.

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
    """Refuse a judge whose reward the game cannot pay.

    Raises:
        HanabiGrpoError: What one player wins there the others lose, so nobody can be paid for
            playing well.
    """
    if settings.judge is None:
        return
    if settings.setup().spec.payoff == "zero_sum":
        raise HanabiGrpoError(
            f"HANABI_JUDGE={settings.judge} with HANABI_ENV={settings.env}: the judge pays all "
            "players the same, and in a zero-sum game what one wins the others lose; unset "
            "HANABI_JUDGE, or play another game."
        )
