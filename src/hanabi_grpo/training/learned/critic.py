"""Critics: the value of a state, for the estimators `ippo` and `mappo`.

    V(s) = head(h(s)),   δ_k = r_k + γ V(s_{k+1}) − V(s_k),   A_k = Σ_j (γλ)^j δ_{k+j}

GAE (arXiv 1506.02438), by default without a discount (HANABI_GAMMA=1). h(s) are the features of
the turn's prompt (`features`), detached: a critic never changes the model.

s_k are the states in which a player was asked for a reply. If all players get the same reward
(`EnvSpec.payoff`), every value estimates the same return, so the team's turns form one chain;
otherwise a player's chain consists of its own turns. Values of a team leave out what concerns one
player alone (`TURN_PARTS`: penalties of its replies, the KL): they would carry it into the other
players' advantages. A player's own parts are added to its advantages as returns-to-go.

- `ippo`: one critic per adapter, which sees that player's conversation (for HANABI_CRITIC=adapter
  see `adapter_critic`): independent PPO (arXiv 2011.09533), over turns instead of tokens as in
  MARSHAL (arXiv 2510.15414).
- `mappo`, experimental: central critics, which see the joint state (`joint_features`), as in MAPPO
  (arXiv 2103.01955): one for a team, otherwise one per seat. They exist in the trainer only; no
  prompt contains anything of the joint state.

**Bias.** An imperfect critic introduces bias if λ < 1. With one critic per player, a team's chain
is biased for λ < 1 even if every critic is perfect: V(s_{k+1}) is what the *next* player expects,
and that player does not know what the mover knew (in Hanabi, the next player's own cards), so part
of the move's effect appears in no value. On marshal-mini with λ = .95, the chain over the team's
turns keeps .947 of the slope of the true advantages, and a chain of the player's own turns .978.
With λ = 1 the values in between cancel, so nothing is lost, at the price of more noise; in games
with many turns, as on the full board, λ = .99 is worth a try.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch

from hanabi_grpo.envs.base import EnvSpec
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.estimators import ESTIMATORS, Learned, LearnedValues
from hanabi_grpo.training.estimators.arithmetic import lambda_advantages
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
from hanabi_grpo.types import Episode, adapter_of

PASSES = 4
"""Training passes over a step's turns."""
MINIBATCH = 512
"""Turns per update."""
TEAM = "team"
"""Payoff of games that reward all players equally, and the name of a team's central critic."""


class Critic(Learner):
    """One value head."""

    def __init__(self, num_features: int, rate: float, seed: str) -> None:
        """Create a head whose value is 0 everywhere.

        Args:
            num_features: Number of features of a state.
            rate: Learning rate.
            seed: See `Learner`.
        """
        super().__init__(partial(value_head, num_features), rate, seed)

    def values(self, features: torch.Tensor) -> torch.Tensor:
        """Return [turns] values of [turns, size] features."""
        with torch.no_grad():
            return self.head(features)[:, 0]

    def learn(self, features: torch.Tensor, targets: torch.Tensor) -> float:
        """Learn from a step's turns.

        Args:
            features: [turns, size].
            targets: [turns] target value of each state.

        Returns:
            The share of the targets' variance that was explained before learning.
        """
        before = self.values(features)
        if self.steps == 0:
            with torch.no_grad():
                self.head[-1].bias.fill_(targets.mean())
        order = torch.Generator().manual_seed(self.steps)
        for _ in range(PASSES):
            shuffled = torch.randperm(len(targets), generator=order)
            for chosen in shuffled.split(MINIBATCH):
                errors = self.head(features[chosen])[:, 0] - targets[chosen]
                self.update(errors.square().mean())
        self.steps += 1
        return explained_variance(targets, before)


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticValues(LearnedValues):
    """The critics' values of a step's states, computed before they learned from this step."""

    episodes: Sequence[Episode]
    """Kept alive, because the next mapping uses their ids as keys."""
    by_episode: Mapping[int, Mapping[int, float]]
    """By id(episode) and turn number: the value, in points, of each state in which a trained player
    was asked.
    """
    team_boards: frozenset[str]
    """Hashes of the boards that reward all players equally."""

    def chain(self, episode: Episode, player: int) -> Mapping[int, float]:
        """Return the values on a player's chain by turn number: the team's turns, or its own."""
        values = self.by_episode[id(episode)]
        if self.is_team_chain(episode):
            return values
        own_values = {}
        for number, value in values.items():
            if episode.turns[number].player == player:
                own_values[number] = value
        return own_values

    def is_team_chain(self, episode: Episode) -> bool:
        """See `LearnedValues.is_team_chain`."""
        return episode.spec_hash in self.team_boards


@dataclass(frozen=True, slots=True, kw_only=True)
class _CriticTurns:
    """The turns of a step that one critic evaluates."""

    critic: str
    places: Sequence[TurnPlace]
    features: torch.Tensor


class Critics(Learners):
    """The critics of a run."""

    reads_replies = False

    def __init__(
        self,
        settings: Settings,
        adapters: Sequence[str],
        specs: Mapping[str, EnvSpec],
        num_features: int,
    ) -> None:
        """Create the critics that the run's estimator needs.

        Args:
            settings: The run's settings.
            adapters: Names of its adapters.
            specs: Specs of the boards that are played, by hash.
            num_features: Number of features of a turn.
        """
        self._adapters = adapters
        self._specs = specs
        self._num_seats = settings.players
        self._swaps_seats = settings.swap_every > 0
        self._gae_lambda = settings.gae_lambda
        self._gamma = settings.gamma
        self._is_central = ESTIMATORS[settings.advantage].needs is Learned.CENTRAL_CRITIC
        boards = [board for board, spec in specs.items() if spec.payoff == TEAM]
        self._team_boards = frozenset(boards)
        if self._is_central:
            names = self._central_names()
            # The joint state: every seat's features, and the seat to act (one-hot).
            num_features = self._num_seats * (num_features + 1)
        else:
            names = list(adapters)
        rate = settings.critic_learning_rate
        self.by_name: dict[str, Critic] = {}
        for name in names:
            seed = f"critic {settings.seed} {name}"
            self.by_name[name] = Critic(num_features, rate, seed)

    def _central_names(self) -> list[str]:
        """Return the names of the central critics: a team's, and each seat's on other boards."""
        names = []
        if self._team_boards:
            names.append(TEAM)
        if len(self._team_boards) == len(self._specs):
            return names
        for seat in range(self._num_seats):
            if self._swaps_seats:
                names.extend(_seat_critic(seat, adapter) for adapter in self._adapters)
            else:
                names.append(_seat_critic(seat))
        return names

    def observe(
        self, groups: Sequence[Sequence[Episode]], turns: Sequence[PlayerTurns]
    ) -> Observation:
        """Evaluate a step's states, then learn from them for the next step.

        Args:
            groups: The step's groups.
            turns: The features of trained players' turns, from all processes.

        Returns:
            The values before learning, and as "<critic>/value_explained" the share of its targets'
            variance that each critic had explained.
        """
        episodes = flatten_groups(groups)
        critic_turns = self._assign_turns(episodes, sort_by_place(turns))
        values = self._evaluate(episodes, critic_turns)
        metrics = {}
        for own_turns in critic_turns:
            targets = lambda_targets(
                episodes,
                own_turns.places,
                values,
                [self._span(episode) for episode in episodes],
                decay=self._gae_lambda,
                gamma=self._gamma,
            )
            critic = self.by_name[own_turns.critic]
            explained = critic.learn(own_turns.features, targets)
            metrics[f"{own_turns.critic}/value_explained"] = explained
        return Observation(metrics=metrics, values=values)

    def _assign_turns(self, episodes: Sequence[Episode], turns: StepTurns) -> list[_CriticTurns]:
        """Return each critic's turns; a critic without turns is left out."""
        features = turns.features
        if self._is_central and turns.places:
            features = joint_features(episodes, turns.places, features, self._num_seats)
        rows: dict[str, list[int]] = defaultdict(list)
        for row, (player, place) in enumerate(zip(turns.players, turns.places, strict=True)):
            critic = self._critic_of(player, episodes[place.game], place.turn)
            rows[critic].append(row)
        assigned = []
        for name in self.by_name:
            if rows[name]:
                places = [turns.places[row] for row in rows[name]]
                assigned.append(
                    _CriticTurns(critic=name, places=places, features=features[rows[name]])
                )
        return assigned

    def _critic_of(self, player: str, episode: Episode, turn: int) -> str:
        """Return the name of the critic that evaluates a turn."""
        if not self._is_central:
            return adapter_of(player, self._adapters)
        if episode.spec_hash in self._team_boards:
            return TEAM
        seat = episode.turns[turn].player
        if self._swaps_seats:
            return _seat_critic(seat, adapter_of(player, self._adapters))
        return _seat_critic(seat)

    def _evaluate(
        self, episodes: Sequence[Episode], critic_turns: Sequence[_CriticTurns]
    ) -> CriticValues:
        """Return the critics' values of the states, in points."""
        by_episode: dict[int, dict[int, float]] = {}
        for episode in episodes:
            by_episode[id(episode)] = {}
        for turns in critic_turns:
            shares = self.by_name[turns.critic].values(turns.features).tolist()
            for place, share in zip(turns.places, shares, strict=True):
                episode = episodes[place.game]
                by_episode[id(episode)][place.turn] = share * self._span(episode)
        return CriticValues(episodes=episodes, by_episode=by_episode, team_boards=self._team_boards)

    def _span(self, episode: Episode) -> float:
        """Return the difference between the best and the worst return on the episode's board."""
        return self._specs[episode.spec_hash].span


def lambda_targets(
    episodes: Sequence[Episode],
    places: Sequence[TurnPlace],
    values: LearnedValues,
    spans: Sequence[float],
    *,
    decay: float,
    gamma: float,
) -> torch.Tensor:
    """Return [turns] V(s_k) + A_k, as a share of the board's span.

    These are GAE's λ-returns, the targets of a value function. All turns of one step (tool calls
    and the action) have the same target.

    Args:
        episodes: The step's episodes.
        places: Places of the turns.
        values: The critics' values of the states.
        spans: Span of each episode's board.
        decay: HANABI_GAE_LAMBDA.
        gamma: HANABI_GAMMA.
    """
    targets: dict[TurnPlace, float] = {}
    done: set[tuple[int, int]] = set()
    for place in places:
        episode = episodes[place.game]
        player = episode.turns[place.turn].player
        if (place.game, player) in done:
            continue
        done.add((place.game, player))
        chain = values.chain(episode, player)
        of_team = values.is_team_chain(episode)
        advantages = lambda_advantages(episode, player, chain, decay, gamma, of_team=of_team)
        value_of_step: dict[int, float] = {}
        for turn, value in sorted(chain.items()):
            if episode.turns[turn].player == player:
                state_value = value_of_step.setdefault(episode.turns[turn].step, value)
                target = (state_value + advantages[turn]) / spans[place.game]
                targets[TurnPlace(place.game, turn)] = target
    return torch.tensor([targets[place] for place in places])


def _seat_critic(seat: int, adapter: str = "") -> str:
    """Return the name of a seat's central critic, for boards that reward seats differently.

    With HANABI_SWAP_EVERY, each adapter has its own: critics must not learn from other players.
    """
    return f"{adapter}/seat_{seat}" if adapter else f"seat_{seat}"


def joint_features(
    episodes: Sequence[Episode],
    places: Sequence[TurnPlace],
    features: torch.Tensor,
    num_seats: int,
) -> torch.Tensor:
    """Return the features of the joint state at each turn.

    They are those of every seat's latest prompt, each in its own player's conversation: the prompt
    of the same step if the seat was asked in it, else of an earlier step; 0 before its first prompt
    or for a seat without a trained player. The seat to act comes first, the others follow in turn
    order, and its one-hot number comes last. The joint state contains no replies to it: for a seat
    that calls tools, the other seats' states have its first prompt of the step, and each of its own
    turns has its own prompt.

    Args:
        episodes: All of the step's episodes.
        places: Places of the turns, sorted.
        features: [turns, size] of each turn, as its own player sees it.
        num_seats: Number of seats in the result.

    Returns:
        [turns, seats · size + seats].
    """
    row_of = {place: row for row, place in enumerate(places)}
    # The row after the last one is all 0.
    empty_row = len(places)
    joint_rows: list[list[int]] = []
    asked_seats: list[int] = []
    for game in dict.fromkeys(place.game for place in places):
        latest_rows: dict[int, int] = {}
        num_players = episodes[game].num_players
        numbered_turns = enumerate(episodes[game].turns)
        for _, step_turns in groupby(numbered_turns, key=lambda pair: pair[1].step):
            asked_now = []
            first_rows: dict[int, int] = {}
            for number, turn in step_turns:
                row = row_of.get(TurnPlace(game, number))
                if row is not None:
                    first_rows.setdefault(turn.player, row)
                    asked_now.append((turn.player, row))
            latest_rows |= first_rows
            for seat, own_row in asked_now:
                rows = [own_row] + [empty_row] * (num_seats - 1)
                for distance in range(1, num_players):
                    other = (seat + distance) % num_players
                    rows[distance] = latest_rows.get(other, empty_row)
                joint_rows.append(rows)
                asked_seats.append(seat)
            latest_rows |= dict(asked_now)
    empty = features.new_zeros(1, features.shape[1])
    padded = torch.cat([features, empty])
    row_numbers = torch.tensor(joint_rows).reshape(-1, num_seats)
    all_seats = padded[row_numbers].flatten(1)
    seats = torch.tensor(asked_seats, dtype=torch.long)
    which_seat = torch.nn.functional.one_hot(seats, num_seats)
    return torch.cat([all_seats, which_seat.to(features.dtype)], 1)
