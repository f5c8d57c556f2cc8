"""What a turn is worth before it is made: critics, for HANABI_ADVANTAGE=ippo and mappo.

    V(s) = head(h(s)),   δ_k = r_k + V(s_{k+1}) − V(s_k),   A_k = Σ_j λ^j δ_{k+j}

GAE (arXiv 1506.02438) without a discount. h(s) is what `valuing` makes of the turn's prompt, and is
never moved by it.

s_k are the states in which a player was asked. Where all are paid alike (`EnvSpec.payoff`), every
value is one of everybody's return, so the team's turns are one chain; elsewhere a player's chain
are its own turns.

- `ippo`: a critic for each adapter, which sees that player's conversation: independent PPO (arXiv
  2011.09533); turns in the place of tokens as in MARSHAL (arXiv 2510.15414).
- `mappo`, experimental: central critics, which see the joint state (`joint_features`), MAPPO (arXiv
  2103.01955): one for a team, elsewhere one for each seat. Only the trainer has it: no prompt says
  anything of it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby

import torch

from hanabi_grpo.envs.base import EnvSpec
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.advantages import Estimator, choose_estimator
from hanabi_grpo.training.comparing import lambda_advantages
from hanabi_grpo.training.model.heads import (
    Learner,
    Learners,
    Place,
    Seen,
    by_place,
    explained,
    value_head,
)
from hanabi_grpo.types import Episode, adapter_of

PASSES = 4
"""Over a step's turns, to learn from them."""
MINIBATCH = 512
"""Turns of one update."""
TEAM = "team"
"""Name of the central critic of a team; elsewhere "seat_0" and so on."""


class Critic(Learner):
    """One value head."""

    def __init__(self, num_features: int, rate: float, seed: str) -> None:
        """Start at 0 everywhere."""
        super().__init__(partial(value_head, num_features), rate, seed)

    def values(self, features: torch.Tensor) -> torch.Tensor:
        """Return [turns] values of [turns, size] features."""
        with torch.no_grad():
            return self.head(features)[:, 0]

    def learn(self, features: torch.Tensor, targets: torch.Tensor) -> float:
        """Learn [turns] targets; returns the share of their variance that it had explained
        before.
        """
        before = self.values(features)
        if self.steps == 0:
            with torch.no_grad():
                self.head[-1].bias.fill_(targets.mean())
        order = torch.Generator().manual_seed(self.steps)
        for _ in range(PASSES):
            for chosen in torch.randperm(len(targets), generator=order).split(MINIBATCH):
                self.update((self.head(features[chosen])[:, 0] - targets[chosen]).square().mean())
        self.steps += 1
        return explained(targets, before)


def joint_features(
    episodes: Sequence[Episode], places: Sequence[Place], features: torch.Tensor, num_seats: int
) -> torch.Tensor:
    """Return [turns, seats · size + seats] features of the joint state in which each turn of
    `places` was asked.

    They are those of every seat's own latest prompt, itself in its player's conversation: of the
    same step where it was asked in it, else of an earlier one, 0 before its first or where no
    trained player sits. The seat that is asked is the first, the others follow in turn order; at
    the end its number, one-hot. No reply to this state is in it.

    `places` are sorted, `features` [turns, size] of each, as its own player sees it; there is room
    for `num_seats`."""
    row_of = {place: row for row, place in enumerate(places)}
    rows, asked = [], []
    for game in dict.fromkeys(game for game, _ in places):
        latest: dict[int, int] = {}
        for _, group in groupby(enumerate(episodes[game].turns), key=lambda one: one[1].step):
            found = [(turn.player, row_of[game, at]) for at, turn in group if (game, at) in row_of]
            latest |= dict(found)
            for seat, _ in found:
                seats = range(seat, seat + episodes[game].num_players)
                others = [
                    latest.get(one % episodes[game].num_players, len(places)) for one in seats
                ]
                rows.append(others + [len(places)] * (num_seats - len(others)))
                asked.append(seat)
    padded = torch.cat([features, features.new_zeros(1, features.shape[1])])
    whose = torch.nn.functional.one_hot(torch.tensor(asked, dtype=torch.long), num_seats)
    return torch.cat(
        [padded[torch.tensor(rows).reshape(-1, num_seats)].flatten(1), whose.to(features.dtype)], 1
    )


class Critics(Learners):
    """The critics of a run."""

    def __init__(
        self,
        settings: Settings,
        adapters: Sequence[str],
        specs: Mapping[str, EnvSpec],
        num_features: int,
    ) -> None:
        """Make those that HANABI_ADVANTAGE names; `specs` are of what is played, by hash."""
        self._settings, self._adapters, self._specs = settings, adapters, specs
        self._is_central, self._num_seats = settings.advantage == "mappo", settings.players
        names, size = [*adapters], num_features
        if self._is_central:
            rivals = any(one.payoff != TEAM for one in specs.values())
            names = [TEAM] if any(one.payoff == TEAM for one in specs.values()) else []
            names += [f"seat_{seat}" for seat in range(self._num_seats) if rivals]
            size = self._num_seats * (num_features + 1)
        rate = settings.critic_learning_rate
        self.each: dict[str, Critic] = {
            name: Critic(size, rate, f"critic {settings.seed} {name}") for name in names
        }
        self._episodes: list[Episode] = []
        self._seen: dict[str, tuple[list[Place], torch.Tensor]] = {}
        self._values: dict[int, dict[int, float]] = {}

    def look(self, groups: Sequence[Sequence[Episode]], seen: list[Seen]) -> None:
        """Take a step's games, and what each player's turns look like."""
        self._episodes = [episode for group in groups for episode in group]
        self._values = {id(one): {} for one in self._episodes}
        players, places, features = by_place(seen)
        if self._is_central and places:
            features = joint_features(self._episodes, places, features, self._num_seats)
        rows = defaultdict(list)
        for row, (player, place) in enumerate(zip(players, places, strict=True)):
            rows[self._judge(player, place)].append(row)
        self._seen = {
            name: ([places[row] for row in rows[name]], features[rows[name]])
            for name in self.each
            if rows[name]
        }
        for name, (own, shown) in self._seen.items():
            for (game, turn), value in zip(
                own, self.each[name].values(shown).tolist(), strict=True
            ):
                self._values[id(self._episodes[game])][turn] = value * self._span(game)

    def chain(self, episode: Episode, player: int) -> Mapping[int, float]:
        """Return the values at the turns of a player's chain, by their number in the episode."""
        values = self._values[id(episode)]
        if self._specs[episode.spec_hash].payoff == TEAM:
            return values
        return {
            number: value
            for number, value in values.items()
            if episode.turns[number].player == player
        }

    def learn(self) -> dict[str, float]:
        """Learn for the next step from the games that were looked at; returns metrics."""
        found = {}
        for name, (places, features) in self._seen.items():
            worth: dict[Place, float] = {}
            for game, player in dict.fromkeys(
                (game, self._episodes[game].turns[turn].player) for game, turn in places
            ):
                episode = self._episodes[game]
                chain = self.chain(episode, player)
                above = lambda_advantages(episode, player, chain, self._settings.gae_lambda)
                own = (turn for turn in chain if episode.turns[turn].player == player)
                worth |= {
                    (game, turn): (chain[turn] + above[turn]) / self._span(game) for turn in own
                }
            targets = torch.tensor([worth[place] for place in places])
            found[f"{name}/value_explained"] = self.each[name].learn(features, targets)
        return found

    def estimator(self) -> Estimator:
        """Return the run's estimator for the games that were looked at."""
        settings = self._settings
        return choose_estimator(
            settings.advantage,
            settings.advantage_scale,
            chain=self.chain,
            decay=settings.gae_lambda,
        )

    def _judge(self, player: str, place: Place) -> str:
        if not self._is_central:
            return adapter_of(player, self._adapters)
        episode = self._episodes[place[0]]
        is_team = self._specs[episode.spec_hash].payoff == TEAM
        return TEAM if is_team else f"seat_{episode.turns[place[1]].player}"

    def _span(self, game: int) -> float:
        return self._specs[self._episodes[game].spec_hash].span
