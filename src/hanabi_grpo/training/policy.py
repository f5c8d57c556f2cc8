"""The policies that the trainer can compute: current and earlier versions, and the base model."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from transformers.modeling_layers import GradientCheckpointingLayer

from hanabi_grpo.errors import VersionError
from hanabi_grpo.token_filter import ALL_TOKENS, TokenFilter
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.dropout import switch_off_dropout
from hanabi_grpo.training.model.forward import (
    PlayerRows,
    can_share_passes,
    join_lora_products,
    reply_law,
    reply_logps,
    shared_reply_logps,
)
from hanabi_grpo.training.model.output_head import (
    CHUNK,
    FilteredSampling,
    Float32Weights,
    TokenLaw,
    computes_logits,
    in_float32,
)
from hanabi_grpo.training.model.row_owners import RowOwners
from hanabi_grpo.training.model.shared_prefixes import share_prefixes
from hanabi_grpo.types import adapter_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """One base model, and how logprobs are computed with it."""

    model: PeftModel
    """With the adapters on it."""
    needs_whole_logits: bool
    """Whether logits are held for a whole micro-batch, see `output_head.computes_logits`."""
    token_filter: TokenFilter
    """Which tokens of its vocabulary can be sampled."""


class Policy:
    """A frozen base model with the run's adapters; computes logprobs of replies.

    With several base models, the model is a `TeamModel`, and all computations use the base model of
    the micro-batch's player.

    Every method that computes logprobs uses one adapter, that of the micro-batch's player unless
    documented otherwise. Logprobs are in nats, at the sampling temperature, [rows, tokens - 1], and
    0 where no token of a reply, a teacher or an answer is predicted.
    """

    def __init__(
        self,
        model: PeftModel,
        adapter_names: Sequence[str],
        *,
        temperature: float,
        has_whole_weights: bool,
        token_filter: TokenFilter = ALL_TOKENS,
    ) -> None:
        """Prepare the forward pass.

        Args:
            model: The base model with all adapters, not wrapped by DeepSpeed; its dropout is
                disabled here.
            adapter_names: The adapters of the run.
            temperature: Temperature at which replies are sampled.
            token_filter: Which tokens can be sampled.
            has_whole_weights: False under ZeRO-3, where a process holds a part of each weight. Then
                prefixes are not shared and logits are held for a whole micro-batch.

        Raises:
            SettingsError: See `adapters.check_served`.
        """
        self.model = model
        self.adapter_names = tuple(adapter_names)
        self.has_whole_weights = has_whole_weights
        self._temperature = temperature
        parts = adapters.parts_of(model)
        for part in parts:
            adapters.check_served(part)
        largest = max(part.config.get_text_config().vocab_size for part in parts)
        self.token_filter = token_filter.within(largest)
        """Which tokens of the largest vocabulary can be sampled; logprobs are over all tokens."""
        self._trained: torch.nn.Module = model
        self._float32_weights = Float32Weights()
        """Copies in the place of the base models' weights within `in_float32`."""
        self.adapter_parameters = adapter_parameters(model)
        """Every parameter of every adapter, by its name in the model."""
        self.layers = [
            module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
        ]
        """Layers with gradient checkpointing, see `without_checkpointing`."""
        self.shares_prefixes = has_whole_weights
        """Whether micro-batches need the tree of their shared prefixes."""
        shares = switch_off_dropout(model)
        if shares:
            logger.info(
                "dropout of this model is disabled (%s), because the server samples without it",
                ", ".join(f"{name} {share:g}" for name, share in shares.items()),
            )
        self._owners = RowOwners(model)
        if has_whole_weights:
            join_lora_products(model, self._owners)
        self._bases: dict[str, _Base] = {}
        """Base models by adapter."""
        for part in parts:
            names = [name for name in self.adapter_names if adapters.part_of(model, name) is part]
            adapters.use_adapter(model, names[0])
            base = self._prepare(part, token_filter)
            self._bases |= dict.fromkeys(names, base)
        self.shares_passes = self._prepare_shared_passes()
        """Whether micro-batches of several players may share a forward pass."""
        adapters.use_adapter(model, self.adapter_names[0])

    def _prepare_shared_passes(self) -> bool:
        """Prepare passes shared by several players; if that is impossible, log the reason."""
        # With a single adapter, players also have separate micro-batches, but need no isolation.
        # Different base models have different layers. Without trees, attention would be computed
        # in other shapes than in a pass of one player.
        if len(self.adapter_names) == 1 or self.has_several_bases or not self.shares_prefixes:
            return False
        reason = can_share_passes(self.model, self._owners, self.adapter_names)
        if reason is not None:
            logger.info("each player has separate forward passes: %s", reason)
        return reason is None

    def _prepare(self, part: PeftModel, token_filter: TokenFilter) -> _Base:
        """Prepare a base model; log what it does not support."""
        reason: str | None = "under ZeRO-3 the output head's weights are partitioned"
        if self.has_whole_weights:
            # Prefixes are shared for all base models or for none: batches are split the same way.
            self.shares_prefixes = share_prefixes(part) and self.shares_prefixes
            reason = computes_logits(part)
        if reason is not None:
            logger.warning(
                "logits are held for a whole micro-batch, not %d tokens at a time: %s",
                CHUNK,
                reason,
            )
        return _Base(
            model=part,
            needs_whole_logits=reason is not None,
            token_filter=token_filter.within(part.config.get_text_config().vocab_size),
        )

    @property
    def has_several_bases(self) -> bool:
        """Whether players have different base models."""
        return len(adapters.parts_of(self.model)) > 1

    @property
    def width(self) -> int:
        """Size of the hidden states, the largest of all base models."""
        parts = adapters.parts_of(self.model)
        return max(int(part.config.get_text_config().hidden_size) for part in parts)

    def num_parameters(self) -> int:
        """Return the number of parameters with adapters, the mean over several base models."""
        total = 0
        for base in self._bases.values():
            total += base.model.num_parameters()
        return total // len(self._bases)

    def model_of(self, player: str) -> PeftModel:
        """Return the base model of a player, with all adapters on it."""
        return self._base_of(player).model

    def _base_of(self, player: str) -> _Base:
        return self._bases[adapter_of(player, self.adapter_names)]

    def base_name(self, player: str) -> str:
        """Return the name of a player's base model if there are several, else ""."""
        if not self.has_several_bases:
            return ""
        return str(self.model_of(player).get_base_model().name_or_path)

    def on_same_base(self, player: str) -> tuple[str, ...]:
        """Return the adapters on a player's base model, including its own."""
        model = self.model_of(player)
        return tuple(name for name, base in self._bases.items() if base.model is model)

    def train_through(self, wrapped: torch.nn.Module) -> None:
        """From now on, compute logprobs with a gradient through DeepSpeed's engine."""
        self._trained = wrapped

    @property
    def trained_module(self) -> torch.nn.Module:
        """The module to call for a gradient: the model, or DeepSpeed's engine around it."""
        return self._trained

    def use_adapter_of(self, player: str) -> None:
        """Activate a player's adapter for the next forward pass."""
        adapters.use_adapter(self.model, adapter_of(player, self.adapter_names))

    def logprobs(self, batch: MicroBatch) -> torch.Tensor:
        """Return logprobs under the adapter of the micro-batch's player, with a gradient."""
        self.use_adapter_of(batch.player)
        return self._reply_logprobs(self._trained, batch)

    def shared_logprobs(self, batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """Return the `logprobs` of several players' micro-batches, from one forward pass.

        Args:
            batches: At least two micro-batches; the policy must share passes.
        """
        parts = []
        for batch in batches:
            if batch.tree is None:
                raise RuntimeError(
                    f"{batch.player}: a micro-batch without a prefix tree cannot share a pass."
                )
            part = PlayerRows(
                adapter=adapter_of(batch.player, self.adapter_names),
                ids=batch.ids,
                mask=batch.predicted_mask,
                tree=batch.tree,
            )
            parts.append(part)
        base = self._base_of(batches[0].player)
        return shared_reply_logps(
            self._trained,
            base.model,
            self._owners,
            parts,
            self._temperature,
            whole_logits=base.needs_whole_logits,
        )

    @torch.no_grad()
    def fixed_logprobs(self, batch: MicroBatch) -> torch.Tensor:
        """Return logprobs under the adapter of the micro-batch's player, without a gradient."""
        self.use_adapter_of(batch.player)
        with without_checkpointing(self.layers):
            return self._reply_logprobs(self.model, batch)

    @torch.no_grad()
    def reference_logprobs(self, batch: MicroBatch) -> torch.Tensor:
        """Return logprobs under the base model of the player, without a gradient."""
        self.use_adapter_of(batch.player)
        with adapters.base_only(self.model), without_checkpointing(self.layers):
            return self._reply_logprobs(self.model, batch)

    @torch.no_grad()
    def float32_logprobs(
        self, batch: MicroBatch, adapter: str | None, scale: float = 1.0
    ) -> torch.Tensor:
        """Return [reply tokens] logprobs in float32 under an adapter.

        Call it within `in_float32`; `output_head.in_float32` explains why 16-bit rounding matters.

        Args:
            batch: The micro-batch.
            adapter: Name of the adapter; None: the base model.
            scale: Factor of the adapter's output.
        """
        return self._logprobs_under(batch, adapter, scale)

    @torch.no_grad()
    def served_logprobs(
        self,
        batch: MicroBatch,
        adapter: str | None,
        scale: float = 1.0,
        temperature: float | None = None,
    ) -> torch.Tensor:
        """Return the logprobs of `float32_logprobs`, computed in the server's number format.

        In 16 bits, a layer's output is rounded before the adapter's output is added, and again
        afterward. Changes smaller than half the distance between two numbers are lost.

        Args:
            batch: The micro-batch.
            adapter: Name of the adapter; None: the base model.
            scale: Factor of the adapter's output.
            temperature: Temperature of the logprobs; None: the sampling temperature.
        """
        dtype = self.model.get_input_embeddings().weight.dtype
        device = self.model.device.type
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            return self._logprobs_under(batch, adapter, scale, temperature)

    def _logprobs_under(
        self,
        batch: MicroBatch,
        adapter: str | None,
        scale: float,
        temperature: float | None = None,
    ) -> torch.Tensor:
        context: AbstractContextManager[None] = contextlib.nullcontext()
        if adapter is None:
            self.use_adapter_of(batch.player)
            context = adapters.base_only(self.model)
        else:
            adapters.use_adapter(self.model, adapter)
            context = adapters.scaled_by(self.model, adapter, scale)
        # Call a module inside accelerate's autocast, which wraps the outermost model.
        inner: Any = self.model_of(batch.player).base_model
        with context, without_checkpointing(self.layers):
            return self._reply_logprobs(inner, batch, temperature)[batch.reply_mask]

    def float32_law(
        self, batch: MicroBatch, adapter: str, ceiling: float, rounding: float = 0.0
    ) -> TokenLaw:
        """Return the distribution of the reply tokens in float32 under an adapter.

        Call it within `in_float32`.

        Args:
            batch: The micro-batch.
            adapter: Name of the adapter.
            ceiling: Largest surprise in nats; larger ones are clipped to it.
            rounding: Relative error of a sampler's probabilities.
        """
        base = self._base_of(batch.player)
        sampling = None
        if not base.token_filter.keeps_all:
            sampling = FilteredSampling(token_filter=base.token_filter, rounding=rounding)
        adapters.use_adapter(self.model, adapter)
        with without_checkpointing(self.layers):
            return reply_law(
                base.model.base_model,
                base.model,
                batch.ids,
                batch.reply_mask,
                self._temperature,
                batch.tree,
                ceiling=ceiling,
                sampling=sampling,
                whole_logits=base.needs_whole_logits,
            )

    @contextlib.contextmanager
    def in_float32(self) -> Iterator[None]:
        """Compute in float32 in the block, with the weights that the server uses."""
        with contextlib.ExitStack() as stack:
            for part in adapters.parts_of(self.model):
                # Not the part itself: player_0's part contains the others.
                stack.enter_context(in_float32(part.base_model, self._float32_weights))
            yield

    def restore_base_weights(self) -> None:
        """Give the base models their own weights back, if an interrupt left others in them.

        `in_float32` does so at the end of its block, and a signal may stop it there.
        """
        self._float32_weights.take_out()

    def whole_adapters(self, *, written: bool = False) -> AbstractContextManager[Any]:
        """Gather whole adapter weights on every rank for a block; all ranks must call it together.

        Only ZeRO-3 needs this: otherwise the weights are always whole.

        Args:
            written: Whether the block writes the same values into the weights on every rank. If
                False, values that it writes are lost under ZeRO-3.
        """
        if self.has_whole_weights:
            return contextlib.nullcontext()
        import deepspeed

        parameters = list(self.adapter_parameters.values())
        writer = 0 if written else None
        return deepspeed.zero.GatheredParameters(parameters, modifier_rank=writer)

    def _reply_logprobs(
        self, module: torch.nn.Module, batch: MicroBatch, temperature: float | None = None
    ) -> torch.Tensor:
        base = self._base_of(batch.player)
        return reply_logps(
            module,
            base.model,
            batch.ids,
            batch.predicted_mask,
            self._temperature if temperature is None else temperature,
            batch.tree,
            whole_logits=base.needs_whole_logits,
        )


@contextlib.contextmanager
def without_checkpointing(layers: Sequence[GradientCheckpointingLayer]) -> Iterator[None]:
    """Disable gradient checkpointing for a forward pass without a gradient.

    transformers (5.19) checks only whether a layer is in training mode, so each layer would save
    and restore the state of the random generators for a backward pass that never comes.

    Args:
        layers: Layers of the model.
    """
    were_on = [layer.gradient_checkpointing for layer in layers]
    for layer in layers:
        layer.gradient_checkpointing = False
    try:
        yield
    finally:
        for layer, was_on in zip(layers, were_on, strict=True):
            layer.gradient_checkpointing = was_on


class EarlierVersions:
    """All adapters' weights at the last weight syncs, on the CPU. Every rank keeps its own copy.

    With HANABI_OVERLAP=K, games are sampled with version v and trained on at v + K, so π_old in
    PPO's ratio (`loss`) is version v. The trainer computes its logprobs with the kept weights, so
    that the mismatch check and HANABI_SAMPLER_CORRECTION compare trainer and sampler at the same
    version. The mismatch check also uses the version before the one that should have sampled.
    """

    def __init__(self, model: torch.nn.Module, *, behind: int = 1) -> None:
        """Start without versions.

        Args:
            model: The model whose adapters are kept.
            behind: How many versions are kept besides the newest; 0 keeps none at all.
        """
        self._parameters = adapter_parameters(model)
        self._behind = behind
        self._weights: dict[int, dict[str, torch.Tensor]] = {}

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions that are kept, oldest first."""
        return tuple(self._weights)

    def keep(self, version: int) -> None:
        """Copy the current weights under their version, and drop versions that are too old."""
        if not self._behind:
            return
        weights = {}
        for earlier, kept_weights in self._weights.items():
            if 0 < version - earlier <= self._behind:
                weights[earlier] = kept_weights
        weights[version] = adapters.copy_parameters(self._parameters)
        self._weights = weights

    def weights(self, version: int) -> Mapping[str, torch.Tensor]:
        """Return the weights of a version; empty if it is not kept."""
        return self._weights.get(version, {})

    def restore(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Keep a version's weights from a checkpoint; does nothing if there are no weights."""
        if weights and self._behind:
            self._weights[version] = dict(weights)

    @contextlib.contextmanager
    def using(self, version: int) -> Iterator[None]:
        """Use the weights of a version in the block; the current ones are restored bit by bit.

        Raises:
            VersionError: The version is not kept.
        """
        if version not in self._weights:
            raise VersionError(
                f"the adapters of version {version} are no longer available (available: "
                f"{list(self._weights)}), so its games cannot be trained on. Restart the trainer "
                "with RESUME=latest."
            )
        with adapters.holding(self._parameters, self._weights[version]):
            yield


def adapter_parameters(model: torch.nn.Module) -> Mapping[str, torch.nn.Parameter]:
    """Return every parameter of every adapter by its name in the model."""
    return {name: value for name, value in model.named_parameters() if "lora_" in name}
