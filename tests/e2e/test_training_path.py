"""However its forward pass is computed and its tokens are cut, a step has the same gradients and
the same metrics.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_resumed_run import PLAYERS, STAGES, everything, run, write_settings

pytestmark = [pytest.mark.e2e, pytest.mark.rest]
CUTS = {"rows": {}, "tokens": {"HANABI_TOKENS_PER_MICRO_BATCH": "120"}}
_OWN_CUT = (
    "time/",
    "memory/",
    "seconds",
    "step_time",
    "tokens/useful",
    "tokens/sampled_per",
    "tokens/learned_per",
)


@pytest.fixture(autouse=True)
def _repository_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def _train(
    folder: Path, model: Path, variables: dict[str, str], **options: Any
) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    run(
        write_settings(folder, model, MAX_STEPS="2", SAVE_STEPS="2", BETA="0.05", **variables),
        **options,
    )
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    moments = {}
    for player in PLAYERS:
        found = everything(folder / "checkpoint-2", player)
        moments[player] = torch.cat(
            [found[key].flatten() for key in sorted(found) if key.endswith("|exp_avg")]
        )
    return rows, moments


@pytest.mark.parametrize(("stage", "cuts"), [("torch", ("rows", "tokens")), ("zero2", ("tokens",))])
def test_gradients_and_metrics_are_those_of_ms_swifts_own_pass_over_equal_shares_of_rows(
    tmp_path: Path, tiny_model: Path, stage: str, cuts: tuple[str, ...]
) -> None:
    variables = STAGES[stage]
    processes = int(variables.get("NPROC_PER_NODE", "1"))
    plain = _train(
        tmp_path / "plain", tiny_model, variables, processes=processes, plan={"plain": True}
    )
    for cut in cuts:
        ours = _train(tmp_path / cut, tiny_model, {**variables, **CUTS[cut]}, processes=processes)
        for row, expected in zip(ours[0], plain[0], strict=True):
            assert row.keys() == expected.keys()
            assert row["tokens/useful_share"] > 1 >= expected["tokens/useful_share"], (
                "ours shares, the plain one not"
            )
            for name, value in expected.items():
                if isinstance(value, float) and not name.startswith(_OWN_CUT):
                    # A mean over micro-batches is one over other micro-batches here.
                    rough = name == "kl" or name.endswith("parity")
                    assert row[name] == pytest.approx(
                        value, rel=0.5 if rough else 1e-3, abs=1e-5
                    ), (cut, name)
        # A moment of Adam is linear in the gradients.
        for player in PLAYERS:
            found, expected = ours[1][player], plain[1][player]
            assert torch.cosine_similarity(found, expected, 0) > 0.9999, cut
            assert float((found - expected).abs().max()) < 0.01 * float(expected.abs().max()), cut
