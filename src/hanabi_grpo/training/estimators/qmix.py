"""QMIX: like VDN, but a monotone network mixes the shares. Experimental."""

from hanabi_grpo.training.estimators.base import Learned
from hanabi_grpo.training.estimators.vdn import Vdn


class Qmix(Vdn):
    """The formula of `vdn`, with shares that QMIX's mixer combines into the return.

    Source: this project; the shares are those of QMIX (arXiv 1803.11485).
    """

    name = "qmix"
    credit = "the player's learned share of the team's return (a monotone mix of shares)"
    source = "shares of QMIX, arXiv 1803.11485"
    needs = Learned.CREDIT_MIXER
    is_experimental = True
