"""vLLM draws from a part of the distribution; its logprobs are of the whole one."""

import inspect
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler, apply_top_k_top_p
from vllm.v1.sample.sampler import Sampler as FirstSampler
from vllm.v1.worker.gpu.sample import sampler as second_sampler

from hanabi_grpo.server import vllm_cpu, vllm_filter
from hanabi_grpo.server.vllm_cpu import SeedStream
from hanabi_grpo.token_filter import TokenFilter
from hanabi_grpo.training.model.output_head import FilteredSampling, drawn_law

ROWS = 2000
PROBABILITIES = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03])
FILTERS = [(0, 0.8), (2, 1.0), (3, 0.7), (0, 0.92)]
"""top-k and top-p; 0 and 1 are none."""


def logits_of(rows: int = ROWS) -> torch.Tensor:
    return PROBABILITIES.log().expand(rows, -1).clone()


def columns(top_k: int, top_p: float, rows: int = ROWS) -> dict[str, Any]:
    """Return a filter as vLLM's samplers take it."""
    return {
        "k": torch.full((rows,), top_k, dtype=torch.int32) if top_k else None,
        "p": torch.full((rows,), top_p) if top_p < 1 else None,
    }


def shares_kept(top_k: int, top_p: float) -> torch.Tensor:
    """Return the probabilities of what passes, by vLLM's own filter."""
    cut = apply_top_k_top_p(logits_of(1), **columns(top_k, top_p, 1))
    return cut.softmax(-1)[0]


def first_runner(mode: str) -> TopKTopPSampler:
    return TopKTopPSampler(logprobs_mode=mode)  # type: ignore[arg-type]


@pytest.mark.parametrize(("top_k", "top_p"), FILTERS)
@pytest.mark.parametrize("mode", ["processed_logprobs", "processed_logits"])
@pytest.mark.parametrize("path", ["native", "cpu", "cpu with seeds"])
def test_the_first_model_runner_draws_what_passes_and_shows_the_whole_distribution(
    path: str, mode: str, top_k: int, top_p: float
) -> None:
    torch.manual_seed(0)
    sampler = first_runner(mode)
    generators = {}
    if path == "cpu with seeds":
        generators = {row: SeedStream(row) for row in range(ROWS)}
    sample = vllm_filter.forward if path == "native" else vllm_cpu.sample
    filters = columns(top_k, top_p)
    tokens, shown = sample(sampler, logits_of(), generators, filters["k"], filters["p"])
    expected = PROBABILITIES.log().expand(ROWS, -1)
    assert shown is not None
    torch.testing.assert_close(shown, expected)
    frequencies = torch.bincount(tokens.long(), minlength=5) / ROWS
    kept = shares_kept(top_k, top_p)
    assert kept.count_nonzero() < 5
    assert (frequencies - kept).abs().max() < 4 * (0.25 / ROWS) ** 0.5
    assert not frequencies[kept == 0].any()


def test_the_stock_samplers_show_what_passes_alone() -> None:
    """Where this fails, vLLM keeps what it had before the filter itself, and ours may go."""
    sampler = first_runner("processed_logprobs")
    for stock in (vllm_filter.stock_forward, vllm_cpu.stock_sample):
        _, shown = stock(sampler, logits_of(), {}, **columns(2, 1.0))
        assert shown is not None
        assert shown[0].tolist() == pytest.approx(
            [math.log(2 / 3), math.log(1 / 3), *[-torch.inf] * 3]
        )


def test_without_a_filter_the_stock_sampler_is_called_and_nothing_is_computed_twice() -> None:
    sampler = first_runner("processed_logprobs")
    assert vllm_filter.whole_logprobs(sampler, logits_of(), None, None) is None
    raw = first_runner("raw_logprobs")
    assert vllm_filter.whole_logprobs(raw, logits_of(), **columns(2, 1.0)) is None
    torch.manual_seed(0)
    tokens, shown = vllm_filter.forward(sampler, logits_of(), {}, None, None)
    torch.manual_seed(0)
    stock_tokens, stock_shown = vllm_filter.stock_forward(sampler, logits_of(), {}, None, None)
    assert torch.equal(tokens, stock_tokens)
    assert shown is not None and stock_shown is not None
    assert torch.equal(shown, stock_shown)


def test_vllms_sampler_hands_on_what_ours_shows_after_the_temperature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole sampler of the first model runner, as the CPU engine calls it."""
    monkeypatch.setattr(TopKTopPSampler, "forward_cpu", vllm_cpu.sample)
    metadata = SamplingMetadata(
        temperature=torch.full((ROWS,), 2.0),
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=torch.full((ROWS,), 2, dtype=torch.int32),
        generators={},
        max_num_logprobs=0,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.zeros(ROWS),
        presence_penalties=torch.zeros(ROWS),
        repetition_penalties=torch.ones(ROWS),
        output_token_ids=[[] for _ in range(ROWS)],
        spec_token_ids=[[] for _ in range(ROWS)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=SimpleNamespace(argmax_invariant=[], non_argmax_invariant=[]),  # type: ignore[arg-type]
    )
    sampler = FirstSampler(logprobs_mode="processed_logprobs")
    output = sampler(logits_of(), metadata)
    tokens = output.sampled_token_ids[:, 0].long()
    assert set(tokens.tolist()) == {0, 1}
    assert output.logprobs_tensors is not None
    logprobs = (PROBABILITIES.log() / 2).log_softmax(-1)
    shown = output.logprobs_tensors.logprobs[:, 0]
    torch.testing.assert_close(shown, logprobs[tokens], rtol=1e-5, atol=1e-6)


_LAST = 7
"""Parameters of the second model runner's method up to top-p, which all versions have."""


def parameters(method: Any) -> list[str]:
    return list(inspect.signature(method).parameters)


def further_arguments() -> list[bool]:
    """Return what vLLM's version hands its method behind top-p."""
    values = {"has_topp_only_rows": True, "use_fused_sampler": False}
    return [values[name] for name in parameters(vllm_filter.stock_sample_random)[_LAST:]]


def test_what_a_newer_vllm_hands_on_besides_reaches_its_own_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM 0.33 has `has_topp_only_rows` before `use_fused_sampler`."""
    handed: list[Any] = []

    def newer(self: Any, logits: torch.Tensor, *arguments: Any) -> tuple[torch.Tensor, Any]:
        handed.extend(arguments)
        logits.fill_(0.0)
        return logits.argmax(-1), logits

    monkeypatch.setattr(vllm_filter, "stock_sample_random", newer)
    top_k = columns(2, 1.0)["k"]
    arguments: Any = ("map", "map_np", "pos", top_k, None, True, False)
    _, whole = vllm_filter.sample_random(SimpleNamespace(), logits_of(), *arguments)  # type: ignore[arg-type]
    assert handed == list(arguments)
    torch.testing.assert_close(whole, logits_of())


@pytest.mark.parametrize(("top_k", "top_p"), FILTERS)
def test_the_second_model_runner_draws_what_passes_and_hands_on_the_whole_logits(
    monkeypatch: pytest.MonkeyPatch, top_k: int, top_p: float
) -> None:
    seen: list[torch.Tensor] = []

    def choose(logits: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        # In the place of a kernel for GPUs.
        seen.append(logits.clone())
        return torch.multinomial(logits.softmax(-1), 1)[:, 0]

    monkeypatch.setattr(second_sampler, "gumbel_sample", choose)
    states = SimpleNamespace(temperature=SimpleNamespace(gpu=None), seeds=SimpleNamespace(gpu=None))
    sampler: Any = SimpleNamespace(sampling_states=states, use_fp64_gumbel=False)
    filters = columns(top_k, top_p)
    arguments = (None, None, None, filters["k"], filters["p"], *further_arguments())
    _, stock_logits = vllm_filter.stock_sample_random(sampler, logits_of(), *arguments)
    assert stock_logits.isinf().any(), "vLLM hands on what passes alone"
    _, whole = vllm_filter.sample_random(sampler, logits_of(), *arguments)
    torch.testing.assert_close(whole, logits_of())
    for drawn_from in seen:
        torch.testing.assert_close(drawn_from.softmax(-1)[0], shares_kept(top_k, top_p))


def test_the_second_model_runner_makes_logprobs_of_what_the_replaced_method_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (
        parameters(vllm_filter.sample_random)[:_LAST]
        == parameters(vllm_filter.stock_sample_random)[:_LAST]
    )
    monkeypatch.setattr(second_sampler, "gumbel_sample", lambda logits, *_, **__: logits.argmax(-1))

    class Processed(second_sampler.Sampler):
        """A sampler whose requests ask for nothing but a filter."""

        _sample_random = vllm_filter.sample_random

        def __init__(self) -> None:
            filters = columns(2, 1.0)
            all_rows = further_arguments()[:-1]
            self.logprobs_mode = "processed_logprobs"
            self.use_fp64_gumbel = False
            self.use_flashinfer = True
            self.use_xpu_sampler = False
            self.sampling_states: Any = SimpleNamespace(
                get_top_k_top_p=lambda *_: (filters["k"], filters["p"], *all_rows),
                temperature=SimpleNamespace(gpu=None),
                seeds=SimpleNamespace(gpu=None),
            )

        def apply_sampling_params(
            self, logits: torch.Tensor, *_: Any, skip_top_k_top_p: bool = False
        ) -> torch.Tensor:
            assert skip_top_k_top_p
            return logits

    nothing: Any = None
    tokens, logits = Processed().sample(logits_of(), *[nothing] * 7, return_logprobs=True)
    assert set(tokens.tolist()) == {0}
    torch.testing.assert_close(logits, logits_of())


@pytest.mark.parametrize(("top_k", "top_p"), FILTERS)
def test_the_trainers_law_is_of_the_tokens_that_vllm_draws(top_k: int, top_p: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(200, 40, generator=generator)
    probabilities = logits.softmax(-1)
    kept = apply_top_k_top_p(logits.clone(), **columns(top_k, top_p, 200)).softmax(-1)
    surprise = -logits.log_softmax(-1)
    sampling = FilteredSampling(token_filter=TokenFilter(top_p=top_p, top_k=top_k), rounding=1e-4)
    law = drawn_law(probabilities, surprise, torch.inf, sampling)
    mean = (kept * surprise).sum(-1)
    variance = (kept * (surprise - mean[:, None]).square()).sum(-1)
    torch.testing.assert_close(law.mean.float(), mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(law.variance, variance, rtol=1e-3, atol=1e-5)
