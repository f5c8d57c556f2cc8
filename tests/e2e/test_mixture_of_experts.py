"""A small mixture of experts through both processes, with adapters on its attention."""

import json
import re
from pathlib import Path

import pytest
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from conftest_e2e import read_metrics, start_server, stop, train
from small_models import random_model

pytestmark = [pytest.mark.e2e, pytest.mark.rest]


def write_mixture(tiny_model: Path, folder: Path) -> Path:
    """Write a random model of two layers with four experts, of which each token uses two.

    Args:
        tiny_model: Whose tokenizer it has.
        folder: Where it goes.
    """
    return random_model(
        folder,
        tiny_model,
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.1,
    )


def test_adapters_on_the_attention_of_a_mixture_act_in_the_engine_as_in_the_trainer(
    tiny_model: Path, tmp_path: Path
) -> None:
    server = start_server(write_mixture(tiny_model, tmp_path / "model"), tmp_path / "server.log")
    try:
        run = tmp_path / "train"
        trainer = train(server, run, MAX_STEPS=2)
    finally:
        stop(server.process)
    assert trainer.returncode == 0, trainer.stdout[-4000:]
    found = re.search(r"adapter check: .* largest difference (\S+) %", trainer.stdout)
    assert found, trainer.stdout[-4000:]
    assert float(found[1]) < 1
    steps = read_metrics(run)
    assert len(steps) == 2
    modules = json.loads((run / "checkpoint-2/player_0/adapter_config.json").read_text())
    assert modules["target_modules"] == ["k_proj", "o_proj", "q_proj", "v_proj"]
