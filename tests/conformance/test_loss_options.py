"""Our loss settings reach ms-swift's own loss function, which computes what their names say.

The function is the installed one; only the forward pass is replaced, by log probabilities that are written out here.
"""

import json
import math
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from swift.arguments import RLHFArguments
from swift.rl_core.data import GRPOBatch
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer

from hanabi_grpo.settings import Settings
from hanabi_grpo.training.arguments import swift_options

LOG = math.log
RATIOS = [[1.5, 0.5, 1.1], [1.5, 0.5, 4.0]]
"""π_new / π_old per token; the first row has the advantage 1, the second −1."""


def _options(tmp_path: Path, **values: Any) -> dict[str, str]:
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    settings = Settings(model=str(model), dataset="deals.jsonl", **values)
    words = swift_options(settings, tmp_path / "settings.json", tmp_path, 10)
    return {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}


class _Loss(GRPOTrainer):
    """ms-swift's trainer, reduced to what its loss function reads; the parameters come from our command line."""

    def __init__(self, options: dict[str, str], logps: torch.Tensor) -> None:
        defaults = {one.name: one.default for one in fields(RLHFArguments)}
        chosen = {**defaults, "log_completions": False, "output_dir": None, "generation_batch_size": 4}
        for name, value in options.items():
            kind = type(chosen.get(name))
            chosen[name] = value == "true" if value in ("true", "false") else float(value) if kind is float else value
        for name in ("epsilon_high", "delta"):
            if chosen[name] is not None:
                chosen[name] = float(chosen[name])
        self.args = SimpleNamespace(**chosen)
        self.logps = logps
        self.accelerator = Accelerator(cpu=True)
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


def _batch(**values: Any) -> GRPOBatch:
    shape = (2, 3)
    given = {
        "completion_mask": torch.ones(shape, dtype=torch.bool),
        "truncated_mask": torch.zeros(2, dtype=torch.bool),
        "seq_lengths": torch.full((2,), 4),
        "advantages": torch.tensor([[1.0], [-1.0]]).expand(shape),
        "num_items_in_batch": torch.tensor(6),
        "logits_to_keep": 3,
        "old_per_token_logps": torch.full(shape, -2.0),
        **values,
    }
    return GRPOBatch(**given)


def _gradient(tmp_path: Path, *, batch: GRPOBatch | None = None, **values: Any) -> tuple[float, list[list[float]]]:
    """Return the loss, and the factor that multiplies ∇log π of each token, times the number of tokens."""
    logps = (torch.tensor(RATIOS).log() - 2.0).requires_grad_()
    trainer = _Loss(_options(tmp_path, **values), logps)
    loss, trainer.measured = trainer._compute_loss_and_metrics(trainer.model, {}, batch or _batch())
    loss.backward()
    assert logps.grad is not None
    return 6 * float(loss), [[round(6 * value, 5) for value in row] for row in logps.grad.tolist()]


def _close(found: list[list[float]], expected: list[list[float]]) -> None:
    assert [value for row in found for value in row] == pytest.approx([value for row in expected for value in row])


def test_the_default_clip_is_a_fifth_on_both_sides(tmp_path: Path) -> None:
    loss, gradient = _gradient(tmp_path)
    # Clipped where the ratio has left the band in the direction of the advantage; elsewhere −A · ratio.
    _close(gradient, [[0.0, -0.5, -1.1], [1.5, 0.0, 4.0]])
    assert loss == pytest.approx(-(1.2 + 0.5 + 1.1) + (1.5 + 0.8 + 4.0))


def test_the_band_has_a_lower_and_an_upper_width(tmp_path: Path) -> None:
    loss, gradient = _gradient(tmp_path, clip_low=0.6, clip_high=0.05)
    _close(gradient, [[0.0, -0.5, 0.0], [1.5, 0.5, 4.0]])
    assert loss == pytest.approx(-(1.05 + 0.5 + 1.05) + (1.5 + 0.5 + 4.0))


def test_the_dual_clip_ends_the_pull_of_a_bad_token_that_became_likely(tmp_path: Path) -> None:
    loss, gradient = _gradient(tmp_path, clip_dual=3.0)
    _close(gradient, [[0.0, -0.5, -1.1], [1.5, 0.0, 0.0]])
    assert loss == pytest.approx(-(1.2 + 0.5 + 1.1) + (1.5 + 0.8 + 3.0))


def test_without_old_logprobs_every_ratio_is_one_and_no_clip_acts(tmp_path: Path) -> None:
    _, gradient = _gradient(tmp_path, batch=_batch(old_per_token_logps=None), clip_low=0.01, clip_high=0.01)
    _close(gradient, [[-1.0] * 3, [1.0] * 3])


def test_the_kl_in_the_loss_is_the_third_estimator_times_beta(tmp_path: Path) -> None:
    reference = torch.full((2, 3), -2.0)
    none = torch.zeros(2, 3)
    loss, gradient = _gradient(tmp_path, batch=_batch(advantages=none, ref_per_token_logps=reference), beta=0.5)
    # r − log r − 1 with r = π_ref / π, here 1 / ratio; its derivative by log π is 1 − r.
    expected = [[0.5 * (1 - 1 / ratio) for ratio in row] for row in RATIOS]
    _close(gradient, [[round(value, 5) for value in row] for row in expected])
    assert loss == pytest.approx(sum(0.5 * (1 / ratio + LOG(ratio) - 1) for row in RATIOS for ratio in row), rel=1e-5)


def test_the_kl_in_the_reward_is_left_out_of_the_loss(tmp_path: Path) -> None:
    batch = _batch(advantages=torch.zeros(2, 3), ref_per_token_logps=torch.full((2, 3), -5.0))
    loss, gradient = _gradient(tmp_path, batch=batch, beta=0.5, kl="reward")
    assert loss == 0.0
    _close(gradient, [[0.0] * 3] * 2)


SAMPLER = torch.tensor([[-2.0 - LOG(4.0), -2.0, -2.0 + LOG(2.0)], [-2.0, -2.0, -2.0]])
"""π_old / π_sampler is 4, 1 and 1/2 in the first row, whose geometric mean is 2^(1/3), and 1 in the second."""
PLAIN = [[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("mode", "limit", "weights"),
    [
        ("none", 2.0, [1.0, 1.0, 1.0]),
        ("token_truncate", 2.0, [2.0, 1.0, 0.5]),
        ("token_mask", 2.0, [0.0, 1.0, 0.5]),
        ("sequence_truncate", 2.0, [2 ** (1 / 3)] * 3),
        ("sequence_truncate", 1.1, [1.1] * 3),
        ("sequence_mask", 2.0, [4.0, 1.0, 0.5]),
        ("sequence_mask", 1.1, [0.0, 0.0, 0.0]),
    ],
)
def test_the_sampler_correction_weighs_tokens_by_trainer_over_sampler(
    tmp_path: Path, mode: str, limit: float, weights: list[float]
) -> None:
    options = _options(tmp_path, sampler_correction=mode, sampler_correction_limit=limit)
    logps = torch.full((2, 3), -2.0, requires_grad=True)
    trainer = _Loss(options, logps)
    batch = _batch(rollout_per_token_logps=SAMPLER)
    loss, measured = trainer._compute_loss_and_metrics(trainer.model, {}, batch)
    loss.backward()
    assert logps.grad is not None
    _close((6 * logps.grad).tolist(), [[-one for one in weights], [1.0] * 3])
    assert ("rollout_correction" in measured) == (mode != "none")


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_a_row_without_a_sampled_token_stays_without_loss_and_finite(tmp_path: Path, mode: str) -> None:
    logps = torch.full((1, 1), -30.0, requires_grad=True)
    trainer = _Loss(_options(tmp_path, sampler_correction=mode), logps)
    batch = _batch(
        completion_mask=torch.zeros(1, 1, dtype=torch.bool),
        truncated_mask=torch.zeros(1, dtype=torch.bool),
        seq_lengths=torch.tensor([2]),
        advantages=torch.zeros(1, 1),
        old_per_token_logps=logps.detach(),
        rollout_per_token_logps=torch.zeros(1, 1),
        logits_to_keep=1,
    )
    loss, _ = trainer._compute_loss_and_metrics(trainer.model, {}, batch)
    loss.backward()
    assert float(loss) == 0.0
    assert logps.grad is not None and logps.grad.tolist() == [[0.0]]


def test_the_options_have_their_names_and_defaults_in_ms_swift(tmp_path: Path) -> None:
    known = {one.name: one.default for one in fields(RLHFArguments)}
    options = _options(tmp_path, clip_dual=3.0, sampler_correction="token_mask", beta=0.1)
    assert set(options) - {"hanabi_settings"} <= known.keys()
    assert (known["epsilon"], known["rollout_importance_sampling_threshold"], known["num_iterations"]) == (0.2, 2.0, 1)
    assert not {"num_iterations", "steps_per_generation"} & set(options), "one set of games a step; passes are ours"


def test_what_was_not_asked_for_is_not_handed_on(tmp_path: Path) -> None:
    options = _options(tmp_path)
    assert (options["epsilon"], options["epsilon_high"], options["kl_in_reward"]) == ("0.2", "0.2", "false")
    assert not {"delta", "rollout_importance_sampling_mode"} & options.keys()
    asked = _options(tmp_path, updates_per_step=3, clip_dual=2.5, sampler_correction="sequence_mask", kl="reward")
    assert asked["gradient_accumulation_steps"] == str(3 * int(options["gradient_accumulation_steps"]))
    assert (asked["delta"], asked["rollout_importance_sampling_mode"], asked["kl_in_reward"]) == (
        "2.5",
        "sequence_mask",
        "true",
    )
