"""Calls to a running rollout server that more than one file of tests makes."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from conftest_e2e import Server
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.handshake import game_claims, tokenizer_hash
from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.training.model.adapters import add_adapters, export_adapter
from hanabi_grpo.types import player_names

PLAYERS = player_names(2)
CONFIG = EnvConfig(preset="laptop", observation="compact", legal_moves=False)


def open_session(client: RolloutClient, server: Server, run_id: str) -> None:
    """Open a trainer's session for two players on the laptop board."""
    tokenizer = AutoTokenizer.from_pretrained(server.model)
    client.open_session(
        run_id=run_id,
        secret="5" * 64,
        adapters=PLAYERS,
        lora_rank=8,
        model_fingerprint=model_fingerprint(server.model),
        dtype="float32",
        tokenizer_hash=tokenizer_hash(tokenizer),
        chat_hash=ChatFormat.from_tokenizer(tokenizer).hash,
        games=game_claims([Setup(HANABI, CONFIG)]),
    )


def make_adapters(
    server: Server,
    scale: float,
    *,
    adapter_seed: int = 0,
    noise_seed: int = 0,
    names: tuple[str, ...] = PLAYERS,
) -> dict[str, tuple[bytes, dict[str, Any]]]:
    """Return adapters with random B matrices, as uploads: weights and PEFT configuration by name.

    Args:
        server: The server for whose model they are.
        scale: Standard deviation of the entries of B.
        adapter_seed: Seed of the new adapters, whose B is zero before the noise.
        noise_seed: Seed of the entries of B.
        names: Names of the adapters.
    """
    base = AutoModelForCausalLM.from_pretrained(server.model, dtype=torch.float32)
    model = add_adapters(base, names, rank=8, alpha=16, seed=adapter_seed)
    generator = torch.Generator().manual_seed(noise_seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=scale, generator=generator)
    return {name: export_adapter(model, name, torch.float32) for name in names}
