"""Learned credit: each player's share of the team's return, for `vdn` and `qmix`. Experimental.

    q_p = Σ_{turns t of p} head_p(h(t)),   Q_tot = mixer(q_1 … q_n)
    loss = mean over games, and over their steps k, of (Q_k − R)²

Q_k is Q_tot of everything said up to step k, where the heads' values of earlier steps are held
fixed: each turn explains what earlier turns have left unexplained. This assigns credit correctly if
players see each other's moves. A later turn's features show what happened before it, so that its
head could also explain the earlier moves. Fitted all at once, as in the sources, the first of two
players who are rewarded for the same move gets nothing for its own share (`tests/exact_game.py`),
and in Hanabi a turn's message shows nearly everything that was rewarded so far. With perfect heads,
a turn's value is E[R | known after the turn] − E[R | known before it]. Apart from what its player
could not change, it depends only on the player's own move, so that the mean gradient is that of the
return.

h(t) are the features of a turn (`features`): its reply's pooled hidden states, its message and its
reply, all detached. R is the team's return: the mean over the seats without the penalties of
replies, as a share of the board's span.

- `vdn`: Q_tot = Σ_p q_p (arXiv 1706.05296).
- `qmix`: Q_tot = w₂ᵀ ELU(W₁ q + b₁) + b₂. A hypernetwork computes all four from the state s, W₁ and
  w₂ through |·|, so that Q_tot never falls when a q_p rises (arXiv 1803.11485). s consists of the
  first messages of all seats, averaged over the episodes of the group. They distinguish tasks but
  contain hardly any effects of replies, which b₂ could otherwise explain instead of the q_p.

An episode has one return, so whole episodes are mixed, not single turns: a player's share is the
sum over its turns, and each of its turns gets the share as credit.

The advantage is this project's: q_p − mean q_p over the group (`estimators.vdn`). With `qmix`, q_p
has no unit, so it is multiplied by the mean of ∂Q_tot / ∂q_p over the step's episodes, one positive
number per seat. A penalty is added unchanged to the share of the player that incurred it, and no
head learns from it. The heads learn from a step's episodes before they evaluate them; otherwise the
rewards of these episodes would not reach the advantages.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hanabi_grpo.envs.base import EnvSpec
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.estimators import ESTIMATORS, Learned, LearnedValues
from hanabi_grpo.training.groups import flatten_groups
from hanabi_grpo.training.learned.heads import (
    Learner,
    Learners,
    Observation,
    PlayerTurns,
    StepTurns,
    TurnPlace,
    explained_variance,
    sort_by_place,
    value_head,
)
from hanabi_grpo.types import REPLY_PARTS, Episode, adapter_of

PASSES = 16
"""Passes over a step's episodes; each pass is one update."""
MIXER_WIDTH = 32
"""Width of QMIX's hidden layer, as in its source."""
TURN_WIDTHS = 3
"""Width of a turn's features, in multiples of the model's width: see `features`."""


class MonotoneMixer(nn.Module):
    """QMIX's mixer: in any state, its output never falls when a part rises."""

    def __init__(self, num_seats: int, num_features: int) -> None:
        """Create the hypernetworks.

        As in the source, they are linear; the one of the last bias has one hidden layer.

        Args:
            num_seats: Number of parts of an episode.
            num_features: Number of features of a state.
        """
        super().__init__()
        self.first = nn.Linear(num_features, num_seats * MIXER_WIDTH)
        self.first_bias = nn.Linear(num_features, MIXER_WIDTH)
        self.last = nn.Linear(num_features, MIXER_WIDTH)
        bias_input = nn.Linear(num_features, MIXER_WIDTH)
        bias_output = nn.Linear(MIXER_WIDTH, 1)
        self.last_bias = nn.Sequential(bias_input, nn.ReLU(), bias_output)
        # All tasks have the same value until something has been learned.
        for layer in (self.first_bias, bias_output):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, parts: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return [games] returns of [games, seats] parts and [games, size] states."""
        first_weights = self.first(states).abs()
        weighted_parts = parts[:, :, None] * first_weights.view(*parts.shape, MIXER_WIDTH)
        hidden = nn.functional.elu(weighted_parts.sum(1) + self.first_bias(states))
        weighted_hidden = hidden * self.last(states).abs()
        last_bias = self.last_bias(states)[:, 0]
        return weighted_hidden.sum(1) + last_bias


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTurns:
    """A step's turns of one adapter."""

    cells: torch.Tensor
    """[turns] (game · seats + seat) · stages + stage, see `_CreditStep.num_stages`."""
    features: torch.Tensor
    """[turns, size]."""


class CreditNetwork(nn.Module):
    """The heads of all adapters, and QMIX's mixer."""

    def __init__(
        self, adapters: Sequence[str], width: int, num_seats: int, *, is_monotone: bool
    ) -> None:
        """Create the network.

        Args:
            adapters: Adapter names; each has a head.
            width: Width of the model. The features of a turn have three parts of this width, those
                of a state one per seat.
            num_seats: Number of seats.
            is_monotone: Mix the parts as in QMIX; else sum them as in VDN.
        """
        super().__init__()
        self.heads = nn.ModuleDict()
        for name in adapters:
            self.heads[name] = value_head(TURN_WIDTHS * width)
        self.mixer = MonotoneMixer(num_seats, num_seats * width) if is_monotone else None
        self.start = nn.Parameter(torch.zeros(()))
        """Bias of VDN's sum, which is no player's share."""

    def total(self, parts: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return [games] Q_tot of [games, seats] parts and [games, size] states."""
        if self.mixer is None:
            return self.start + parts.sum(1)
        return self.mixer(parts, states)

    def parts(self, turns: Mapping[str, AdapterTurns], shape: Sequence[int]) -> torch.Tensor:
        """Return the heads' values of all turns; 0 where there is no turn.

        Args:
            turns: The step's turns, by adapter.
            shape: Numbers of games, seats and stages.

        Returns:
            [games, seats, stages]; a player's q is the sum over stages.
        """
        parts = torch.zeros(math.prod(shape))
        for name, adapter_turns in turns.items():
            head_values = self.heads[name](adapter_turns.features)[:, 0]
            parts = parts.index_add(0, adapter_turns.cells, head_values)
        return parts.view(*shape)

    def start_at(self, mean: float) -> None:
        """Predict a step's mean return for every episode, before anything has been learned."""
        with torch.no_grad():
            if self.mixer is not None:
                self.mixer.last_bias[-1].bias.fill_(mean)
            else:
                self.start.fill_(mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnShares(LearnedValues):
    """Each player's learned share of the returns of a step's episodes."""

    episodes: Sequence[Episode]
    """Kept alive, because the next mapping uses their ids as keys."""
    by_episode: Mapping[int, Sequence[float]]
    """By id(episode): the share of each seat, in points, without penalties of replies."""

    def share(self, episode: Episode, player: int) -> float:
        """Return a player's share of an episode, in points: its q plus its replies' penalties."""
        penalties = episode.reward(player, *sorted(REPLY_PARTS))
        return self.by_episode[id(episode)][player] + penalties


@dataclass(frozen=True, slots=True, kw_only=True)
class _CreditStep:
    """A step's episodes as the network's input."""

    episodes: Sequence[Episode]
    turns: Mapping[str, AdapterTurns]
    """By adapter; adapters without a turn are left out."""
    num_stages: int
    """Largest number of steps of an episode with turns of trained players; the first is stage 0."""
    stages: torch.Tensor
    """[games, stages] 1 / (number of the episode's stages) at its stages, else 0."""
    states: torch.Tensor
    """[games, seats · width], see `Credits._see_tasks`."""
    spans: torch.Tensor
    """[games] difference between the best and the worst return on each episode's board."""
    targets: torch.Tensor
    """[games] the team's return in each episode, as a share of its span."""


class Credits(Learners):
    """A run's credit heads and mixer."""

    reads_replies = True

    def __init__(
        self,
        settings: Settings,
        adapters: Sequence[str],
        specs: Mapping[str, EnvSpec],
        width: int,
    ) -> None:
        """Create what the run's estimator needs.

        Args:
            settings: The run's settings.
            adapters: Names of its adapters.
            specs: Specs of the boards that are played, by hash.
            width: Width of the model.
        """
        self._adapters = adapters
        self._specs = specs
        self._width = width
        self._num_seats = settings.players
        is_monotone = ESTIMATORS[settings.advantage].needs is Learned.CREDIT_MIXER

        def make_network() -> CreditNetwork:
            return CreditNetwork(adapters, width, settings.players, is_monotone=is_monotone)

        name = settings.advantage
        seed = f"credit {settings.seed} {name}"
        self._learner = Learner(make_network, settings.critic_learning_rate, seed)
        self.by_name = {name: self._learner}

    def observe(
        self, groups: Sequence[Sequence[Episode]], turns: Sequence[PlayerTurns]
    ) -> Observation:
        """Learn from a step's episodes, then compute each player's share of their returns.

        Args:
            groups: The step's groups.
            turns: The features of trained players' turns, from all processes.

        Returns:
            The shares, and as "credit_explained" the share of the returns' variance that was
            explained before learning. Without any turns, shares of 0 and no metric.
        """
        step = self._see_step(groups, sort_by_place(turns))
        if not step.turns:
            no_shares = torch.zeros(len(step.episodes), self._num_seats)
            return Observation(metrics={}, values=_shares_by_episode(step.episodes, no_shares))
        if self._learner.steps == 0:
            self._network.start_at(float(step.targets.mean()))
        before = self._network.total(self._parts(step).sum(2), step.states).detach()
        for _ in range(PASSES):
            self._learner.update(self._loss(step))
        self._learner.steps += 1
        return Observation(
            metrics={"credit_explained": explained_variance(step.targets, before)},
            values=self._shares(step),
        )

    @property
    def _network(self) -> CreditNetwork:
        network: CreditNetwork = self._learner.head
        return network

    def _parts(self, step: _CreditStep) -> torch.Tensor:
        """Return the heads' values, [games, seats, stages]."""
        shape = (len(step.episodes), self._num_seats, step.num_stages)
        return self._network.parts(step.turns, shape)

    def _loss(self, step: _CreditStep) -> torch.Tensor:
        """Return the mean squared error after each stage, see the module."""
        parts = self._parts(step)
        earlier = (parts.cumsum(2) - parts).detach()
        loss = torch.zeros(())
        for stage in range(step.num_stages):
            so_far = earlier[:, :, stage] + parts[:, :, stage]
            errors = self._network.total(so_far, step.states) - step.targets
            loss = loss + (step.stages[:, stage] * errors.square()).sum()
        return loss / len(step.episodes)

    def _shares(self, step: _CreditStep) -> ReturnShares:
        """Return each player's share in points: q times the mean slope of Q_tot over episodes."""
        parts = self._parts(step).sum(2)
        returns = self._network.total(parts, step.states)
        [slopes] = torch.autograd.grad(returns.sum(), parts)
        mean_slopes = slopes.mean(0)
        shares = parts.detach() * mean_slopes * step.spans[:, None]
        return _shares_by_episode(step.episodes, shares)

    def _see_step(self, groups: Sequence[Sequence[Episode]], turns: StepTurns) -> _CreditStep:
        """Return a step's episodes as the network's input."""
        episodes = flatten_groups(groups)
        games = []
        seats = []
        for place in turns.places:
            turn = episodes[place.game].turns[place.turn]
            games.append(place.game)
            seats.append(turn.player)
        stage_of_turn = _stages(episodes, turns.places)
        num_stages = max(stage_of_turn, default=-1) + 1
        stages = torch.zeros(len(episodes), num_stages)
        for game, stage in zip(games, stage_of_turn, strict=True):
            stages[game, stage] = 1.0
        stages = stages / stages.sum(1, keepdim=True).clamp(min=1)
        cells = self._cells(games, seats) * num_stages + torch.tensor(
            stage_of_turn, dtype=torch.long
        )

        rows_of: dict[str, list[int]] = defaultdict(list)
        for row, player in enumerate(turns.players):
            rows_of[adapter_of(player, self._adapters)].append(row)
        adapter_turns = {}
        for name in self._adapters:
            rows = rows_of[name]
            if rows:
                adapter_turns[name] = AdapterTurns(cells=cells[rows], features=turns.features[rows])

        spans = torch.tensor([self._specs[episode.spec_hash].span for episode in episodes])
        returns = torch.tensor([team_return(episode) for episode in episodes])
        group_sizes = [len(group) for group in groups]
        return _CreditStep(
            episodes=episodes,
            turns=adapter_turns,
            num_stages=num_stages,
            stages=stages,
            states=self._see_tasks(group_sizes, turns, seats),
            spans=spans,
            targets=returns / spans,
        )

    def _see_tasks(
        self, group_sizes: Sequence[int], turns: StepTurns, seats: Sequence[int]
    ) -> torch.Tensor:
        """Return the state of each episode's task: each seat's mean first message in the group.

        Args:
            group_sizes: Number of episodes in each of the step's groups.
            turns: The step's turns.
            seats: Seat number of each turn.

        Returns:
            [games, seats · width] means over each group; 0 for a seat without any turn in it.
        """
        group_of_game: list[int] = []
        for group, size in enumerate(group_sizes):
            group_of_game.extend([group] * size)
        first_rows: dict[tuple[int, int], int] = {}
        for row, (place, seat) in enumerate(zip(turns.places, seats, strict=True)):
            first_rows.setdefault((place.game, seat), row)
        num_cells = len(group_sizes) * self._num_seats
        sums = torch.zeros(num_cells, self._width)
        counts = torch.zeros(num_cells)
        if first_rows:
            first_groups = []
            first_seats = []
            for game, seat in first_rows:
                first_groups.append(group_of_game[game])
                first_seats.append(seat)
            cells = self._cells(first_groups, first_seats)
            features = turns.features[list(first_rows.values())]
            # The second part of a turn's features is its message.
            messages = features[:, self._width : 2 * self._width]
            sums = sums.index_add(0, cells, messages)
            counts = counts.index_add(0, cells, torch.ones(len(first_rows)))
        means = sums / counts.clamp(min=1)[:, None]
        states = means.view(len(group_sizes), self._num_seats * self._width)
        return states[group_of_game]

    def _cells(self, numbers: Sequence[int], seats: Sequence[int]) -> torch.Tensor:
        """Return number · seats + seat of each pair: its index in a flattened table."""
        cells = []
        for number, seat in zip(numbers, seats, strict=True):
            cells.append(number * self._num_seats + seat)
        return torch.tensor(cells, dtype=torch.long)


def _stages(episodes: Sequence[Episode], places: Sequence[TurnPlace]) -> list[int]:
    """Return, for each turn, how many earlier steps of its episode have such turns."""
    steps_of_game: dict[int, set[int]] = defaultdict(set)
    for place in places:
        steps_of_game[place.game].add(episodes[place.game].turns[place.turn].step)
    stage_of_step = {}
    for game, steps in steps_of_game.items():
        for stage, step in enumerate(sorted(steps)):
            stage_of_step[game, step] = stage
    stages = []
    for place in places:
        step = episodes[place.game].turns[place.turn].step
        stages.append(stage_of_step[place.game, step])
    return stages


def _shares_by_episode(episodes: Sequence[Episode], shares: torch.Tensor) -> ReturnShares:
    """Return [games, seats] shares in the form the estimators read."""
    by_episode = {}
    for episode, episode_shares in zip(episodes, shares.tolist(), strict=True):
        by_episode[id(episode)] = episode_shares
    return ReturnShares(episodes=episodes, by_episode=by_episode)


def team_return(episode: Episode) -> float:
    """Return an episode's return, the mean over its seats, without the parts for replies.

    Those parts are penalties (`REPLY_PARTS`), which belong to the player that gave the reply.
    """
    payments = []
    for turn in episode.turns:
        for parts in turn.rewards:
            for name, value in parts.items():
                if name not in REPLY_PARTS:
                    payments.append(value)
    return sum(payments) / episode.num_players
