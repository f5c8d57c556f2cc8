"""However its forward pass is computed and its tokens are cut, a step has the same gradients.

The same holds for its metrics.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import Plan
from scripted_runs import (
    PLAYERS,
    STAGES,
    num_processes,
    player_state,
    run_trainer,
    write_settings,
)

from conftest_e2e import read_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.usefixtures("in_repository_root")]
CUTS = {"rows": {}, "tokens": {"HANABI_TOKENS_PER_MICRO_BATCH": "120"}}
"""Ways to cut a step into micro-batches: equal shares of rows, or a limit of tokens."""
DEPENDS_ON_THE_CUT = (
    "time/",
    "memory/",
    "seconds",
    "step_time",
    "tokens/useful",
    "tokens/sampled_per",
    "tokens/learned_per",
)
"""Beginnings of the names of metrics that differ between cuts."""
SLOPE_OF_ROUNDING = "parity_slope"
"""Where the sampler's logprobs lie between two policies. Here they are the trainer's own, and what
rounding adds to them depends on how they are computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What two steps left."""

    rows: list[dict[str, Any]]
    """The recorded metrics of each step."""
    moments: dict[str, torch.Tensor]
    """Adam's first moments of each player, in one row."""


def train(folder: Path, model: Path, variables: dict[str, str], **options: Any) -> Trained:
    settings = write_settings(
        folder, model, MAX_STEPS="2", SAVE_STEPS="2", BETA="0.05", **variables
    )
    run_trainer(settings, **options)
    moments = {}
    for player in PLAYERS:
        state = player_state(folder / "checkpoint-2", player)
        names = [name for name in sorted(state) if name.endswith("|exp_avg")]
        moments[player] = torch.cat([state[name].flatten() for name in names])
    return Trained(rows=read_metrics(folder), moments=moments)


@pytest.mark.parametrize(("stage", "cuts"), [("torch", ("rows", "tokens")), ("zero2", ("tokens",))])
def test_gradients_and_metrics_are_those_of_ms_swifts_own_pass_over_equal_shares_of_rows(
    tmp_path: Path, tiny_model: Path, stage: str, cuts: tuple[str, ...]
) -> None:
    variables = STAGES[stage]
    processes = num_processes(stage)
    plain = train(
        tmp_path / "plain", tiny_model, variables, processes=processes, plan=Plan(plain=True)
    )
    for cut in cuts:
        ours = train(tmp_path / cut, tiny_model, {**variables, **CUTS[cut]}, processes=processes)
        for row, expected in zip(ours.rows, plain.rows, strict=True):
            assert_same_metrics(row, expected, cut)
        # A moment of Adam is linear in the gradients.
        for player in PLAYERS:
            actual = ours.moments[player]
            expected = plain.moments[player]
            assert torch.cosine_similarity(actual, expected, 0) > 0.9999, cut
            largest = float(expected.abs().max())
            assert float((actual - expected).abs().max()) < 0.01 * largest, cut


def assert_same_metrics(row: dict[str, Any], expected: dict[str, Any], cut: str) -> None:
    assert row.keys() == expected.keys()
    assert row["tokens/useful_share"] > 1, "our pass shares prefixes"
    assert expected["tokens/useful_share"] <= 1, "the plain one does not"
    for name, value in expected.items():
        if not isinstance(value, float) or name.startswith(DEPENDS_ON_THE_CUT):
            continue
        if name.endswith(SLOPE_OF_ROUNDING):
            assert abs(row[name]) < 0.5, (cut, name)
            continue
        # A mean over micro-batches is one over other micro-batches here.
        is_rough = name == "kl" or name.endswith("parity")
        tolerance = 0.5 if is_rough else 1e-3
        assert row[name] == pytest.approx(value, rel=tolerance, abs=1e-5), (cut, name)
