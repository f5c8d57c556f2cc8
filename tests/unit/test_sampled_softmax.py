"""Sampled softmax: what it estimates, what gets a gradient, what a warm start learns with it."""

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.settings import Settings
from hanabi_grpo.sft import sampled_softmax
from hanabi_grpo.sft.run import StoppedError, WarmStart, Watcher
from hanabi_grpo.sft.sampled_softmax import NUM_DRAWN, SampledSoftmax
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.sft.sources import Sources
from hanabi_grpo.sft.tiny_model import Recipe, build_tiny_model

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


LAPTOP = Setup(
    HANABI, EnvConfig(preset="laptop", observation="compact", deductions="joined", memory="turn")
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untaught model whose words share parts."""
    recipe = Recipe.of("hanabi", presets=("laptop",), deductions="joined", steps=1, num_games=2)
    return build_tiny_model(tmp_path_factory.mktemp("joined") / "model", recipe)


def warm_start(base: Path, out: Path, *, steps: int, resume: bool = False) -> WarmStart:
    return WarmStart(
        settings=Settings(model=str(base), seed=7),
        setup=LAPTOP,
        sources=Sources(lineups=("hint-bot",), num_tasks=40, noise=0.2),
        out=out,
        steps=steps,
        batch=32,
        learning_rate=3e-3,
        shared=False,
        full=True,
        every_start=False,
        resume=resume,
    )


def learned_loss(start: WarmStart, *, calls: int | None = None) -> float:
    """Run a warm start, perhaps stopped when it has asked so often; return the held-out loss."""
    remaining = iter(range(calls)) if calls is not None else None

    def should_stop() -> bool:
        return remaining is not None and next(remaining, None) is None

    rows = start.run(Watcher(say=print, show=lambda *progress: None, should_stop=should_stop))
    loss: float = rows[-1][1]["loss"]
    return loss


@pytest.fixture
def draws_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vocabulary of a small board is large enough."""
    monkeypatch.setattr(sampled_softmax, "NUM_DRAWN", 32)
    monkeypatch.setattr(sampled_softmax, "_LEAST_OTHERS", 128)


def test_a_warm_start_learns_as_much_with_it(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = learned_loss(warm_start(base, tmp_path / "whole", steps=40))
    used = []
    with monkeypatch.context() as context:
        context.setattr(sampled_softmax, "NUM_DRAWN", 32)
        context.setattr(sampled_softmax, "_LEAST_OTHERS", 128)
        logits = SampledSoftmax.logits

        def counted(*given: Any, **named: Any) -> torch.Tensor:
            used.append(0)
            return logits(*given, **named)

        context.setattr(SampledSoftmax, "logits", counted)
        sampled = learned_loss(warm_start(base, tmp_path / "sampled", steps=40))
    assert len(used) >= 40
    # Held-out losses are over all words, in both.
    assert whole < 1.2
    assert sampled < 1.1 * whole


@pytest.mark.usefixtures("draws_few")
def test_a_warm_start_with_it_resumes_bit_by_bit(base: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    learned_loss(warm_start(base, whole, steps=4))
    stopped = tmp_path / "stopped"
    with pytest.raises(StoppedError, match="of 4, kept in"):
        learned_loss(warm_start(base, stopped, steps=4), calls=42)
    learned_loss(warm_start(base, stopped, steps=4, resume=True))
    model = Path("model") / "model.safetensors"
    assert (stopped / model).read_bytes() == (whole / model).read_bytes()
