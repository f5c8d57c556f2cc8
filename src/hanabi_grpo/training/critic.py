"""What a turn is worth before it is made: a critic for each adapter, for HANABI_ADVANTAGE=ippo.

    V(s) = head(h(s)),   δ_k = r_k + V(s_{k+1}) − V(s_k),   A_k = Σ_j λ^j δ_{k+j}

GAE (arXiv 1506.02438) without a discount. h(s) is two things, each brought to mean 0 and deviation 1: the hidden state
that the model, with the player's adapter, has at the last token of the prompt, where its output head reads it; and the
mean of the turn's message in the model's embeddings. The former holds what decides the next token and little else: of
the returns in Full Hanabi, with a tiny model, it explained .10; the latter, alone or with it, about .5. Both are
detached: a critic learns from the policy's features and never moves them, and an adapter's gradient is what it would be
with these advantages from anywhere else. So a critic needs no part in the loss, in DeepSpeed or in a sync: it has an
optimizer of its own, and stays with the trainer.

s_k are the states in which a player was asked. Where all are paid alike (`EnvSpec.payoff`), the value that the critic
of whoever moves gives is one of everybody's return, so the team's turns are one chain; elsewhere a player's chain are
its own turns. With a critic for each player this is independent PPO, IPPO (arXiv 2011.09533); turns in the place of
tokens as in MARSHAL (arXiv 2510.15414).
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import nn
from trl import GRPOTrainer

from hanabi_grpo.envs.base import EnvSpec, Setup
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.advantages import Estimator, choose_estimator, lambda_advantages
from hanabi_grpo.training.batching import TokenRow, collate, cut_rows
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.forward import reply_features
from hanabi_grpo.types import Episode, adapter_of, is_trained

WIDTH = 64
"""Of the one hidden layer of a head."""
PASSES = 4
"""Over a step's turns, to learn from them."""
MINIBATCH = 512
"""Turns of one update."""
MAX_NORM = 1.0
"""Of an update's gradient."""
Place = tuple[int, int]
"""Number of a game in the step, and of a turn in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRow(TokenRow):
    """One sequence of a player up to its last prompt; its mask is true at the first token of each reply."""

    places: list[Place] = field(default_factory=list)
    """Of those replies' turns."""
    messages: list[tuple[int, int]] = field(default_factory=list)
    """Of each its message: from one position in `ids` to another."""


def asked_rows(groups: Sequence[Sequence[Episode]], player: int, own: Sequence[str]) -> list[AskedRow]:
    """Return the sequences in which a trained player was asked; see `batching.sequences_of`."""
    rows: list[AskedRow] = []
    for game, episode in enumerate(episode for group in groups for episode in group):
        row = None
        if not is_trained(episode, player, own):
            continue
        for number, turn in enumerate(episode.turns):
            if turn.player != player or not turn.reply_ids:
                continue
            if row is None or turn.fresh:
                row = AskedRow(ids=[], mask=[], logprobs=[], advantages=[], game=game)
                rows.append(row)
            unread = [0.0] * (len(turn.prompt_ids) + len(turn.reply_ids))
            row.messages.append((len(row.ids), len(row.ids) + len(turn.prompt_ids)))
            row.ids.extend((*turn.prompt_ids, *turn.reply_ids))
            row.mask.extend([False] * len(turn.prompt_ids) + [True] + [False] * (len(turn.reply_ids) - 1))
            row.logprobs.extend(unread)
            row.advantages.extend(unread)
            row.places.append((game, number))
    return rows


def message_means(
    embeddings: torch.nn.Module, ids: torch.Tensor, messages: Sequence[Sequence[tuple[int, int]]]
) -> torch.Tensor:
    """Return [messages, width] means of the embeddings of each row's messages in [rows, tokens] ids, in float32."""
    with torch.no_grad():
        sums = nn.functional.pad(embeddings(ids).float().cumsum(1), (0, 0, 1, 0))
    spans = [(row, start, end) for row, own in enumerate(messages) for start, end in own]
    rows, starts, ends = torch.tensor(spans, dtype=torch.long, device=ids.device).reshape(-1, 3).unbind(1)
    return (sums[rows, ends] - sums[rows, starts]) / (ends - starts).clamp(min=1)[:, None]


class Critic:
    """One adapter's: a head, its optimizer, and what it has learned from."""

    def __init__(self, num_features: int, rate: float, seed: str) -> None:
        """Start at 0 everywhere."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]) >> 1)
            self.head = nn.Sequential(nn.Linear(num_features, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        self._last: Any = self.head[-1]
        nn.init.zeros_(self._last.weight)
        nn.init.zeros_(self._last.bias)
        self.optimizer = torch.optim.Adam(self.head.parameters(), lr=rate)
        self.steps = 0

    def values(self, features: torch.Tensor) -> torch.Tensor:
        """Return [turns] values of [turns, size] features."""
        with torch.no_grad():
            return self.head(features)[:, 0]

    def learn(self, features: torch.Tensor, targets: torch.Tensor) -> float:
        """Learn [turns] targets; returns the share of their variance that it had explained before."""
        before, spread = self.values(features), float(targets.var(unbiased=False))
        if self.steps == 0:
            with torch.no_grad():
                self._last.bias.fill_(targets.mean())
        order = torch.Generator().manual_seed(self.steps)
        for _ in range(PASSES):
            for chosen in torch.randperm(len(targets), generator=order).split(MINIBATCH):
                loss = (self.head(features[chosen])[:, 0] - targets[chosen]).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.head.parameters(), MAX_NORM)
                self.optimizer.step()
        self.steps += 1
        return 1 - float((targets - before).var(unbiased=False)) / spread if spread else 0.0

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of all that a resumed run needs."""
        found = {f"head.{name}": value for name, value in self.head.state_dict().items()}
        for number, moments in self.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{number}.{name}": value for name, value in moments.items()}
        return {name: value.clone() for name, value in found.items()} | {"steps": torch.tensor(self.steps)}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Put a `state` back."""
        moments: dict[int, dict[str, torch.Tensor]] = defaultdict(dict)
        head = {}
        for key, value in state.items():
            part, _, name = key.partition(".")
            if part == "head":
                head[name] = value
            elif part == "optimizer":
                number, _, moment = name.partition(".")
                moments[int(number)][moment] = value.clone()
        self.head.load_state_dict(head)
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": dict(moments)})
        self.steps = int(state["steps"])


class Critics:
    """The critics of a run."""

    def __init__(
        self, settings: Settings, adapters: Sequence[str], specs: Mapping[str, EnvSpec], num_features: int
    ) -> None:
        """Make one for each adapter; `specs` are of what is played, by hash."""
        self._decay, self._specs = settings.gae_lambda, specs
        rate = settings.critic_learning_rate
        self._each = {name: Critic(num_features, rate, f"critic {settings.seed} {name}") for name in adapters}
        self._episodes: list[Episode] = []
        self._seen: dict[str, tuple[list[Place], torch.Tensor]] = {}
        self._values: dict[int, dict[int, float]] = {}

    def look(self, groups: Sequence[Sequence[Episode]], seen: Sequence[tuple[str, list[Place], torch.Tensor]]) -> None:
        """Take a step's games, and what each player's turns look like: [turns, size] features at places."""
        self._episodes = [episode for group in groups for episode in group]
        self._values = {id(one): {} for one in self._episodes}
        self._seen = {}
        for name, critic in self._each.items():
            own = [one for one in seen if adapter_of(one[0], self._each) == name]
            places = [place for _, some, _ in own for place in some]
            if not places:
                continue
            # In one order, however many processes have looked.
            order = sorted(range(len(places)), key=places.__getitem__)
            features = torch.cat([features for _, _, features in own])[order]
            self._seen[name] = [places[at] for at in order], features
            for (game, turn), value in zip(self._seen[name][0], critic.values(features).tolist(), strict=True):
                self._values[id(self._episodes[game])][turn] = value * self._span(game)

    def chain(self, episode: Episode, player: int) -> Mapping[int, float]:
        """Return the values at the turns of a player's chain, by their number in the episode."""
        values = self._values[id(episode)]
        if self._specs[episode.spec_hash].payoff == "team":
            return values
        return {number: value for number, value in values.items() if episode.turns[number].player == player}

    def learn(self) -> dict[str, float]:
        """Learn from the games that were looked at; returns metrics."""
        found = {}
        for name, (places, features) in self._seen.items():
            worth: dict[Place, float] = {}
            for game, player in dict.fromkeys((game, self._episodes[game].turns[turn].player) for game, turn in places):
                episode = self._episodes[game]
                chain = self.chain(episode, player)
                above = lambda_advantages(episode, player, chain, self._decay)
                own = (turn for turn in chain if episode.turns[turn].player == player)
                worth |= {(game, turn): (chain[turn] + above[turn]) / self._span(game) for turn in own}
            targets = torch.tensor([worth[place] for place in places])
            found[f"{name}/value_explained"] = self._each[name].learn(features, targets)
        return found

    def _span(self, game: int) -> float:
        low, high = self._specs[self._episodes[game].spec_hash].return_range
        return high - low or 1.0

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of all critics' states, by "<adapter>|<name>"."""
        return {f"{name}|{key}": value for name, one in self._each.items() for key, value in one.state().items()}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Put a `state` back; an adapter without one keeps its new critic."""
        for name, critic in self._each.items():
            own = {key.removeprefix(f"{name}|"): value for key, value in state.items() if key.startswith(f"{name}|")}
            if own:
                critic.restore(own)


class Valuing(GRPOTrainer):
    """A trainer that has critics, where its estimator needs them."""

    critics: Critics | None = None

    def make_critics(self, setups: Sequence[Setup[Any]]) -> None:
        """Make them for what is played; once there is a model."""
        self.critic_states: dict[int, dict[str, torch.Tensor]] = {}
        """By the number of steps before them, as `baselines`."""
        if self.settings.advantage == "ippo":
            specs = {one.spec.hash: one.spec for one in setups}
            width = self.model.config.get_text_config().hidden_size
            self.critics = Critics(self.settings, self.adapter_names, specs, 2 * width)

    def estimator(self, baselines: Mapping[str, float]) -> Estimator:
        """Return the run's estimator for the step whose games were looked at."""
        name, scale = self.settings.advantage, self.settings.advantage_scale
        if self.critics is None:
            return choose_estimator(name, scale, baselines)
        return choose_estimator(name, scale, chain=self.critics.chain, decay=self.settings.gae_lambda)

    def look(
        self, groups: Sequence[Sequence[Episode]], own: Sequence[str], players: Sequence[str], version: int
    ) -> dict[str, float]:
        """Let the critics see a step's games, and learn from them for the next step; returns metrics."""
        if self.critics is None:
            return {}
        start, model = time.perf_counter(), self.accelerator.unwrap_model(self.model)
        seen = []
        for seat, player in enumerate(players):
            adapters.use_adapter(model, adapter_of(player, self.adapter_names))
            shares = cut_rows(
                asked_rows(groups, seat, own),
                tokens=self.plan.tokens_per_micro_batch,
                parts=self.plan.micro_batches_per_player,
                rank=self.accelerator.process_index,
                world_size=self.accelerator.num_processes,
                shared=self.shared,
            )
            for share in shares:
                batch = collate(share, player, 1, self.processing_class.pad_token_id, model.device, self.shared)
                ids, data = batch["model_inputs"]["input_ids"], batch["grpo_batch"]
                parts = (
                    reply_features(self.model, model, ids, data.completion_mask, data.tree),
                    message_means(model.get_input_embeddings(), ids, [row.messages for row in share]),
                )
                features = torch.cat([nn.functional.layer_norm(part, part.shape[-1:]) for part in parts], 1)
                seen.append((player, [place for row in share for place in row.places], features.cpu()))
        before = self.critics.state()
        self.critics.look(groups, gather_object(seen))
        found = self.critics.learn()
        self.critic_states = {version: before, version + 1: self.critics.state()}
        self._metrics["train"]["time/critic"].append(time.perf_counter() - start)
        return found
