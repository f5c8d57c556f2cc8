"""The rollout server's routes, on the running server."""

import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from server_calls import CONFIG, PLAYERS, make_adapters, open_session

from conftest_e2e import ROOT, Server, clean_environment, death_signals, start_server, stop
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.rollout.messages import ScoredPrompt
from hanabi_grpo.types import Episode, ReplyKind, Turn

pytestmark = pytest.mark.e2e
BASE = ("base", "base")
TASKS = [{"env_config": CONFIG.model_dump(), "suite": "eval", "seed": seed} for seed in range(4)]
MAX_TOKENS = 4


@pytest.fixture
def client(server: Server) -> Iterator[RolloutClient]:
    with RolloutClient(server.url) as client:
        yield client


def play(
    client: RolloutClient,
    tasks: Sequence[dict[str, Any]],
    *,
    seats: Sequence[str],
    num_games: int,
    temperature: float = 1.0,
) -> list[list[Episode]]:
    """Return the group of each task.

    Args:
        client: The client of the server.
        tasks: The rows of the tasks.
        seats: What plays in each seat, where a task does not say it.
        num_games: Number of games of each task.
        temperature: The sampling temperature.
    """
    result = client.play(
        tasks,
        num_games=num_games,
        max_tokens=MAX_TOKENS,
        temperature=temperature,
        seats=seats,
    )
    return result.groups


def legal_turns(groups: list[list[Episode]]) -> list[Turn]:
    turns = []
    for group in groups:
        for episode in group:
            turns += [turn for turn in episode.turns if turn.kind is ReplyKind.LEGAL]
    return turns


def assert_tokens_and_logprobs_are_aligned(turns: Sequence[Turn]) -> None:
    assert turns
    for turn in turns:
        assert len(turn.reply_ids) > 0
        assert len(turn.reply_ids) == len(turn.logprobs)
        assert turn.version is None
        assert max(turn.logprobs) <= 0


def test_games_of_the_base_model_and_of_two_environments_carry_aligned_tokens_and_logprobs(
    client: RolloutClient,
) -> None:
    poker = registry.setup("kuhn_poker", {"preset": "kuhn_poker"})
    poker_tasks = []
    for seed in range(4):
        task = {**poker.row(), "suite": "eval", "seed": seed, "seats": ["base", "random"]}
        poker_tasks.append(task)
    groups = play(client, [*TASKS, *poker_tasks], num_games=2, seats=BASE)
    assert [len(group) for group in groups] == [2] * 8
    assert [group[0].env for group in groups] == ["hanabi"] * 4 + ["kuhn_poker"] * 4
    for group in groups[:4]:
        for episode in group:
            assert_tokens_and_logprobs_are_aligned(episode.turns)
    for group in groups[4:]:
        for episode in group:
            # Only player 0 is the model; the script in the other seat has no tokens.
            assert_tokens_and_logprobs_are_aligned(episode.trajectory(0))
            assert episode.reward(0, "return") == -episode.reward(1, "return")
            assert episode.reward(0, "return") != 0


def test_a_scored_reply_has_the_probability_with_which_it_is_sampled(
    client: RolloutClient, server: Server
) -> None:
    open_session(client, server, "score")
    client.push(1, make_adapters(server, 0.3))
    setup = Setup(HANABI, CONFIG.model_copy(update={"memory": "turn"}))
    tasks = [{**setup.row(), "suite": "eval", "seed": seed} for seed in range(4)]
    groups = play(client, tasks, num_games=2, seats=("player_0@1", "player_1@1"))
    turns = legal_turns(groups)
    assert len(turns) > 10
    for player in (0, 1):
        system = HANABI.system(setup.config, player)
        prompts = []
        sampled = []
        for turn in turns:
            if turn.player == player:
                prompts.append(
                    ScoredPrompt(system=system, prompt=turn.prompt, replies=(turn.reply,))
                )
                sampled.append(sum(turn.logprobs))
        scored = [value for (value,) in client.score(f"player_{player}@1", prompts)]
        assert scored == pytest.approx(sampled, abs=1e-3)
        scored_by_base = [value for (value,) in client.score("base", prompts)]
        gaps = [abs(ours - base) for ours, base in zip(scored, scored_by_base, strict=True)]
        assert max(gaps) > 0.01


def test_players_with_different_adapters_play_differently(
    client: RolloutClient, server: Server
) -> None:
    """Greedy sampling makes replies a function of prompt and adapter: only a seat's own counts."""
    open_session(client, server, "adapters")
    adapters = make_adapters(server, 0.3)
    other_adapters = make_adapters(server, 0.3, adapter_seed=9, noise_seed=9)
    strong_adapters = make_adapters(server, 3.0, adapter_seed=5, noise_seed=5)

    def first_replies() -> list[str]:
        versions = client.identity()["versions"]
        seats = [f"{player}@{versions[player]}" for player in PLAYERS]
        groups = play(client, TASKS, num_games=1, temperature=0.0, seats=seats)
        return [group[0].turns[0].reply for group in groups]

    client.push(1, adapters)
    before = first_replies()
    client.push(2, {"player_0": adapters["player_0"], "player_1": other_adapters["player_1"]})
    assert first_replies() == before, "player 0's first replies changed with player 1's adapter"
    client.push(3, {"player_0": strong_adapters["player_0"], "player_1": adapters["player_1"]})
    assert first_replies() != before


def test_every_process_of_the_engine_dies_with_the_one_above_it(server: Server) -> None:
    signals = death_signals(server)
    assert any("EngineCore" in title for title in signals)
    assert set(signals.values()) == {signal.SIGKILL}, signals


def test_a_port_in_use_is_an_error_and_never_another_port(server: Server) -> None:
    environment = clean_environment()
    environment["MODEL"] = str(server.model)
    environment["PORT"] = str(server.port)
    process = subprocess.run(
        ["bash", str(ROOT / "tools/rollout/rollout_hanabi_gym.sh")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 2
    assert f"PORT={server.port}: cannot listen" in process.stdout + process.stderr


def cached_share(client: RolloutClient) -> float:
    """Return the share of prompt tokens that an engine found in its cache, for new tasks."""
    tasks = [{**task, "seed": 1000 + task["seed"]} for task in TASKS]
    result = client.play(tasks, num_games=16, max_tokens=MAX_TOKENS, temperature=1.0, seats=BASE)
    return result.cached_tokens / result.prompt_tokens


@pytest.mark.rest
def test_two_engines_in_one_server_find_as_many_prefixes_in_their_caches_as_one(
    client: RolloutClient, server: Server, tmp_path: Path
) -> None:
    """Each game stays with one engine; only a task's first prompt is computed by both.

    Turns that were scattered over the engines would halve the share.
    """
    two_engines = start_server(server.model, tmp_path / "two.log", VLLM_DATA_PARALLEL_SIZE=2)
    try:
        with RolloutClient(two_engines.url) as two_engines_client:
            share_of_one = cached_share(client)
            share_of_two = cached_share(two_engines_client)
    finally:
        assert stop(two_engines.process) == [], "engine processes outlived the server"
    # Which of the first prompts are in a cache when the next one comes depends on timing.
    assert share_of_two > 0.75 * share_of_one, (share_of_one, share_of_two)
    assert 0.75 * share_of_one > 0.2, (share_of_one, share_of_two)
