"""The rollout server's routes, on the running server."""

import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from conftest_e2e import ROOT, Server, clean_environment, death_signals, start_server, stop
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.handshake import game_claims, tokenizer_hash
from hanabi_grpo.rollout.messages import ScoredPrompt
from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.training.model.adapters import add_adapters, export_adapter
from hanabi_grpo.types import ReplyKind, player_names

pytestmark = pytest.mark.e2e
PLAYERS, BASE = player_names(2), ("base", "base")
CONFIG = EnvConfig(preset="laptop", observation="compact", legal_moves=False)
DEALS = [{"env_config": CONFIG.model_dump(), "suite": "eval", "seed": seed} for seed in range(4)]


@pytest.fixture
def client(server: Server) -> Iterator[RolloutClient]:
    with RolloutClient(server.url) as client:
        yield client


def _open(client: RolloutClient, server: Server, run_id: str) -> None:
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


def _adapters(
    server: Server, scale: float, seed: int = 0
) -> dict[str, tuple[bytes, dict[str, Any]]]:
    base = AutoModelForCausalLM.from_pretrained(server.model, dtype=torch.float32)
    model = add_adapters(base, PLAYERS, rank=8, alpha=16, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=scale, generator=generator)
    return {name: export_adapter(model, name, torch.float32) for name in PLAYERS}


def _play(
    client: RolloutClient, tasks: Sequence[dict[str, Any]], *, num_games: int, **other: Any
) -> Any:
    return client.play(
        tasks, **{"num_games": num_games, "max_tokens": 4, "temperature": 1.0, **other}
    ).groups


def test_games_of_the_base_model_and_of_two_environments_carry_aligned_tokens_and_logprobs(
    client: RolloutClient,
) -> None:
    poker = registry.setup("kuhn_poker", {"preset": "kuhn_poker"})
    seated = [
        {**poker.row(), "suite": "eval", "seed": seed, "seats": ["base", "random"]}
        for seed in range(4)
    ]
    groups = _play(client, [*DEALS, *seated], num_games=2, seats=BASE)
    assert [(group[0].env, len(group)) for group in groups] == [("hanabi", 2)] * 4 + [
        ("kuhn_poker", 2)
    ] * 4
    for episode in (episode for group in groups for episode in group):
        turns = episode.trajectory(0) if episode.env == "kuhn_poker" else episode.turns
        assert turns
        for turn in turns:
            assert len(turn.reply_ids) == len(turn.logprobs) > 0
            assert turn.version is None
            assert all(value <= 0 for value in turn.logprobs)
    for episode in (episode for group in groups[4:] for episode in group):
        assert episode.reward(0, "return") == -episode.reward(1, "return") != 0


def test_a_scored_reply_has_the_chance_with_which_it_is_sampled(
    client: RolloutClient, server: Server
) -> None:
    _open(client, server, "score")
    client.push(1, _adapters(server, 0.3))
    setup = Setup(HANABI, CONFIG.model_copy(update={"memory": "turn"}))
    tasks = [{**setup.row(), "suite": "eval", "seed": seed} for seed in range(2)]
    groups = _play(client, tasks, num_games=2, seats=("player_0@1", "player_1@1"))
    turns = [
        turn
        for group in groups
        for episode in group
        for turn in episode.turns
        if turn.kind is ReplyKind.LEGAL
    ]
    assert len(turns) > 10
    for player in (0, 1):
        own = [turn for turn in turns if turn.player == player]
        system = HANABI.system(setup.config, player)
        prompts = [
            ScoredPrompt(system=system, prompt=turn.prompt, replies=(turn.reply,)) for turn in own
        ]
        scored = [value for (value,) in client.score(f"player_{player}@1", prompts)]
        assert scored == pytest.approx([sum(turn.logprobs) for turn in own], abs=1e-3)
        other = [value for (value,) in client.score("base", prompts)]
        assert max(abs(one - two) for one, two in zip(scored, other, strict=True)) > 0.01


def test_players_with_different_adapters_play_differently(
    client: RolloutClient, server: Server
) -> None:
    """Greedy sampling makes replies a function of prompt and adapter: only the seat's own adapter
    may matter.
    """
    _open(client, server, "adapters")
    adapters = _adapters(server, 0.3)
    client.push(1, adapters)

    def first_replies() -> list[tuple[str, ...]]:
        wanted = [f"{player}@{client.identity()['versions'][player]}" for player in PLAYERS]
        groups = _play(client, DEALS, num_games=1, temperature=0.0, seats=wanted)
        return [tuple(turn.reply for turn in group[0].turns[:1]) for group in groups]

    before = first_replies()
    client.push(
        2,
        {"player_0": adapters["player_0"], "player_1": _adapters(server, 0.3, seed=9)["player_1"]},
    )
    assert first_replies() == before, "player 0's first replies changed with player 1's adapter"
    client.push(
        3,
        {"player_0": _adapters(server, 3.0, seed=5)["player_0"], "player_1": adapters["player_1"]},
    )
    assert first_replies() != before


def test_every_process_of_the_engine_dies_with_the_one_above_it(server: Server) -> None:
    told = death_signals(server)
    assert any("EngineCore" in title for title in told) and set(told.values()) == {
        signal.SIGKILL
    }, told


def test_a_port_in_use_is_an_error_and_never_another_port(server: Server) -> None:
    environment = {**clean_environment(), "MODEL": str(server.model), "PORT": str(server.port)}
    done = subprocess.run(
        ["bash", str(ROOT / "tools/rollout/rollout_hanabi_gym.sh")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert f"PORT={server.port}: cannot listen" in done.stdout + done.stderr


@pytest.mark.rest
def test_two_engines_in_one_server_find_as_many_prefixes_in_their_caches_as_one(
    client: RolloutClient, server: Server, tmp_path: Path
) -> None:
    """Each game stays with one engine; only a task's first prompt is computed by both. Scattered
    turns halve it.
    """
    two = start_server(server.model, tmp_path / "two.log", VLLM_DATA_PARALLEL_SIZE=2)
    try:
        with RolloutClient(two.url) as other:
            shares = []
            for asked in (client, other):
                tasks = [{**task, "seed": 1000 + task["seed"]} for task in DEALS]
                result = asked.play(tasks, num_games=16, max_tokens=4, temperature=1.0, seats=BASE)
                shares.append(result.cached_tokens / result.prompt_tokens)
    finally:
        assert stop(two.process) == [], "engine processes outlived the server"
    # Which of the first prompts are in a cache when the next one comes is a matter of moments.
    assert shares[1] > 0.75 * shares[0] > 0.2, shares
