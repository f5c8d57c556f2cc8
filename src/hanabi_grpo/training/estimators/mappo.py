"""MAPPO: IPPO with a critic that sees what all players see. Experimental."""

from hanabi_grpo.training.estimators.base import Learned
from hanabi_grpo.training.estimators.ippo import Ippo


class Mappo(Ippo):
    """The formula of `ippo`, with values of the joint state.

    Only the trainer has a central critic: no prompt says anything of it.

    Source: MAPPO (arXiv 2103.01955).
    """

    name = "mappo"
    compared_with = "what a critic of the joint state expected; all turns of the step: the mean"
    source = "MAPPO, arXiv 2103.01955"
    needs = Learned.CENTRAL_CRITIC
    is_experimental = True
