"""What critics and heads of credit look at, and the trainer that has them.

A turn is seen as parts of one size, each brought to mean 0 and deviation 1:

1. hidden states of the model with the player's adapter, where its output head reads them. For
   critics (`critic`) at the last token of the prompt; for credit (`credit`) at the reply's own
   tokens, pooled to their mean;
2. the mean of the turn's message in the model's embeddings;
3. for credit alone the mean of its reply in them.

The first alone explained .10 of the returns in Full Hanabi with a tiny model, the second .5. All
are detached, so what learns from them needs no part in the loss, in DeepSpeed or in a sync."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import nn
from trl import GRPOTrainer

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.training.advantages import Estimator, choose_estimator
from hanabi_grpo.training.batching import TokenRow, collate, cut_rows
from hanabi_grpo.training.credit import Credits
from hanabi_grpo.training.critic import Critics
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.forward import reply_features
from hanabi_grpo.training.model.heads import Place
from hanabi_grpo.types import Episode, adapter_of, is_trained

Span = tuple[int, int]
"""From one position in a row's tokens to another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRow(TokenRow):
    """One sequence of a player up to its last prompt, or with `replies` to its end.

    Its mask is true at the first token of each reply; with `replies` at the token behind each token
    of a reply, so that what is read there has seen it. The last reply is followed by a token that
    nothing computes."""

    places: list[Place] = field(default_factory=list)
    """Of those replies' turns."""
    messages: list[Span] = field(default_factory=list)
    replies: list[Span] = field(default_factory=list)
    """Empty where only prompts are looked at."""


def asked_rows(
    groups: Sequence[Sequence[Episode]], player: int, own: Sequence[str], *, replies: bool = False
) -> list[AskedRow]:
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
            start, length = len(row.ids) + len(turn.prompt_ids), len(turn.reply_ids)
            row.messages.append((len(row.ids), start))
            row.ids.extend((*turn.prompt_ids, *turn.reply_ids))
            row.mask.extend([False] * (len(row.ids) + replies - len(row.mask)))
            if replies:
                row.replies.append((start, start + length))
                row.mask[start + 1 : start + length + 1] = [True] * length
            else:
                row.mask[start] = True
            row.places.append((game, number))
    for row in rows:
        if replies:
            row.ids.append(row.ids[-1])
        row.logprobs.extend([0.0] * len(row.ids))
        row.advantages.extend([0.0] * len(row.ids))
    return rows


def span_means(
    embeddings: torch.nn.Module, ids: torch.Tensor, spans: Sequence[Sequence[Span]]
) -> torch.Tensor:
    """Return [spans, width] means of the embeddings of each row's spans in [rows, tokens] ids, in
    float32.
    """
    with torch.no_grad():
        sums = nn.functional.pad(embeddings(ids).float().cumsum(1), (0, 0, 1, 0))
    flat = [(row, start, end) for row, own in enumerate(spans) for start, end in own]
    rows, starts, ends = (
        torch.tensor(flat, dtype=torch.long, device=ids.device).reshape(-1, 3).unbind(1)
    )
    return (sums[rows, ends] - sums[rows, starts]) / (ends - starts).clamp(min=1)[:, None]


def turn_features(
    model: torch.nn.Module,
    unwrapped: Any,
    batch: Mapping[str, Any],
    share: Sequence[AskedRow],
    *,
    replies: bool,
) -> torch.Tensor:
    """Return [turns, parts · width] features of a micro-batch's turns, on the CPU, row by row.

    `model` is what is called, `unwrapped` the model itself, with the player's adapter in use. A
    share without turns calls them as any other, so that no rank waits for another."""
    ids, data = batch["model_inputs"]["input_ids"], batch["grpo_batch"]
    hidden = reply_features(model, unwrapped, ids, data.completion_mask, data.tree)
    lengths = [end - start for row in share for start, end in row.replies]
    if lengths:
        hidden = torch.stack([one.mean(0) for one in hidden.split(lengths)])
    embeddings = unwrapped.get_input_embeddings()
    parts = [hidden, span_means(embeddings, ids, [row.messages for row in share])]
    if replies:
        parts.append(span_means(embeddings, ids, [row.replies for row in share]))
    return torch.cat([nn.functional.layer_norm(part, part.shape[-1:]) for part in parts], 1).cpu()


class Valuing(GRPOTrainer):
    """A trainer that has critics or heads of credit, where its estimator needs them."""

    critics: Critics | Credits | None = None

    def make_critics(self, setups: Sequence[Setup[Any]]) -> None:
        """Make them for what is played; once there is a model."""
        self.critic_states: dict[int, dict[str, torch.Tensor]] = {}
        """By the number of steps before them, as `baselines`."""
        specs = {one.spec.hash: one.spec for one in setups}
        width = self.model.config.get_text_config().hidden_size
        if self.settings.advantage in ("ippo", "mappo"):
            self.critics = Critics(self.settings, self.adapter_names, specs, 2 * width)
        elif self.settings.advantage in ("vdn", "qmix"):
            self.critics = Credits(self.settings, self.adapter_names, specs, width)

    def estimator(self, baselines: Mapping[str, float]) -> Estimator:
        """Return the run's estimator for the step whose games were looked at."""
        if self.critics is None:
            return choose_estimator(
                self.settings.advantage, self.settings.advantage_scale, baselines
            )
        return self.critics.estimator()

    def look(
        self,
        groups: Sequence[Sequence[Episode]],
        own: Sequence[str],
        players: Sequence[str],
        version: int,
    ) -> dict[str, float]:
        """Let critics or heads see a step's games, and learn from them; returns metrics."""
        if self.critics is None:
            return {}
        start, model = time.perf_counter(), self.accelerator.unwrap_model(self.model)
        seen = []
        replies = isinstance(self.critics, Credits)
        for seat, player in enumerate(players):
            adapters.use_adapter(model, adapter_of(player, self.adapter_names))
            shares = cut_rows(
                asked_rows(groups, seat, own, replies=replies),
                tokens=self.plan.tokens_per_micro_batch,
                parts=self.plan.micro_batches_per_player,
                rank=self.accelerator.process_index,
                world_size=self.accelerator.num_processes,
                shared=self.shared,
            )
            for share in shares:
                batch = collate(
                    share, player, 1, self.processing_class.pad_token_id, model.device, self.shared
                )
                features = turn_features(self.model, model, batch, share, replies=replies)
                seen.append((player, [place for row in share for place in row.places], features))
        before = self.critics.state()
        self.critics.look(groups, gather_object(seen))
        found = self.critics.learn()
        self.critic_states = {version: before, version + 1: self.critics.state()}
        self._metrics["train"]["time/critic"].append(time.perf_counter() - start)
        return found
