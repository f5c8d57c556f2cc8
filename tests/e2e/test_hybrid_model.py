"""A small model with Qwen3.5's layers, linear attention among them, through both processes.

On a CPU vLLM (0.32) computes these layers in bfloat16 alone, with heads of 128.
"""

import json
import re
from pathlib import Path

import pytest
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from conftest_e2e import ROOT, read_metrics, start_server, stop, train
from small_models import random_model

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

STUB = ROOT / "tests/e2e/without_images"
"""See `torchvision` there."""
DTYPE = {"HANABI_DTYPE": "bfloat16"}
FEW_GAMES = {"NUM_GENERATIONS": 2, "PER_DEVICE_TRAIN_BATCH_SIZE": 4}
"""A CPU that cannot multiply in 16 bits takes seconds for each."""


def write_hybrid_model(tiny_model: Path, folder: Path) -> Path:
    """Write a random model of three layers of linear attention and one of full attention.

    Args:
        tiny_model: Whose tokenizer it has.
        folder: Where it goes.
    """
    return random_model(
        folder,
        tiny_model,
        Qwen3_5ForCausalLM,
        Qwen3_5TextConfig,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        max_position_embeddings=2048,
        initializer_range=0.1,
    )


def test_adapters_on_linear_attention_act_in_the_engine_as_in_the_trainer(
    tiny_model: Path, tmp_path: Path
) -> None:
    model = write_hybrid_model(tiny_model, tmp_path / "model")
    server = start_server(
        model,
        tmp_path / "server.log",
        **DTYPE,
        PYTHONPATH=f"{ROOT / 'tests/e2e/reporting'}:{STUB}",
    )
    try:
        run = tmp_path / "train"
        trainer = train(
            server, run, MAX_STEPS=2, **DTYPE, **FEW_GAMES, HANABI_PARITY_TOLERANCE=0.05
        )
    finally:
        stop(server.process)
    assert trainer.returncode == 0, trainer.stdout[-4000:]
    assert "layers of full_attention, linear_attention" in trainer.stdout
    found = re.search(r"adapter check: .* largest difference (\S+) %", trainer.stdout)
    assert found, trainer.stdout[-4000:]
    assert float(found[1]) < 8
    steps = read_metrics(run)
    assert len(steps) == 2
    modules = json.loads((run / "checkpoint-2/player_0/adapter_config.json").read_text())
    assert {"in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"} <= set(
        modules["target_modules"]
    )
