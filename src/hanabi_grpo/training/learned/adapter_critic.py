"""HANABI_CRITIC=adapter: a critic that learns its features, with its own LoRA adapter.

    V(s) = head(h(s)),   h(s) = input of the output head, from base model + critic's LoRA

The hidden states are those of the frozen base model with the critic's adapter instead of the
player's, read before a reply, or before each of its tokens (HANABI_GAE_UNIT=token). A value
therefore depends on the player's conversation only, and neither the player's adapter nor the base
model is trained by it. There is one critic for each of the run's adapters, with the same rank and
alpha, and no second model.

The critic's weights are not parameters of the model, so they are not part of the trainer's
optimizer, the adapters sent to the server, references or earlier versions. They have their own
optimizer and are saved in the checkpoint with the state of other critics.

Every process computes its share of the turns. Gradients are summed over the processes, so that all
of them have the same critic.

Source: the critic of ROLL and MARSHAL (arXiv 2510.15414), where it is a separate model.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from hanabi_grpo.envs.base import EnvSpec
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.batching import CutPlan, cut_rows
from hanabi_grpo.training.estimators import LearnedValues
from hanabi_grpo.training.estimators.arithmetic import token_advantages
from hanabi_grpo.training.groups import flatten_groups
from hanabi_grpo.training.learned.critic import TEAM, CriticValues, lambda_targets
from hanabi_grpo.training.learned.features import turn_rows
from hanabi_grpo.training.learned.heads import (
    Learner,
    Observation,
    TurnPlace,
    explained_variance,
    restore_states,
    states_of,
    value_head,
)
from hanabi_grpo.training.micro_batch import MicroBatch, collate
from hanabi_grpo.training.model.adapters import lora_layers, use_adapter
from hanabi_grpo.training.model.forward import reply_states
from hanabi_grpo.training.model.output_head import forward_as
from hanabi_grpo.training.policy import Policy, without_checkpointing
from hanabi_grpo.types import Episode, adapter_of

PASSES = 4
"""Updates of a critic per step, each over all of the step's turns."""


class State(NamedTuple):
    """The state of a value: before a token of a reply."""

    game: int
    """Number of the game in the step."""
    turn: int
    """Number of the turn in the game."""
    token: int
    """Number of the token in the reply; always 0 if there is one value per turn."""

    @property
    def place(self) -> TurnPlace:
        """The turn."""
        return TurnPlace(self.game, self.turn)


class AdapterCritic(nn.Module):
    """LoRA matrices for each layer of the model that carries adapters, and a value head."""

    def __init__(self, model: Any, rank: int, alpha: int) -> None:
        """Create a critic whose value is 0 everywhere, and whose LoRA is initially 0.

        Args:
            model: The PEFT model, to whose base layers the critic adds its LoRA.
            rank: Rank of its matrices.
            alpha: Their product is multiplied by alpha / rank.
        """
        super().__init__()
        self.scale = alpha / rank
        self.down = nn.ParameterList()
        self.up = nn.ParameterList()
        for layer in lora_layers(model):
            base: Any = layer.get_base_layer()
            down = torch.empty(rank, base.in_features)
            # PEFT's own initialization.
            nn.init.kaiming_uniform_(down, a=5**0.5)
            self.down.append(nn.Parameter(down))
            self.up.append(nn.Parameter(torch.zeros(base.out_features, rank)))
        self.head = value_head(model.config.get_text_config().hidden_size)

    @contextlib.contextmanager
    def in_use(self, model: Any) -> Iterator[None]:
        """Temporarily make the model's layers compute the base model with this adapter."""
        # The previous pass may have contained several players, see `row_owners`.
        layers = lora_layers(model)
        use_adapter(model, layers[0].active_adapters[0])
        with contextlib.ExitStack() as stack:
            for layer, down, up in zip(layers, self.down, self.up, strict=True):
                base = layer.get_base_layer()
                forward = partial(_with_lora, base, down, up, self.scale)
                stack.enter_context(forward_as(layer, forward))
            yield

    def values(self, model: Any, batch: MicroBatch) -> torch.Tensor:
        """Return [marked tokens] values of a micro-batch's states; call it within `in_use`."""
        hidden = reply_states(model, model, batch.ids, batch.reply_mask, batch.tree)
        normalized = nn.functional.layer_norm(hidden, hidden.shape[-1:])
        values: torch.Tensor = self.head(normalized)[:, 0]
        return values


def _with_lora(
    base: nn.Module, down: torch.Tensor, up: torch.Tensor, scale: float, x: torch.Tensor
) -> torch.Tensor:
    output: torch.Tensor = base(x)
    low = nn.functional.linear(x.to(down.dtype), down)
    return output + (scale * nn.functional.linear(low, up)).to(output.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenValues(LearnedValues):
    """Values before each token of the replies of a step's trained players."""

    episodes: Sequence[Episode]
    """Kept alive, because the next mapping uses their ids as keys."""
    by_episode: Mapping[int, Mapping[int, Sequence[float]]]
    """By id(episode) and turn number: the value before each token, in points."""

    def token_chain(self, episode: Episode, player: int) -> Mapping[int, Sequence[float]]:
        """Return the values before each token of the player's replies, by turn number."""
        own = {}
        for number, values in self.by_episode[id(episode)].items():
            if episode.turns[number].player == player:
                own[number] = values
        return own


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """One micro-batch of this process's share of a step's states."""

    batch: MicroBatch
    states: Sequence[State]
    """In the order of the marked tokens; empty if the share is empty."""


class AdapterCritics:
    """The critics of a run; has the methods of `ValueLearner` that the loop calls."""

    def __init__(
        self,
        settings: Settings,
        specs: Mapping[str, EnvSpec],
        *,
        policy: Policy,
        accelerator: Accelerator,
        cut: CutPlan,
        pad_id: int,
    ) -> None:
        """Create a critic for each adapter of the run.

        Args:
            settings: The run's settings.
            specs: Specs of the boards that are played, by hash.
            policy: The model with all adapters, complete on every process.
            accelerator: accelerate's handle of the processes.
            cut: How a player's rows are cut into micro-batches.
            pad_id: Token for padding rows.
        """
        self._specs = specs
        self._policy = policy
        self._accelerator = accelerator
        self._cut = cut
        self._pad_id = pad_id
        self._decay = settings.gae_lambda
        self._gamma = settings.gamma
        self._of_tokens = settings.gae_unit == "token"
        teams = [board for board, spec in specs.items() if spec.payoff == TEAM]
        self._team_boards = frozenset(teams)
        self._learners: dict[str, Learner] = {}
        for name in policy.adapter_names:
            make = partial(
                AdapterCritic, policy.model, settings.rank_of(name), settings.alpha_of(name)
            )
            seed = f"adapter critic {settings.seed} {name}"
            learner = Learner(make, settings.critic_learning_rate, seed)
            learner.head.to(policy.model.device)
            self._learners[name] = learner

    def observe(
        self,
        groups: Sequence[Sequence[Episode]],
        trained_seats: Sequence[str],
        players: Sequence[str],
    ) -> Observation:
        """Evaluate a step's states and learn from them; all processes call it together.

        Args:
            groups: The step's groups.
            trained_seats: The adapter trained in each seat, see `seats.SeatAssignment`.
            players: The player of the run in each seat.

        Returns:
            The values before learning, and as "<adapter>/value_explained" the share of its targets'
            variance that each critic had explained.
        """
        episodes = flatten_groups(groups)
        shares = self._shares(groups, trained_seats, players)
        shown: dict[str, dict[State, float]] = {}
        for name in self._learners:
            values = self._evaluate(name, shares[name])
            shown[name] = values
        learned = self._learned_values(episodes, shown)
        metrics = {}
        for name, values in shown.items():
            if not values:
                continue
            targets = self._targets(episodes, list(values), learned)
            spans = [self._span(episodes[state.game]) for state in targets]
            before = torch.tensor([values[state] for state in targets]) / torch.tensor(spans)
            wanted = torch.tensor([*targets.values()])
            metrics[f"{name}/value_explained"] = explained_variance(wanted, before)
            self._learn(name, shares[name], targets)
        return Observation(metrics=metrics, values=learned)

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of everything that a resumed run needs, by "<adapter>|<key>"."""
        return states_of(self._learners)

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore a `state`; a critic that is not in it stays newly initialized."""
        restore_states(self._learners, state)

    def _shares(
        self,
        groups: Sequence[Sequence[Episode]],
        trained_seats: Sequence[str],
        players: Sequence[str],
    ) -> Mapping[str, Sequence[_Share]]:
        """Return this process's micro-batches of each critic; every process has equally many."""
        episodes = flatten_groups(groups)
        shares: dict[str, list[_Share]] = defaultdict(list)
        for seat, player in enumerate(players):
            all_rows = turn_rows(groups, seat, trained_seats, each_token=self._of_tokens)
            for rows in cut_rows(all_rows, self._cut):
                states: list[State] = []
                for row in rows:
                    for place in row.places:
                        turn = episodes[place.game].turns[place.turn]
                        num_states = len(turn.reply_ids) if self._of_tokens else 1
                        states.extend(State(*place, token) for token in range(num_states))
                # The number of tokens would divide a policy loss, which does not exist here.
                batch = collate(
                    rows,
                    player,
                    1,
                    self._pad_id,
                    self._policy.model.device,
                    self._cut.shares_prefixes,
                )
                name = adapter_of(player, self._policy.adapter_names)
                shares[name].append(_Share(batch=batch, states=states))
        return shares

    def _evaluate(self, name: str, shares: Sequence[_Share]) -> dict[State, float]:
        """Return a critic's value of each state on all processes, as a share of the board's span.

        The result is sorted, and equal on every process.
        """
        critic: AdapterCritic = self._learners[name].head
        model = self._policy.model
        pairs: list[tuple[State, float]] = []
        with torch.no_grad(), critic.in_use(model), without_checkpointing(self._policy.layers):
            for share in shares:
                values = critic.values(model, share.batch)
                pairs.extend(zip(share.states, values.tolist(), strict=True))
        return dict(sorted(gather_object(pairs)))

    def _learned_values(
        self, episodes: Sequence[Episode], shown: Mapping[str, dict[State, float]]
    ) -> LearnedValues:
        """Convert shares to points, in place, and return them in the form the estimator reads."""
        by_turn: dict[int, dict[int, list[float]]] = {id(episode): {} for episode in episodes}
        for values in shown.values():
            for state, share in values.items():
                episode = episodes[state.game]
                values[state] = share * self._span(episode)
                by_turn[id(episode)].setdefault(state.turn, []).append(values[state])
        if self._of_tokens:
            return TokenValues(episodes=episodes, by_episode=by_turn)
        firsts = {}
        for key, turns in by_turn.items():
            firsts[key] = {number: first for number, [first] in turns.items()}
        return CriticValues(episodes=episodes, by_episode=firsts, team_boards=self._team_boards)

    def _targets(
        self, episodes: Sequence[Episode], states: Sequence[State], values: LearnedValues
    ) -> dict[State, float]:
        """Return V + A of some states of one critic, as a share of the board's span."""
        spans = [self._span(episode) for episode in episodes]
        if not self._of_tokens:
            targets = lambda_targets(
                episodes,
                [state.place for state in states],
                values,
                spans,
                decay=self._decay,
                gamma=self._gamma,
            )
            return dict(zip(states, targets.tolist(), strict=True))
        found: dict[State, float] = {}
        for game, player in sorted(
            {(s.game, episodes[s.game].turns[s.turn].player) for s in states}
        ):
            episode = episodes[game]
            chain = values.token_chain(episode, player) or {}
            advantages = token_advantages(episode, player, chain, self._decay, self._gamma)
            for turn, own in chain.items():
                for token, (value, advantage) in enumerate(zip(own, advantages[turn], strict=True)):
                    found[State(game, turn, token)] = (value + advantage) / spans[game]
        return {state: found[state] for state in states}

    def _learn(self, name: str, shares: Sequence[_Share], targets: Mapping[State, float]) -> None:
        """Update a critic several times toward its targets."""
        learner = self._learners[name]
        critic: AdapterCritic = learner.head
        model = self._policy.model
        if learner.steps == 0:
            with torch.no_grad():
                critic.head[-1].bias.fill_(sum(targets.values()) / len(targets))
        for _ in range(PASSES):
            learner.optimizer.zero_grad()
            with critic.in_use(model):
                for share in shares:
                    wanted = [targets[state] for state in share.states]
                    values = critic.values(model, share.batch)
                    errors = values - torch.tensor(wanted, device=values.device)
                    (errors.square().sum() / len(targets)).backward()
            self._add_up(critic)
            learner.step()
        learner.steps += 1

    def _add_up(self, critic: AdapterCritic) -> None:
        """Sum the gradients over all processes."""
        parameters = [*critic.parameters()]
        if self._accelerator.num_processes == 1:
            return
        gradients = []
        for parameter in parameters:
            gradient = parameter.grad
            gradients.append(torch.zeros_like(parameter) if gradient is None else gradient)
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        total = self._accelerator.reduce(flat, reduction="sum")
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, gradient in zip(parameters, total.split(sizes), strict=True):
            parameter.grad = gradient.view_as(parameter).clone()

    def _span(self, episode: Episode) -> float:
        """Return the difference between the best and the worst return on the episode's board."""
        return self._specs[episode.spec_hash].span
