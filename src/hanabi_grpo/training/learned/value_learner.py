"""The training loop's interface to everything that is learned besides the model."""

from collections.abc import Mapping, Sequence

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from hanabi_grpo.envs.base import EnvSpec
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.batching import CutPlan, cut_rows
from hanabi_grpo.training.estimators import ESTIMATORS
from hanabi_grpo.training.learned.credit import Credits
from hanabi_grpo.training.learned.critic import Critics
from hanabi_grpo.training.learned.features import turn_features, turn_rows
from hanabi_grpo.training.learned.heads import Learners, Observation, PlayerTurns, TurnPlace
from hanabi_grpo.training.micro_batch import collate
from hanabi_grpo.training.policy import Policy
from hanabi_grpo.types import Episode

CRITIC_WIDTHS = 2
"""Width of a critic's features of a turn, in multiples of the model's width: see `features`."""


def make_learners(
    settings: Settings, adapter_names: Sequence[str], specs: Mapping[str, EnvSpec], width: int
) -> Learners | None:
    """Return the networks that the run's estimator needs; None if it needs none.

    Args:
        settings: The run's settings.
        adapter_names: Adapters of the players, or the shared one.
        specs: Specs of the boards that are played, by hash.
        width: Width of the model; with several base models, of the widest one.
    """
    needs = ESTIMATORS[settings.advantage].needs
    if needs.is_critic:
        return Critics(settings, adapter_names, specs, CRITIC_WIDTHS * width)
    if needs.is_credit:
        return Credits(settings, adapter_names, specs, width)
    return None


def widened(features: torch.Tensor, width: int, widest: int) -> torch.Tensor:
    """Pad the features of a narrower base model to the width of the team's widest one.

    Args:
        features: [turns, parts · width].
        width: Width of the base model.
        widest: Largest width of all base models.

    Returns:
        [turns, parts · widest], each part padded with zeros.
    """
    if width == widest:
        return features
    parts = features.unflatten(-1, (-1, width))
    return torch.nn.functional.pad(parts, (0, widest - width)).flatten(-2)


class ValueLearner:
    """Passes each step's episodes to a run's critics or credit heads.

    Every process computes the features of its share of the turns. The networks exist on every
    process and stay equal, because all of them learn from all turns in the same order.
    """

    def __init__(
        self,
        learners: Learners,
        *,
        policy: Policy,
        accelerator: Accelerator,
        cut: CutPlan,
        pad_id: int,
    ) -> None:
        """Store what is needed to compute features.

        Args:
            learners: The result of `make_learners`.
            policy: The model with all adapters.
            accelerator: accelerate's handle of the processes.
            cut: How a player's rows are cut into micro-batches.
            pad_id: Token for padding rows.
        """
        self._learners = learners
        self._policy = policy
        self._accelerator = accelerator
        self._cut = cut
        self._pad_id = pad_id

    def observe(
        self,
        groups: Sequence[Sequence[Episode]],
        trained_seats: Sequence[str],
        players: Sequence[str],
    ) -> Observation:
        """Evaluate a step's episodes and learn from them; all processes call it together.

        Args:
            groups: The step's groups.
            trained_seats: The adapter trained in each seat, see `seats.SeatAssignment`.
            players: The player of the run in each seat.

        Returns:
            Metrics, and the values that the estimator reads for these episodes.
        """
        turns: list[PlayerTurns] = []
        for seat, player in enumerate(players):
            self._policy.use_adapter_of(player)
            turns.extend(self._look_at(groups, seat, player, trained_seats))
        return self._learners.observe(groups, gather_object(turns))

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of everything that a resumed run needs."""
        return self._learners.state()

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore a `state`; a network that is not in it stays newly initialized."""
        self._learners.restore(state)

    def _look_at(
        self,
        groups: Sequence[Sequence[Episode]],
        seat: int,
        player: str,
        trained_seats: Sequence[str],
    ) -> list[PlayerTurns]:
        """Return this process's share of a player's turns, one item per micro-batch."""
        replies = self._learners.reads_replies
        all_rows = turn_rows(groups, seat, trained_seats, replies=replies)
        turns = []
        model = self._policy.model
        unwrapped = self._policy.model_of(player)
        for rows in cut_rows(all_rows, self._cut):
            # The number of tokens would divide a loss, which does not exist here.
            batch = collate(rows, player, 1, self._pad_id, model.device, self._cut.shares_prefixes)
            features = turn_features(model, unwrapped, batch, rows, replies=replies)
            width = unwrapped.config.get_text_config().hidden_size
            features = widened(features, width, self._policy.width)
            places: list[TurnPlace] = []
            for row in rows:
                places.extend(row.places)
            turns.append(PlayerTurns(player=player, places=places, features=features))
        return turns
