"""Mixtures of experts: the parameters of all experts, and those active per token.

The sizes are read from a config.json under the names that Qwen3-MoE, Mixtral, gpt-oss, DeepSeek and
GLM give them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.runs.adapter_config import NUM_EXPERTS, is_mixture, text_config_of

_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "moe_k", "moe_topk")
_INNER = ("moe_intermediate_size", "intermediate_size")
_NUM_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_MATRICES = 3
"""Matrices of a feed-forward block: gate, up and down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of a mixture: feed-forward blocks; each token is routed to some of them."""

    count: int
    """Routed experts of a layer."""
    per_token: int
    """Routed experts of a layer that are active for a token."""
    hidden: int
    """Width of the residual stream."""
    inner: int
    """Width of one expert."""
    shared: int
    """Width of the shared experts, which are active for every token; 0: none."""
    layers: int
    """Layers with experts; the others are dense."""

    @property
    def active_inner(self) -> int:
        """Feed-forward width that is active for a token."""
        return self.per_token * self.inner + self.shared

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer's experts and of the router that chooses among them."""
        width = self.count * self.inner + self.shared
        router = self.count * self.hidden
        return _MATRICES * self.hidden * width + router

    @property
    def routed_parameters(self) -> int:
        """Parameters of the routed experts of all layers."""
        return self.layers * _MATRICES * self.hidden * self.count * self.inner

    def idle_parameters(self, num_tokens: float = 1) -> float:
        """Return how many parameters are in experts to which no token is routed.

        Routing is assumed to be uniform. Real routers are less even and leave more experts idle.

        Args:
            num_tokens: Tokens that are computed at once.
        """
        share = (1 - self.per_token / self.count) ** num_tokens
        return self.routed_parameters * share


def experts_of(config: Mapping[str, Any]) -> Experts | None:
    """Return the experts of a config.json.

    None means a dense model, or a mixture whose sizes have unknown names; `is_mixture` tells which.
    """
    if not is_mixture(config):
        return None
    text_config = text_config_of(config)
    count = _first(text_config, NUM_EXPERTS)
    per_token = _first(text_config, _PER_TOKEN)
    inner = _first(text_config, _INNER)
    hidden = text_config.get("hidden_size") or 0
    if not (count and per_token and inner and hidden):
        return None
    shared = text_config.get("shared_expert_intermediate_size") or 0
    return Experts(
        count=count,
        per_token=min(per_token, count),
        hidden=hidden,
        inner=inner,
        shared=shared or _first(text_config, _NUM_SHARED) * inner,
        layers=_num_sparse_layers(text_config),
    )


def _num_sparse_layers(config: Mapping[str, Any]) -> int:
    """Return the number of layers that have experts."""
    kinds = config.get("mlp_layer_types")
    if kinds:
        return sum(kind == "sparse" for kind in kinds)
    dense = set(config.get("mlp_only_layers") or ())
    every = config.get("decoder_sparse_step") or 1
    first = config.get("first_k_dense_replace") or 0
    num_layers = 0
    for layer in range(config["num_hidden_layers"]):
        if layer >= first and layer not in dense and (layer + 1) % every == 0:
            num_layers += 1
    return num_layers


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """Return the first positive number under these names; 0 without one."""
    for name in names:
        value = config.get(name) or 0
        if value > 0:
            return int(value)
    return 0
