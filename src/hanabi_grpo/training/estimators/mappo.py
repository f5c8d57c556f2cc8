"""MAPPO: IPPO with a critic that sees the observations of all players. Experimental."""

from hanabi_grpo.training.estimators.base import Learned
from hanabi_grpo.training.estimators.ippo import Ippo


class Mappo(Ippo):
    """The formula of `ippo`, with values of the joint state.

    The central critic exists only in the trainer; nothing of it appears in a prompt.

    Source: MAPPO (arXiv 2103.01955).
    """

    name = "mappo"
    compared_with = "the value from a joint-state critic, then the mean over the step's turns"
    source = "MAPPO, arXiv 2103.01955"
    needs = Learned.CENTRAL_CRITIC
    is_experimental = True
