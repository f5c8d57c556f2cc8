"""The relative mismatch check finds whose logprobs the sampler's are, through noise that is larger
than the change.
"""

import contextlib
import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from hanabi_grpo.errors import ParityError
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.batching import TokenRow, collate
from hanabi_grpo.training.mismatch import LIMIT, STEPS, RelativeMismatch, compare, sample_of, score
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.forward import reply_logps
from small_models import small_model

NAMES = ("player_0", "player_1")


def test_the_slope_is_0_for_the_own_policy_and_1_for_the_other() -> None:
    own, other = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.5, -1.0, -3.0])
    for sampler, slope in ((own, 0.0), (other, 1.0), ((own + other) / 2, 0.5)):
        x, squares, distance = compare(sampler, own, other)
        assert (0.5 + x / distance, squares, distance) == pytest.approx((slope, x * x, 1.25))
    assert compare(own, own * float("nan"), other) == compare(own, own, own) == (0.0, 0.0, 0.0)
    ones = [[1.0, 1.0]] * 9
    # A sum over 16 steps needs 16.
    for steps, expected in (
        (ones, (8**0.5, 8)),
        (ones[:3], (2**0.5, 2)),
        ([], (0.0, 0)),
        ([*ones, [4.0, 1.0]], (4.0, 1)),
    ):
        assert score(steps) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "rounding", "stale_by"), [(0.01, 0.0, 2), (0.005, 0.0, 4), (0.01, 0.03, STEPS)]
)
def test_noise_that_is_larger_than_the_change_hides_no_stale_adapter_and_makes_none(
    change: float, rounding: float, stale_by: int
) -> None:
    seeded = torch.Generator().manual_seed(0)
    slopes: dict[bool, list[float]] = {False: [], True: []}

    def step(of_before: bool, size: float) -> list[float]:
        now, noise = torch.randn(3072, generator=seeded), torch.randn(3, 3072, generator=seeded)
        before = now + size * torch.randn(3072, generator=seeded)
        sampler = (before if of_before else now) + 0.03 * noise[0]
        x, squares, distance = compare(
            sampler, now + rounding * noise[1], before + rounding * noise[2]
        )
        slopes[of_before].append(0.5 + x / max(distance, 1e-12))
        return [x, squares]

    fresh, stale = ([step(of_before, change) for _ in range(STEPS)] for of_before in (False, True))
    means = [sum(one) / STEPS for one in slopes.values()]
    # Were the trainer's values rounded as well: drawn to 1/2, yet each on its own side.
    assert (
        0.4 < means[0] < 0.5 < means[1] < 0.6
        if rounding
        else means == pytest.approx([0, 1], abs=0.1)
    )
    assert score(fresh)[0] < 1 and score(stale[:stale_by])[0] > LIMIT
    equal = [step(False, 1e-4) for _ in range(1000)]
    assert max(score(equal[max(0, end - STEPS) : end])[0] for end in range(1, 1001)) < LIMIT - 1


def _rows(lengths: list[int]) -> list[TokenRow]:
    """Sequences of different tokens, the first half of each prompt."""
    found = []
    for number, length in enumerate(lengths):
        half, column = length // 2, [0.0] * length
        ids, mask = (
            [(number + place) % 15 + 1 for place in range(length)],
            [place >= half for place in range(length)],
        )
        found.append(TokenRow(ids=ids, mask=mask, logprobs=column, advantages=column))
    return found


def test_a_sample_is_some_rows_or_the_beginning_of_a_long_one() -> None:
    batch = collate(_rows([12, 8, 8, 6]), "player_0", 17, 0, torch.device("cpu"), shared=True)
    for limit, first, *expected in (
        (100, 0, 4, 12, 17),
        (10, 0, 2, 12, 10),
        (4, 0, 1, 10, 4),
        (7, 1, 1, 8, 4),
    ):
        cut = sample_of(batch, limit, first)
        data, ids = cut["grpo_batch"], cut["model_inputs"]["input_ids"]
        assert [*ids.shape, int(data.completion_mask.sum())] == expected, (limit, first)
        assert torch.equal(ids[0], batch["model_inputs"]["input_ids"][first, : ids.shape[1]])
        assert len(data.tree.predicting) == expected[2]


class _Trainer(RelativeMismatch):
    """The check with a model at version 5, and of the trainer only what it asks for."""

    first_step = 0

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.settings = Settings(dtype="bfloat16")
        self.model = adapters.add_adapters(
            small_model(num_hidden_layers=2), NAMES, rank=4, alpha=8, seed=1
        )
        for name, value in self.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(value, std=0.1)
        self.adapter_names, self.accelerator = NAMES, Accelerator(cpu=True)
        self.temperature = 1.0
        self._metrics, self.incidents = {"train": defaultdict(list)}, []
        self.watch_rounding({})
        for version in (4, 5):
            with torch.no_grad():
                for value in self.model.parameters():
                    if value.requires_grad:
                        value.add_(2e-3 * torch.randn(value.shape).sign())
            self.kept.keep(self.model, version)

    def _incident(self, kind: str, message: str, **details: object) -> None:
        self.incidents.append((kind, message))

    def games(self, fault: str, noise: float = 0.0) -> dict[str, Any]:
        """Player 0's micro-batch, with the logprobs of who sampled it."""
        batch = collate(_rows([80] * 64), NAMES[0], 2560, 0, torch.device("cpu"))
        adapters.use_adapter(self.model, fault if fault in NAMES else NAMES[0])
        ids, mask = batch["model_inputs"]["input_ids"], batch["grpo_batch"].completion_mask
        base = adapters.base_only(self.model) if fault == "base" else contextlib.nullcontext()
        with base, self.kept.using(self.model, 4 if fault == "stale" else 5):
            sampled = reply_logps(self.model, self.model, ids, mask, 1.0).detach()
        sampled = sampled + noise * torch.randn(sampled.shape)
        data = replace(batch["grpo_batch"], rollout_per_token_logps=sampled * mask)
        return {**batch, "grpo_batch": data}


@pytest.mark.parametrize(
    ("fault", "version", "said"),
    [
        ("player_0", 5, ""),
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
def test_a_step_of_another_policys_games_stops_the_run(fault: str, version: int, said: str) -> None:
    trainer = _Trainer()
    weights = {name: value.clone() for name, value in trainer.model.named_parameters()}
    batch = trainer.games(fault)
    if said:
        with pytest.raises(ParityError, match=said):
            trainer.compare_policies([batch], version, 5)
    else:
        trainer.compare_policies([batch], 5, 5)
        assert trainer._metrics["train"]["player_0/parity_slope"] == pytest.approx([0.0], abs=1e-3)
    assert all(
        torch.equal(value, weights[name]) for name, value in trainer.model.named_parameters()
    )


def test_evidence_grows_over_steps_and_over_a_resume_and_a_sudden_gap_is_an_incident() -> None:
    trainer = _Trainer()
    kept = trainer.kept
    own, before = (
        trainer.games(one)["grpo_batch"].rollout_per_token_logps for one in ("player_0", "stale")
    )
    noise = 8 * float((own - before)[own != 0].square().mean().sqrt())
    with pytest.raises(ParityError, match=r"over \d+ step\(s\)"):
        for step in range(5, 5 + STEPS):
            trainer.first_step = step
            trainer.watch_rounding(json.loads(json.dumps(trainer.evidence.get(step, {}))))
            trainer.kept = kept
            trainer.compare_policies([trainer.games("stale", noise)], step, 5)
    assert len(trainer.evidence[step + 1]["player_0|stale"]) == step - 4 > 2
    trainer.first_step = 6
    trainer.watch_rounding({"player_0|gap": [[0.01]] * 20})
    trainer.kept = kept
    trainer.compare_policies([trainer.games("player_0", noise=0.02)], 6, 5)
    assert trainer.incidents == []
    trainer.compare_policies([trainer.games("player_0", noise=0.1)], 7, 5)
    [(kind, message)] = trainer.incidents
    assert (
        kind == "mismatch_rose"
        and "3 times the median of the last 21 steps or more (0.01)" in message
    )


def test_it_is_for_16_bits_and_whole_adapters(caplog: pytest.LogCaptureFixture) -> None:
    trainer = _Trainer()
    assert trainer.relative
    trainer.settings = Settings(dtype="bfloat16", deepspeed="zero3", nproc_per_node=2)
    trainer.watch_rounding({})
    assert not trainer.relative and "under ZeRO-3 no process holds whole adapters" in caplog.text
    trainer.settings = Settings(dtype="float32")
    trainer.watch_rounding({})
    trainer.compare_policies([], 0, 0)
    assert not trainer.relative and len(caplog.records) == 1
