"""Sampled softmax: what it estimates, what gets a gradient, what a warm start learns with it."""

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from hanabi_grpo.sft import sampled_softmax
from hanabi_grpo.sft.run import StoppedError
from hanabi_grpo.sft.sampled_softmax import NUM_DRAWN, SampledSoftmax
from hanabi_grpo.sft.samples import Sample
from joined_starts import joined_model, make_start, run

WORDS = 9000
SAID = (3, 17, 4000, 8999)
CPU = torch.device("cpu")


@pytest.fixture
def softmax() -> SampledSoftmax:
    return SampledSoftmax(SAID, WORDS, seed=1, device=CPU)


@pytest.fixture
def weight() -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.randn(WORDS, 6) / 2).requires_grad_()


@pytest.fixture
def hidden() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(5, 6, requires_grad=True)


def test_the_sum_over_all_words_is_estimated_without_bias(
    softmax: SampledSoftmax, weight: torch.Tensor, hidden: torch.Tensor
) -> None:
    estimates = []
    for key in range(300):
        estimates.append(softmax.logits(weight, hidden, key).detach().exp().sum(-1))
    mean = torch.stack(estimates).mean(0)
    exact = (hidden @ weight.t()).detach().exp().sum(-1)
    torch.testing.assert_close(mean, exact, rtol=0.02, atol=0)


def test_words_of_replies_have_their_own_logits(
    softmax: SampledSoftmax, weight: torch.Tensor, hidden: torch.Tensor
) -> None:
    logits = softmax.logits(weight, hidden, key=5)
    assert logits.shape == (5, len(SAID) + NUM_DRAWN)
    positions = softmax.positions(torch.tensor(SAID))
    torch.testing.assert_close(logits[:, positions], hidden @ weight[list(SAID)].t())


def test_other_words_keep_their_embeddings_and_hidden_states_learn_not_to_say_them(
    softmax: SampledSoftmax, weight: torch.Tensor, hidden: torch.Tensor
) -> None:
    targets = torch.tensor([3, 17, 17, 8999, 4000])
    totals = []
    for key in range(200):
        logits = softmax.logits(weight, hidden, key)
        loss = cross_entropy(logits, softmax.positions(targets), reduction="sum")
        totals.append(torch.autograd.grad(loss, [weight, hidden]))
    weight_gradient = torch.stack([of_weight for of_weight, _ in totals]).mean(0)
    hidden_gradient = torch.stack([of_hidden for _, of_hidden in totals]).mean(0)
    exact = cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    exact_of_weight, exact_of_hidden = torch.autograd.grad(exact, [weight, hidden])
    said = list(SAID)
    torch.testing.assert_close(weight_gradient[said], exact_of_weight[said], rtol=0.02, atol=0.02)
    torch.testing.assert_close(hidden_gradient, exact_of_hidden, rtol=0.02, atol=0.02)
    others = torch.ones(WORDS, dtype=torch.bool)
    others[said] = False
    assert not weight_gradient[others].any()
    assert exact_of_weight[others].abs().min() > 0


def test_the_same_words_are_drawn_for_a_key_and_others_for_another(
    softmax: SampledSoftmax, weight: torch.Tensor, hidden: torch.Tensor
) -> None:
    again = SampledSoftmax(SAID, WORDS, seed=1, device=CPU)
    other_seed = SampledSoftmax(SAID, WORDS, seed=2, device=CPU)
    logits = softmax.logits(weight, hidden, key=7)
    assert torch.equal(again.logits(weight, hidden, key=7), logits)
    assert not torch.equal(softmax.logits(weight, hidden, key=8), logits)
    assert not torch.equal(other_seed.logits(weight, hidden, key=7), logits)


def test_few_words_are_computed_all() -> None:
    sample = Sample(player=0, start=0, ids=array("i", [5, 6, 7]), is_reply=array("b", [0, 1, 1]))
    assert SampledSoftmax.of([sample], 4 * NUM_DRAWN, seed=0, device=CPU) is None
    softmax = SampledSoftmax.of([sample], 4 * NUM_DRAWN + 2, seed=0, device=CPU)
    assert softmax is not None
    assert softmax.positions(torch.tensor([6, 7])).tolist() == [0, 1]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untaught model whose words share parts."""
    return joined_model(tmp_path_factory.mktemp("joined") / "model")


def draw_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the vocabulary of a small board be large enough."""
    monkeypatch.setattr(sampled_softmax, "NUM_DRAWN", 32)
    monkeypatch.setattr(sampled_softmax, "_LEAST_OTHERS", 128)


def test_a_warm_start_learns_as_much_with_it(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(make_start(base, tmp_path / "whole", games=400, steps=40, batch=32))["loss"]
    used = []
    logits = SampledSoftmax.logits

    def counted(*given: Any, **named: Any) -> torch.Tensor:
        used.append(0)
        return logits(*given, **named)

    draw_few(monkeypatch)
    monkeypatch.setattr(SampledSoftmax, "logits", counted)
    sampled = run(make_start(base, tmp_path / "sampled", games=400, steps=40, batch=32))["loss"]
    assert len(used) >= 40
    # Held-out losses are over all words, in both.
    assert whole < 1.2
    assert sampled < 1.1 * whole


def test_a_warm_start_with_it_resumes_bit_by_bit(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_few(monkeypatch)
    whole = tmp_path / "whole"
    run(make_start(base, whole, batch=32))
    stopped = tmp_path / "stopped"
    with pytest.raises(StoppedError, match="of 4, saved in"):
        run(make_start(base, stopped, batch=32), calls=42)
    run(make_start(base, stopped, batch=32, resume=True))
    model = Path("model") / "model.safetensors"
    assert (stopped / model).read_bytes() == (whole / model).read_bytes()
