"""The loss computes what its formula says, and the installed ms-swift computes the same, bit by
bit.

Log probabilities are written out here, so no model takes part.
"""

import math
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from swift.arguments import RLHFArguments
from swift.rl_core.data import GRPOBatch
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer

from doctor_machines import empty_model
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.loss import PolicyLoss, token_advantages
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.pipeline import swift_options

LOG = math.log
RATIOS = [[1.5, 0.5, 1.1], [1.5, 0.5, 4.0]]
"""π_new / π_old per token; the first row has the advantage 1, the second −1."""
CORRECTIONS = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def _options(tmp_path: Path, **values: Any) -> dict[str, str]:
    model = empty_model(tmp_path / "model", model_type="qwen3")
    settings = Settings(model=str(model), dataset="tasks.jsonl", **values)
    words = swift_options(settings, tmp_path / "settings.json", tmp_path, 10)
    return {
        name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)
    }


class _SwiftLoss(GRPOTrainer):
    """ms-swift's trainer, reduced to what its loss function reads; the parameters come from our
    command line.
    """

    def __init__(self, options: dict[str, str], logps: torch.Tensor, num_processes: int) -> None:
        defaults = {one.name: one.default for one in fields(RLHFArguments)}
        chosen = {
            **defaults,
            "log_completions": False,
            "output_dir": None,
            "generation_batch_size": 4,
        }
        for name, value in options.items():
            kind = type(chosen.get(name))
            chosen[name] = (
                value == "true"
                if value in ("true", "false")
                else float(value)
                if kind is float
                else value
            )
        chosen["epsilon_high"] = float(chosen["epsilon_high"])
        self.args = SimpleNamespace(**chosen)
        self.logps = logps
        self.accelerator = SimpleNamespace(
            num_processes=num_processes, gather_for_metrics=lambda values: values
        )
        self.model = torch.nn.Linear(1, 1)
        self._metrics = {"train": defaultdict(list)}
        self._prepare_algorithm_params()
        self.beta = float(options["beta"])
        self.current_gradient_accumulation_steps = 1
        self.compute_entropy = self.model_accepts_loss_kwargs = False
        self._has_teacher = False
        self.compute_loss_func = self.chord_sft_iterator = None
        self.disable_rollout_importance_sampling = False

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
        return self.logps, None


def _batch(**values: Any) -> MicroBatch:
    """Return a micro-batch of two rows of three reply tokens, advantages 1 and −1."""
    shape = (2, 3)
    columns: dict[str, Any] = {
        "player": "player_0",
        "ids": torch.zeros(2, 4, dtype=torch.long),
        "lengths": torch.full((2,), 4),
        "reply_mask": torch.ones(shape, dtype=torch.bool),
        "sampler_logprobs": torch.zeros(shape),
        "advantages": torch.tensor([[1.0], [-1.0]]).expand(shape),
        "num_reply_tokens": 6,
        "games": (0, 1),
        "old_logprobs": torch.full(shape, -2.0),
    }
    return MicroBatch(**{**columns, **values})


def _swift_batch(batch: MicroBatch) -> GRPOBatch:
    """Return the same as ms-swift's batch."""
    rows, width = batch.reply_mask.shape
    return GRPOBatch(
        completion_mask=batch.reply_mask,
        truncated_mask=torch.zeros(rows, dtype=torch.bool),
        seq_lengths=batch.lengths,
        advantages=batch.advantages,
        num_items_in_batch=torch.tensor(batch.num_reply_tokens),
        logits_to_keep=width,
        old_per_token_logps=batch.old_logprobs,
        rollout_per_token_logps=batch.sampler_logprobs,
        ref_per_token_logps=batch.reference_logprobs,
    )


def _gradient(batch: MicroBatch, **values: Any) -> tuple[float, list[list[float]]]:
    """Return the loss, and the factor that multiplies ∇log π of each token, times the number of
    tokens.
    """
    logps = (torch.tensor(RATIOS).log() - 2.0).requires_grad_()
    loss, _ = PolicyLoss(Settings(**values))(logps, batch)
    loss.backward()
    assert logps.grad is not None
    return 6 * float(loss), (6 * logps.grad).tolist()


def _close(found: list[list[float]], expected: list[list[float]]) -> None:
    flat = [value for row in expected for value in row]
    assert [value for row in found for value in row] == pytest.approx(flat, abs=1e-5)


NOTHING = torch.zeros(2, 3)
OLD = torch.full((2, 3), -2.0)


@pytest.mark.parametrize(
    ("values", "batch", "gradient", "loss"),
    [
        # Clipped where the ratio has left the band in the direction of the advantage; elsewhere −A
        # · ratio.
        ({}, {}, [[0.0, -0.5, -1.1], [1.5, 0.0, 4.0]], -(1.2 + 0.5 + 1.1) + (1.5 + 0.8 + 4.0)),
        (
            {"clip_low": 0.6, "clip_high": 0.05},
            {},
            [[0.0, -0.5, 0.0], [1.5, 0.5, 4.0]],
            -(1.05 + 0.5 + 1.05) + (1.5 + 0.5 + 4.0),
        ),
        # Without old logprobs every ratio is one and no clip acts.
        (
            {"clip_low": 0.01, "clip_high": 0.01},
            {"old_logprobs": None},
            [[-1.0] * 3, [1.0] * 3],
            0.0,
        ),
        # r − log r − 1 with r = π_ref / π, here 1 / ratio; its derivative by log π is 1 − r.
        (
            {"beta": 0.5},
            {"advantages": NOTHING, "reference_logprobs": OLD},
            [[0.5 * (1 - 1 / ratio) for ratio in row] for row in RATIOS],
            sum(0.5 * (1 / ratio + LOG(ratio) - 1) for row in RATIOS for ratio in row),
        ),
    ],
)
def test_loss_and_gradient_are_those_worked_out_by_hand(
    values: dict[str, Any], batch: dict[str, Any], gradient: list[list[float]], loss: float
) -> None:
    found, gradients = _gradient(_batch(**batch), **values)
    _close(gradients, gradient)
    assert found == pytest.approx(loss, rel=1e-5, abs=1e-5)


SAMPLER = torch.tensor([[-2.0 - LOG(4.0), -2.0, -2.0 + LOG(2.0)], [-2.0, -2.0, -2.0]])
"""π_old / π_sampler is 4, 1 and 1/2 in the first row, whose geometric mean is 2^(1/3), and 1 in the
second.
"""


@pytest.mark.parametrize(
    ("mode", "limit", "weights"),
    [
        ("token_truncate", 2.0, [2.0, 1.0, 0.5]),
        ("token_mask", 2.0, [0.0, 1.0, 0.5]),
        ("sequence_truncate", 2.0, [2 ** (1 / 3)] * 3),
        ("sequence_truncate", 1.1, [1.1] * 3),
        ("sequence_mask", 2.0, [4.0, 1.0, 0.5]),
        ("sequence_mask", 1.1, [0.0, 0.0, 0.0]),
    ],
)
def test_the_sampler_correction_weighs_tokens_by_trainer_over_sampler(
    mode: str, limit: float, weights: list[float]
) -> None:
    loss = PolicyLoss(Settings(sampler_correction=mode, sampler_correction_limit=limit))
    logps = torch.full((2, 3), -2.0, requires_grad=True)
    value, _ = loss(logps, _batch(sampler_logprobs=SAMPLER))
    value.backward()
    assert logps.grad is not None
    _close((6 * logps.grad).tolist(), [[-one for one in weights], [1.0] * 3])


def _drawn(seed: int, on_policy: bool) -> tuple[torch.Tensor, MicroBatch]:
    """Return logprobs and a batch of five padded rows in which every clip, limit and mask acts on
    some token.
    """
    seeded = torch.Generator().manual_seed(seed)
    shape = (5, 40)

    def logps(spread: float) -> torch.Tensor:
        return -1.5 + spread * torch.randn(shape, generator=seeded)

    mask = torch.rand(shape, generator=seeded) < 0.6
    mask[:, 30:] &= torch.tensor([[True], [True], [False], [False], [False]])
    mask[4] = False
    new = logps(0.5)
    batch = _batch(
        ids=torch.zeros(5, 41, dtype=torch.long),
        lengths=torch.full((5,), 41),
        reply_mask=mask,
        advantages=torch.where(mask, torch.randn(shape, generator=seeded), 0.0),
        num_reply_tokens=211,
        games=(0, 1, 2, 3, 4),
        old_logprobs=None if on_policy else new + 0.3 * torch.randn(shape, generator=seeded),
        sampler_logprobs=torch.where(mask, logps(0.8), 0.0),
        reference_logprobs=torch.where(mask, logps(6.0), 0.0),
    )
    return new, batch


CASES: list[dict[str, Any]] = [
    {},
    {"clip_low": 0.05, "clip_high": 0.4},
    {"beta": 0.07},
    *(
        {"sampler_correction": mode, "sampler_correction_limit": 1.05, "beta": 0.07}
        for mode in CORRECTIONS
    ),
]


@pytest.mark.parametrize("values", CASES, ids=str)
def test_loss_gradient_and_measures_are_ms_swifts_bit_by_bit(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    """A new version of ms-swift that computes something else fails here: read its change, then
    decide.
    """
    options = _options(tmp_path, **values)
    for seed, on_policy, num_processes in ((0, True, 1), (1, False, 1), (2, False, 3)):
        drawn, batch = _drawn(seed, on_policy)
        ours, theirs = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
        loss, measured = PolicyLoss(Settings(**values))(ours, batch, num_processes)
        swift = _SwiftLoss(options, theirs, num_processes)
        expected, found = swift._compute_loss_and_metrics(swift.model, {}, _swift_batch(batch))
        loss.backward()
        expected.backward()
        assert float(loss) != 0.0
        assert torch.equal(loss, expected)
        assert ours.grad is not None and theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)
        assert found["clipping"]["low_clip_mean"] == float(measured["low"])
        assert found["clipping"]["high_clip_max"] == float(measured["high"])
        assert found["clipping"]["region_clip_mean"] == float(measured["region"])
        assert found.get("kl") == (float(measured["kl"]) if "kl" in measured else None)


def test_advantage_weights_and_entropy_bonus_meet_in_the_loss_alone() -> None:
    columns = {
        "advantages": torch.tensor([[2.0, -1.0, 0.0], [1.0, 1.0, 1.0]]),
        "loss_weights": torch.tensor([[0.5, 2.0, 1.0], [1.0, 1.0, 3.0]]),
        "game_weights": torch.tensor([[2.0], [0.5]]),
        "entropy_bonus": torch.tensor([[0.1, 0.2, 0.3], [-0.1, 0.0, 0.1]]),
    }
    # A · u · g + b: neither weight multiplies the bonus.
    expected = torch.tensor([[2.1, -3.8, 0.3], [0.4, 0.5, 1.6]])
    apart = _batch(**columns)
    together = _batch(advantages=expected)
    assert torch.allclose(token_advantages(apart), expected)
    for batch in (apart, together):
        logps = torch.full((2, 3), -2.0, requires_grad=True)
        loss, _ = PolicyLoss(Settings())(logps, batch)
        loss.backward()
        assert logps.grad is not None
        _close((6 * logps.grad).tolist(), (-expected).tolist())
    # Without the columns an advantage goes through bit by bit.
    assert token_advantages(together) is together.advantages


def test_nobody_but_the_settings_chooses_the_loss(tmp_path: Path) -> None:
    """What ms-swift is told of the loss is what ours computes, so its args.json is true; no other
    option is given.
    """
    known = {one.name for one in fields(RLHFArguments)}
    plain = _options(tmp_path)
    asked = _options(tmp_path, updates_per_step=3, sampler_correction="sequence_mask")
    assert (set(asked) - {"hanabi_settings"}) <= known
    assert (plain["epsilon"], plain["epsilon_high"]) == ("0.2", "0.2")
    assert "rollout_importance_sampling_mode" not in plain
    assert asked["gradient_accumulation_steps"] == str(
        3 * int(plain["gradient_accumulation_steps"])
    )
    assert asked["rollout_importance_sampling_mode"] == "sequence_mask"
    assert not {"num_iterations", "steps_per_generation"} & asked.keys(), (
        "one set of games a step; passes are ours"
    )
