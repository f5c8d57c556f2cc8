"""Whose doing a return was: learned credit, for HANABI_ADVANTAGE=vdn and qmix. Experimental.

    q_p = Σ_{turns t of p} head_p(h(t)),   Q_tot = mixer(q_1 … q_n),   loss = mean over games (Q_tot − R)²

h(t) is what `valuing` makes of a turn: its reply's pooled hidden states, its message, its reply,
all detached. R is what the game paid the team: the mean over its seats, replies' penalties left
out, in shares of what the board pays.

- `vdn`: Q_tot = Σ_p q_p (arXiv 1706.05296).
- `qmix`: Q_tot = w₂ᵀ ELU(W₁ q + b₁) + b₂, all four made of the state s by a hypernetwork, W₁ and w₂
  through |·|, so that Q_tot falls with no q_p (arXiv 1803.11485). s are the first messages of all
  seats, means over the games of the group: it tells tasks apart, and hardly what a reply changed,
  which b₂ could else claim for itself.

A game has one return, so what is mixed are games and not moments: a player's part is the sum over
its turns, which all get it.

A player's advantage is ours: its q_p − mean q_p over the group (`advantages.learned_credit`). With
`qmix` q_p has no unit, so it is multiplied by the mean over the step's games of ∂Q_tot / ∂q_p, one
positive number for each seat. A penalty is added to its own player's part as it is, and moves no
head. The heads learn from a step's games before they judge them, else they would hand on nothing of
what was paid in them."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from hanabi_grpo.envs.base import EnvSpec
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.advantages import Estimator, choose_estimator
from hanabi_grpo.training.model.heads import (
    Learner,
    Learners,
    Place,
    Seen,
    by_place,
    explained,
    value_head,
)
from hanabi_grpo.types import REPLY_PARTS, Episode, adapter_of

PASSES = 16
"""Over a step's games, each one update."""
MIXER_WIDTH = 32
"""Of QMIX's hidden layer, as in its source."""


class MonotoneMixer(nn.Module):
    """QMIX's mixer: its output falls with no part, whatever the state."""

    def __init__(self, num_seats: int, num_features: int) -> None:
        """Make the hypernetworks: linear, and for the last bias with one hidden layer, as in the
        source.
        """
        super().__init__()
        self.first = nn.Linear(num_features, num_seats * MIXER_WIDTH)
        self.first_bias = nn.Linear(num_features, MIXER_WIDTH)
        self.last = nn.Linear(num_features, MIXER_WIDTH)
        self.last_bias = nn.Sequential(
            nn.Linear(num_features, MIXER_WIDTH), nn.ReLU(), nn.Linear(MIXER_WIDTH, 1)
        )
        # A task is worth what all are until there is something to say of it.
        for one in (*self.first_bias.parameters(), *self.last_bias[-1].parameters()):
            nn.init.zeros_(one)

    def forward(self, parts: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return [games] of [games, seats] parts and [games, size] states."""
        weights = self.first(states).abs().view(*parts.shape, MIXER_WIDTH)
        hidden = nn.functional.elu((parts[:, :, None] * weights).sum(1) + self.first_bias(states))
        return (hidden * self.last(states).abs()).sum(1) + self.last_bias(states)[:, 0]


class Mixing(nn.Module):
    """Heads of all adapters, and QMIX's mixer."""

    def __init__(
        self, adapters: Sequence[str], width: int, num_seats: int, *, is_monotone: bool
    ) -> None:
        """Take the model's `width`: a turn has three parts of it, a state one for each seat."""
        super().__init__()
        self.heads = nn.ModuleDict({name: value_head(3 * width) for name in adapters})
        self.mixer = MonotoneMixer(num_seats, num_seats * width) if is_monotone else None

    def total(self, parts: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return [games] Q_tot of [games, seats] parts and [games, size] states."""
        return parts.sum(1) if self.mixer is None else self.mixer(parts, states)

    def parts(
        self, shown: Mapping[str, tuple[torch.Tensor, torch.Tensor]], games: int, seats: int
    ) -> torch.Tensor:
        """Return [games, seats] q of what each adapter's turns look like: (game · seats + seat,
        features) of each.
        """
        found = torch.zeros(games * seats)
        for name, (cells, features) in shown.items():
            found = found.index_add(0, cells, self.heads[name](features)[:, 0])
        return found.view(games, seats)


def team_return(episode: Episode) -> float:
    """Return what a game paid, the mean over its seats, without the parts for replies
    (`REPLY_PARTS`).
    """
    paid = (part for turn in episode.turns for parts in turn.rewards for part in parts.items())
    return sum(value for name, value in paid if name not in REPLY_PARTS) / episode.num_players


class Credits(Learners):
    """The heads and the mixer of a run."""

    def __init__(
        self, settings: Settings, adapters: Sequence[str], specs: Mapping[str, EnvSpec], width: int
    ) -> None:
        """Make what HANABI_ADVANTAGE names; `specs` are of what is played, by hash, `width` is the
        model's.
        """
        self._settings, self._adapters, self._specs, self._width = settings, adapters, specs, width
        self._seats, name = settings.players, settings.advantage
        self._learner = Learner(
            lambda: Mixing(adapters, width, self._seats, is_monotone=name == "qmix"),
            settings.critic_learning_rate,
            f"credit {settings.seed} {name}",
        )
        self.each = {name: self._learner}
        self._episodes: list[Episode] = []
        self._shown: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._states = torch.empty(0, 0)
        self._parts: dict[int, list[float]] = {}

    def look(self, groups: Sequence[Sequence[Episode]], seen: list[Seen]) -> None:
        """Take a step's games, and what each player's turns look like."""
        self._episodes = [episode for group in groups for episode in group]
        players, places, features = by_place(seen)
        seats = [self._episodes[game].turns[turn].player for game, turn in places]
        cells = torch.tensor(
            [game * self._seats + seat for (game, _), seat in zip(places, seats, strict=True)],
            dtype=torch.long,
        )
        self._shown = {}
        for name in self._adapters:
            rows = [
                row
                for row, player in enumerate(players)
                if adapter_of(player, self._adapters) == name
            ]
            if rows:
                self._shown[name] = cells[rows], features[rows]
        self._states = self._see_tasks([len(group) for group in groups], places, seats, features)

    def _see_tasks(
        self,
        sizes: Sequence[int],
        places: Sequence[Place],
        seats: Sequence[int],
        features: torch.Tensor,
    ) -> torch.Tensor:
        """Return [games, seats · width] means over each group of its seats' first messages, 0
        without any.
        """
        group_of = [number for number, size in enumerate(sizes) for _ in range(size)]
        first: dict[Place, int] = {}
        for row, ((game, _), seat) in enumerate(zip(places, seats, strict=True)):
            first.setdefault((game, seat), row)
        cells = torch.tensor(
            [group_of[game] * self._seats + seat for game, seat in first], dtype=torch.long
        )
        sums, counts = (
            torch.zeros(len(sizes) * self._seats, self._width),
            torch.zeros(len(sizes) * self._seats),
        )
        if first:
            messages = features[[*first.values()], self._width : 2 * self._width]
            sums, counts = (
                sums.index_add(0, cells, messages),
                counts.index_add(0, cells, torch.ones(len(first))),
            )
        means = sums / counts.clamp(min=1)[:, None]
        return means.view(len(sizes), self._seats * self._width)[group_of]

    def learn(self) -> dict[str, float]:
        """Learn from the games that were looked at, and say what each player's part in them was;
        returns metrics.
        """
        self._parts = {id(episode): [0.0] * self._seats for episode in self._episodes}
        if not self._shown:
            return {}
        spans = torch.tensor([self._specs[one.spec_hash].span for one in self._episodes])
        targets = torch.tensor([team_return(one) for one in self._episodes]) / spans
        if self._learner.steps == 0:
            self._start_at(float(targets.mean()))
        before = self._mixed()[1].detach()
        for _ in range(PASSES):
            self._learner.update((self._mixed()[1] - targets).square().mean())
        self._learner.steps += 1
        parts, mixed = self._mixed()
        [slopes] = torch.autograd.grad(mixed.sum(), parts)
        worth = parts.detach() * slopes.mean(0) * spans[:, None]
        self._parts = {
            id(one): own for one, own in zip(self._episodes, worth.tolist(), strict=True)
        }
        return {"credit_explained": explained(targets, before)}

    def worth(self, episode: Episode, player: int) -> float:
        """Return a player's part in a game that was looked at, in points: its q, and the penalties
        of its replies.
        """
        return self._parts[id(episode)][player] + episode.reward(player, *sorted(REPLY_PARTS))

    def estimator(self) -> Estimator:
        """Return the run's estimator for the games that were learned from."""
        return choose_estimator(
            self._settings.advantage, self._settings.advantage_scale, worth=self.worth
        )

    def _mixed(self) -> tuple[torch.Tensor, torch.Tensor]:
        module = self._learner.head
        parts = module.parts(self._shown, len(self._episodes), self._seats)
        return parts, module.total(parts, self._states)

    def _start_at(self, mean: float) -> None:
        """Let all games be worth the mean before anything is learned."""
        module = self._learner.head
        turns = sum(len(cells) for cells, _ in self._shown.values())
        with torch.no_grad():
            if module.mixer is not None:
                module.mixer.last_bias[-1].bias.fill_(mean)
                return
            for head in module.heads.values():
                head[-1].bias.fill_(mean * len(self._episodes) / turns)
