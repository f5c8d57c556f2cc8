"""Logprobs from hidden states, through the output head in float32 and in chunks.

With a vocabulary of 151,936 tokens and 35,000 reply tokens, logits take 10 GB in bfloat16, and
several times as much with a float32 copy and a gradient. Here the model returns the input of its
head, and the head is called with `CHUNK` tokens at a time, and again in the backward pass, so that
only one chunk is in memory, never the logits of a whole micro-batch.

The head is called as a module, with its weights in float32, so that a bias or an adapter on it is
included.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers.integrations.sdpa_attention
from torch.utils.checkpoint import checkpoint

from hanabi_grpo.token_filter import TokenFilter
from hanabi_grpo.training.model.shared_prefixes import largest_gap

CHUNK = 1024
"""Number of tokens whose logits are in memory at once."""
LAW_CHUNK = 256
"""Number of tokens whose law is computed at once: with a token filter, a sorted copy of their
logits, its order and its sums take 11 GB for 1,024 tokens of a vocabulary of 151,936 (one H200).
"""
_TRIAL_TOKENS = 8
_TRIAL_LOGIT = 300
"""Largest logit of a trial: a soft cap, 30 in Gemma 2, only shows in larger logits."""


@contextlib.contextmanager
def forward_as(
    module: torch.nn.Module, forward: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """Temporarily replace a module's forward function."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def return_hidden_states(head: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    """Make the model return the input of its output head as its logits.

    It must be the model's output, because DeepSpeed starts a backward pass at the gradient of the
    model's output.
    """
    return forward_as(head, lambda hidden: hidden)


@contextlib.contextmanager
def _without_grouped_heads() -> Iterator[None]:
    """Make attention repeat the keys and values of grouped heads instead of passing `enable_gqa`.

    On CUDA, the only kernel that supports float32 with grouped heads stores the full score matrix
    several times: 8 GiB for a row of 8,192 tokens and 32 heads.
    """
    module = transformers.integrations.sdpa_attention
    grouped = module.use_gqa_in_sdpa
    module.use_gqa_in_sdpa = lambda *_: False
    try:
        yield
    finally:
        module.use_gqa_in_sdpa = grouped


class Float32Weights:
    """Float32 copies of layers' own weights, in the place of those with 16 bits."""

    def __init__(self) -> None:
        """Begin with no copies."""
        self._held: list[tuple[torch.nn.Module, dict[str, torch.nn.Parameter | None]]] = []
        """The layers with copies, and all weights that they had before."""

    def put_into(self, layer: torch.nn.Module) -> None:
        """Convert a layer's own weights, without those of its submodules.

        Norms and convolutions reject or round float32 inputs if their weights have 16 bits.
        """
        held = dict(layer._parameters)
        self._held.append((layer, held))
        for name, value in held.items():
            if value is not None and value.dtype != torch.float32:
                layer._parameters[name] = torch.nn.Parameter(value.float(), requires_grad=False)

    def take_out(self) -> None:
        """Give all layers their own weights back.

        A signal that arrives meanwhile raises its exception here. Call it again afterwards: it
        begins anew, because it forgets the layers only when all of them have their weights.
        """
        for layer, held in self._held:
            layer._parameters.update(held)
        self._held.clear()


@contextlib.contextmanager
def in_float32(model: Any, weights: Float32Weights | None = None) -> Iterator[None]:
    """Make a model compute in float32, without a gradient, with the weights that a server has.

    In 16-bit formats, adapters are float32 here and rounded on the server, by more than a small
    step changes a weight.

    Args:
        model: PEFT's `base_model`, which must also be the module that is called: accelerate wraps
            autocast around the outermost model.
        weights: Holds the weights that are replaced, so that `take_out` can finish what an
            interrupt at the end of the block leaves undone; None: nobody needs it.
    """
    served = model.get_input_embeddings().weight.dtype
    copies = Float32Weights() if weights is None else weights

    def linear(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        bias = None if layer.bias is None else layer.bias.float()
        return torch.nn.functional.linear(x.float(), layer.weight.to(served).float(), bias)

    def to_float32(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        return output.float()

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(model.device.type, enabled=False))
        stack.enter_context(_without_grouped_heads())
        if served == torch.float32:
            yield
            return
        stack.callback(copies.take_out)
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                stack.enter_context(forward_as(layer, partial(linear, layer)))
            elif isinstance(layer, torch.nn.Embedding):
                # Convert the output, not the weights: a large vocabulary takes gigabytes.
                stack.callback(layer.register_forward_hook(to_float32).remove)
            else:
                copies.put_into(layer)
        yield


def chosen_logps(
    head: torch.nn.Module, hidden: torch.Tensor, tokens: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Return the logprobs of tokens under softmax(head(hidden) / temperature), in nats.

    Args:
        head: The model's output head.
        hidden: [rows, width], input of the head.
        tokens: [rows, choices] ids.
        temperature: Sampling temperature of the tokens.

    Returns:
        [rows, choices] in float32.
    """
    if len(hidden) <= CHUNK:
        return _logps(head, hidden, tokens, temperature)
    chunks = []
    for some_hidden, some_tokens in zip(hidden.split(CHUNK), tokens.split(CHUNK), strict=True):
        chunk = checkpoint(
            _logps,
            head,
            some_hidden,
            some_tokens,
            temperature,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        chunks.append(chunk)
    return torch.cat(chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredSampling:
    """The token filter of sampling, and the accuracy of probabilities on both sides."""

    token_filter: TokenFilter
    rounding: float
    """Relative error of a probability; within it, whether a token passes is uncertain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLaw:
    """The surprise of a token sampled from those that pass a filter, see `TokenLaw`."""

    mean: torch.Tensor
    """[rows] float64, mean surprise under the whole distribution, as in `TokenLaw`."""
    variance: torch.Tensor
    """[rows] variance of the surprise."""
    is_sure: torch.Tensor
    """[rows] bool, True if rounding cannot change which tokens pass."""

    @classmethod
    def join(cls, laws: Sequence["DrawnLaw"]) -> "DrawnLaw":
        """Concatenate the rows of several laws."""
        return cls(
            mean=torch.cat([law.mean for law in laws]),
            variance=torch.cat([law.variance for law in laws]),
            is_sure=torch.cat([law.is_sure for law in laws]),
        )


def drawn_law(
    probabilities: torch.Tensor,
    surprise: torch.Tensor,
    ceiling: float,
    sampling: FilteredSampling,
) -> DrawnLaw:
    """Return the law of tokens that pass a filter, as applied by vLLM's `apply_top_k_top_p`.

    Top-p removes the least likely tokens as long as their sum is at most 1 − p. If such a sum
    equals 1 − p up to rounding, sampler and trainer may disagree on a token, always in the same way
    in the same context. Top-k has no such case: two tokens whose order is uncertain are equally
    surprising.

    Args:
        probabilities: [rows, vocabulary] of the whole distribution.
        surprise: [rows, vocabulary] under the same distribution, at most the ceiling.
        ceiling: Upper limit of a surprise.
        sampling: The token filter of sampling.
    """
    token_filter = sampling.token_filter
    kept = probabilities
    if token_filter.top_k:
        least = kept.topk(token_filter.top_k, -1).values[:, -1:]
        kept = torch.where(kept >= least, kept, 0.0)
        kept = kept / kept.sum(-1, keepdim=True)
    is_sure = torch.ones(len(kept), dtype=torch.bool, device=kept.device)
    if token_filter.top_p < 1:
        rest = 1 - token_filter.top_p
        ascending, order = kept.sort(-1)
        sums = ascending.double().cumsum(-1)
        passes = sums > rest
        passes[:, -1] = True
        # Tokens removed by top-k have probability 0.
        near = ((sums - rest).abs() <= sampling.rounding * rest) & (ascending > 0)
        # The most likely token always passes.
        is_sure = ~near[:, :-1].any(-1)
        passes_by_token = torch.empty_like(passes).scatter_(-1, order, passes)
        kept = torch.where(passes_by_token, kept, 0.0)
        kept = kept / kept.sum(-1, keepdim=True)
    mean, variance = surprise_moments(kept, surprise, ceiling)
    return DrawnLaw(mean=mean, variance=variance, is_sure=is_sure)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLaw:
    """The logprobs of tokens, and the expected surprise of a token sampled at the same position.

    Surprises are min(−log p, ceiling), in nats.
    """

    logprobs: torch.Tensor
    """[rows, choices] logprobs of the requested tokens."""
    mean: torch.Tensor
    """[rows] float64, mean surprise of a sampled token; without a ceiling, the entropy."""
    variance: torch.Tensor
    """[rows] variance of the surprise."""
    drawn: DrawnLaw | None = None
    """The same for a token sampled with the filter, if there is one."""

    def at(self, choices: Any, position: Any) -> "TokenLaw":
        """Select some tokens.

        Args:
            choices: Index into `logprobs`; the result is flattened.
            position: Index into all other tensors.
        """
        drawn = None
        if self.drawn is not None:
            drawn = DrawnLaw(
                mean=self.drawn.mean[position],
                variance=self.drawn.variance[position],
                is_sure=self.drawn.is_sure[position],
            )
        return TokenLaw(
            logprobs=self.logprobs[choices].flatten(),
            mean=self.mean[position],
            variance=self.variance[position],
            drawn=drawn,
        )


def law_of_logits(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    temperature: float,
    ceiling: float,
    sampling: FilteredSampling | None = None,
) -> TokenLaw:
    """Return the law of tokens under softmax(logits / temperature), without a gradient.

    Args:
        logits: [rows, vocabulary].
        tokens: [rows, choices] ids.
        temperature: Sampling temperature of the tokens.
        ceiling: Upper limit of a surprise.
        sampling: The token filter of sampling; None: no filter.
    """
    logps = torch.log_softmax(logits.float() / temperature, -1)
    surprise = (-logps).clamp(max=ceiling)
    probabilities = logps.exp()
    mean, variance = surprise_moments(probabilities, surprise, ceiling)
    drawn = None
    if sampling is not None:
        drawn = drawn_law(probabilities, surprise, ceiling, sampling)
    return TokenLaw(logprobs=logps.gather(-1, tokens), mean=mean, variance=variance, drawn=drawn)


def surprise_moments(
    probabilities: torch.Tensor, surprise: torch.Tensor, ceiling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean (float64) and the variance, [rows] each, of a sampled token's surprise.

    Args:
        probabilities: [rows, vocabulary] sampling probabilities.
        surprise: [rows, vocabulary] at most the ceiling.
        ceiling: Upper limit of a surprise.
    """
    below_ceiling = ceiling - surprise
    mean_surprise = (probabilities * surprise).sum(-1)
    mean_below = (probabilities * below_ceiling).sum(-1)
    # If nearly every token of a large vocabulary is at the ceiling, the rounding error of the sum
    # of surprises exceeds their variation, but that of their distances to the ceiling does not. If
    # the policy is confident, it is the other way round. Without a ceiling, the sum of distances is
    # NaN.
    is_unsure = mean_below < mean_surprise
    mean = torch.where(is_unsure, ceiling - mean_below.double(), mean_surprise.double())
    variance = (probabilities * (surprise - mean.float()[:, None]).square()).sum(-1)
    return mean, variance


@torch.no_grad()
def token_law(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    tokens: torch.Tensor,
    temperature: float,
    ceiling: float,
    sampling: FilteredSampling | None = None,
) -> TokenLaw:
    """Return the law of tokens under softmax(head(hidden) / temperature), see `law_of_logits`.

    Args:
        head: The model's output head.
        hidden: [rows, width], input of the head.
        tokens: [rows, choices] ids.
        temperature: Sampling temperature of the tokens.
        ceiling: Upper limit of a surprise.
        sampling: See `law_of_logits`.
    """
    laws = []
    for some_hidden, some_tokens in zip(hidden.split(CHUNK), tokens.split(CHUNK), strict=True):
        logits = _logits(head, some_hidden).split(LAW_CHUNK)
        for some_logits, choices in zip(logits, some_tokens.split(LAW_CHUNK), strict=True):
            laws.append(law_of_logits(some_logits, choices, temperature, ceiling, sampling))
    drawn = [law.drawn for law in laws if law.drawn is not None]
    return TokenLaw(
        logprobs=torch.cat([law.logprobs for law in laws]),
        mean=torch.cat([law.mean for law in laws]),
        variance=torch.cat([law.variance for law in laws]),
        drawn=DrawnLaw.join(drawn) if drawn else None,
    )


def computes_logits(model: Any) -> str | None:
    """Return why the model's logits differ from its head's output (e.g. a scale or a soft cap).

    The model's weights must be complete (not sharded by ZeRO-3).

    Returns:
        The reason, or None if the logits are the head's output.
    """
    head = model.get_output_embeddings()
    ids = torch.arange(_TRIAL_TOKENS, device=model.device)[None]
    head_forward = head.forward
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            with return_hidden_states(head):
                hidden = model(input_ids=ids, use_cache=False).logits
            large = hidden * (_TRIAL_LOGIT / _logits(head, hidden).abs().max())
            large = large.to(hidden.dtype)
            with forward_as(head, lambda _: head_forward(large)):
                theirs = model(input_ids=ids, use_cache=False).logits.float()
            ours = _logits(head, large)
    finally:
        model.train(was_training)
    gap = float((ours - theirs).abs().max() / ours.abs().max())
    allowed = largest_gap(hidden.dtype)
    if gap <= allowed:
        return None
    return f"they differ from its output head's by {gap:.2g} of the largest, allowed {allowed}"


def _logits(head: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    weights = {name: value.float() for name, value in head.named_parameters()}
    with torch.autocast(hidden.device.type, enabled=False):
        logits: torch.Tensor = torch.func.functional_call(head, weights, (hidden.float(),))
    return logits


def _logps(
    head: torch.nn.Module, hidden: torch.Tensor, tokens: torch.Tensor, temperature: float
) -> torch.Tensor:
    logits = _logits(head, hidden)
    if temperature != 1:
        logits = logits / temperature
    return logits.gather(-1, tokens) - logits.logsumexp(-1, keepdim=True)
