"""The relative mismatch check finds whose logprobs the sampler's are, through noise that is larger
than the change.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from hanabi_grpo.errors import ParityError
from hanabi_grpo.training.micro_batch import MicroBatch, TokenRow, collate
from hanabi_grpo.training.mismatch import (
    LIMIT,
    STEPS,
    Comparison,
    MismatchCheck,
    Score,
    compare,
    sample_of,
    strongest,
)
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.policy import EarlierVersions, Policy
from loop_parts import RunOfATest
from small_models import small_model

NAMES = ("player_0", "player_1")


def test_the_slope_is_0_for_the_own_policy_and_1_for_the_other() -> None:
    own = torch.tensor([-1.0, -2.0, -3.0])
    other = torch.tensor([-1.5, -1.0, -3.0])
    for sampler, slope in ((own, 0.0), (other, 1.0), ((own + other) / 2, 0.5)):
        comparison = compare(sampler, own, other)
        assert comparison.slope == pytest.approx(slope)
        assert comparison.distance == pytest.approx(1.25)
        assert comparison.squares == pytest.approx(comparison.evidence**2)
    nothing = Comparison(evidence=0.0, squares=0.0, distance=0.0)
    assert compare(own, own * float("nan"), other) == nothing
    assert compare(own, own, own) == nothing


def test_the_score_is_the_strongest_over_the_last_1_2_4_and_more_steps() -> None:
    ones = [[1.0, 1.0]] * 9
    # A sum over 16 steps needs 16.
    assert strongest(ones) == Score(z=pytest.approx(8**0.5), num_steps=8)
    assert strongest(ones[:3]) == Score(z=pytest.approx(2**0.5), num_steps=2)
    assert strongest([]) == Score(z=0.0, num_steps=0)
    assert strongest([*ones, [4.0, 1.0]]) == Score(z=pytest.approx(4.0), num_steps=1)


@pytest.mark.parametrize(
    ("change", "rounding", "stale_by"), [(0.01, 0.0, 2), (0.005, 0.0, 4), (0.01, 0.03, STEPS)]
)
def test_noise_that_is_larger_than_the_change_hides_no_stale_adapter_and_makes_none(
    change: float, rounding: float, stale_by: int
) -> None:
    seeded = torch.Generator().manual_seed(0)
    slopes: dict[bool, list[float]] = {False: [], True: []}

    def step(is_stale: bool, size: float) -> list[float]:
        now = torch.randn(3072, generator=seeded)
        noise = torch.randn(3, 3072, generator=seeded)
        before = now + size * torch.randn(3072, generator=seeded)
        sampler = (before if is_stale else now) + 0.03 * noise[0]
        own = now + rounding * noise[1]
        other = before + rounding * noise[2]
        comparison = compare(sampler, own, other)
        slopes[is_stale].append(comparison.slope)
        return [comparison.evidence, comparison.squares]

    fresh = [step(False, change) for _ in range(STEPS)]
    stale = [step(True, change) for _ in range(STEPS)]
    fresh_mean, stale_mean = (sum(of_steps) / STEPS for of_steps in slopes.values())
    if rounding:
        # Were the trainer's values rounded as well: drawn to 1/2, yet each on its own side.
        assert 0.4 < fresh_mean < 0.5 < stale_mean < 0.6
    else:
        assert [fresh_mean, stale_mean] == pytest.approx([0, 1], abs=0.1)
    assert strongest(fresh).z < 1
    assert strongest(stale[:stale_by]).z > LIMIT
    equal = [step(False, 1e-4) for _ in range(1000)]
    largest = max(strongest(equal[max(0, end - STEPS) : end]).z for end in range(1, 1001))
    assert largest < LIMIT - 1


def _rows(lengths: list[int]) -> list[TokenRow]:
    """Return sequences of different tokens, the first half of each a prompt."""
    rows = []
    for number, length in enumerate(lengths):
        zeros = [0.0] * length
        rows.append(
            TokenRow(
                ids=[(number + position) % 15 + 1 for position in range(length)],
                mask=[position >= length // 2 for position in range(length)],
                logprobs=zeros,
                advantages=zeros,
            )
        )
    return rows


def test_a_sample_is_some_rows_or_the_beginning_of_a_long_one() -> None:
    rows = _rows([12, 8, 8, 6])
    batch = collate(rows, "player_0", 17, 0, torch.device("cpu"), shares_prefixes=True)
    for limit, first, num_rows, width, num_replies in (
        (100, 0, 4, 12, 17),
        (10, 0, 2, 12, 10),
        (4, 0, 1, 10, 4),
        (7, 1, 1, 8, 4),
    ):
        sample = sample_of(batch, limit, first)
        case = (limit, first)
        assert sample.ids.shape == (num_rows, width), case
        assert int(sample.reply_mask.sum()) == num_replies, case
        assert torch.equal(sample.ids[0], batch.ids[first, :width]), case
        assert sample.tree is not None
        assert len(sample.tree.predicting) == num_replies, case


class Checked:
    """The check on a model at version 5 that keeps version 4, and player 0's games."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = adapters.add_adapters(
            small_model(num_hidden_layers=2), NAMES, rank=4, alpha=8, seed=1
        )
        for name, value in self.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(value, std=0.1)
        self.policy = Policy(self.model, NAMES, temperature=1.0, has_whole_weights=True)
        self.earlier = EarlierVersions(self.model, behind=1)
        for version in (4, 5):
            with torch.no_grad():
                for value in self.model.parameters():
                    if value.requires_grad:
                        value.add_(2e-3 * torch.randn(value.shape).sign())
            self.earlier.keep(version)
        self.incidents: list[tuple[str, str]] = []
        self.check = MismatchCheck(
            self.policy,
            self.earlier,
            Accelerator(cpu=True),
            tolerance=0.05,
            is_relative=True,
            report=lambda kind, message, **_: self.incidents.append((kind, message)),
        )

    def games(self, sampled_by: str, noise: float = 0.0) -> MicroBatch:
        """Return player 0's micro-batch with the logprobs of a policy.

        Args:
            sampled_by: An adapter, "stale" for player 0's before, or "base".
            noise: Standard deviation that is added to each logprob.
        """
        batch = collate(_rows([80] * 64), NAMES[0], 2560, 0, torch.device("cpu"))
        adapter = sampled_by if sampled_by in NAMES else NAMES[0]
        with self.earlier.using(4 if sampled_by == "stale" else 5):
            if sampled_by == "base":
                logprobs = self.policy.reference_logprobs(batch)
            else:
                logprobs = self.policy.fixed_logprobs(replace(batch, player=adapter))
        noisy = logprobs + noise * torch.randn(logprobs.shape)
        return replace(batch, sampler_logprobs=noisy * batch.reply_mask)


@pytest.mark.parametrize(
    ("sampled_by", "version", "message"),
    [
        (
            "stale",
            5,
            r"player_0@5: the sampler's logprobs are closer to those of version 4 of its .* a "
            r"stale adapter",
        ),
        # Which suspect is looked at besides the version before changes from step to step.
        ("player_1", 5, r"closer to those of adapter player_1 .* a swapped adapter"),
        ("base", 6, r"closer to those of the base model without an adapter .* without its adapter"),
    ],
)
def test_a_step_of_another_policys_games_stops_the_run(
    sampled_by: str, version: int, message: str
) -> None:
    checked = Checked()
    weights = {name: value.clone() for name, value in checked.model.named_parameters()}
    games = checked.games(sampled_by)
    with pytest.raises(ParityError, match=message):
        checked.check.compare_policies([games], version=version, sampled_by=5, before={})
    for name, value in checked.model.named_parameters():
        assert torch.equal(value, weights[name])


def test_a_step_of_the_players_own_games_goes_on_and_leaves_the_weights_alone() -> None:
    checked = Checked()
    weights = {name: value.clone() for name, value in checked.model.named_parameters()}
    games = checked.games("player_0")
    _, metrics = checked.check.compare_policies([games], version=5, sampled_by=5, before={})
    assert metrics == {"player_0/parity_slope": pytest.approx(0.0, abs=1e-3)}
    for name, value in checked.model.named_parameters():
        assert torch.equal(value, weights[name])


def test_evidence_grows_over_steps_and_over_a_resume() -> None:
    checked = Checked()
    own = checked.games("player_0").sampler_logprobs
    before = checked.games("stale").sampler_logprobs
    noise = 8 * float((own - before)[own != 0].square().mean().sqrt())
    evidence: Any = {}
    num_steps = 0
    with pytest.raises(ParityError, match=r"over \d+ step\(s\)"):
        for step in range(5, 5 + STEPS):
            # As a checkpoint hands it on.
            evidence = json.loads(json.dumps(evidence))
            evidence, _ = checked.check.compare_policies(
                [checked.games("stale", noise)], version=step, sampled_by=5, before=evidence
            )
            num_steps += 1
    assert len(evidence["player_0|stale"]) == num_steps > 2


def test_a_sudden_gap_is_an_incident() -> None:
    checked = Checked()
    evidence: Any = {"player_0|gap": [[0.01]] * 20}
    evidence, _ = checked.check.compare_policies(
        [checked.games("player_0", noise=0.02)], version=6, sampled_by=5, before=evidence
    )
    assert checked.incidents == []
    checked.check.compare_policies(
        [checked.games("player_0", noise=0.1)], version=7, sampled_by=5, before=evidence
    )
    [(kind, message)] = checked.incidents
    assert kind == "mismatch_rose"
    assert "3 times the median of the last 21 steps or more (0.01)" in message


@pytest.mark.parametrize(("dtype", "is_relative"), [("bfloat16", True), ("float32", False)])
def test_the_relative_check_is_for_16_bits(tmp_path: Path, dtype: str, is_relative: bool) -> None:
    made = RunOfATest(tmp_path, dtype=dtype)
    assert made.run._mismatch.is_relative == is_relative


def test_under_zero_3_nobody_holds_whole_adapters_and_a_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = RunOfATest(tmp_path, dtype="bfloat16", has_whole_weights=False)
    assert not made.run._mismatch.is_relative
    assert "under ZeRO-3 no process holds whole adapters" in caplog.text
