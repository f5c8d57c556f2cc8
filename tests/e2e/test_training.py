"""The two real scripts: train, save, agree, stop."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from conftest_e2e import (
    ROOT,
    Server,
    clean_environment,
    read_episodes,
    read_metrics,
    reset_signals,
    start_server,
    stop,
    train,
)
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.settings.partners import own_seats
from hanabi_grpo.settings.refs import is_frozen
from hanabi_grpo.types import Episode, Turn

pytestmark = pytest.mark.e2e
PLAYERS = ("player_0", "player_1")
PARITY_TOLERANCE = 1e-4
GROUP_SIZE = 8
"""NUM_GENERATIONS of these runs; two groups make a step."""


def load_adapter(folder: Path, step: int, player: str) -> dict[str, torch.Tensor]:
    return load_file(folder / f"checkpoint-{step}" / player / "adapter_model.safetensors")


def assert_every_tensor_differs(
    tensors: dict[str, torch.Tensor], others: dict[str, torch.Tensor], what: str
) -> None:
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert not torch.equal(tensor, others[name]), f"{what}: {name} is the same"


def assert_parity(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        for player in PLAYERS:
            assert row[f"{player}/parity"] < PARITY_TOLERANCE


def versions_of(episodes: list[Episode]) -> set[int | None]:
    return {turn.version for episode in episodes for turn in episode.turns}


def test_every_player_learns_its_own_adapter(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    for player in PLAYERS:
        first = load_adapter(folder, 1, player)
        last = load_adapter(folder, 3, player)
        assert_every_tensor_differs(first, last, f"{player} between steps 1 and 3")
    assert_every_tensor_differs(
        load_adapter(folder, 3, "player_0"),
        load_adapter(folder, 3, "player_1"),
        "player_0 and player_1",
    )
    checksums = set()
    for step in (1, 2, 3):
        manifest = json.loads((folder / f"checkpoint-{step}/manifest.json").read_text())
        checksums.add(manifest["base_checksum"])
    assert len(checksums) == 1, "the base model in the trainer changed"


def test_the_run_folder_holds_its_records(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    settings = json.loads((folder / "settings.json").read_text())
    assert "LORA_RANK" in json.dumps(settings)
    rows = read_metrics(folder)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert_parity(rows)
    assert rows[-1]["time/push"] > 0
    for row in rows:
        assert 0 <= row["tokens/cached_share"] < 1
        assert row["tokens/prompts_per_game"] > 1
    episodes = read_episodes(folder, version=2)
    assert len(episodes) == 2 * GROUP_SIZE
    assert versions_of(episodes) == {2}
    assert len({(episode.suite, episode.seed) for episode in episodes}) == 2
    offline_runs = list(folder.glob("wandb/offline-run-*/*.wandb"))
    assert offline_runs, "no offline W&B run in the run folder"


def test_no_library_writes_a_line_that_it_writes_in_every_run(trained: tuple[Path, str]) -> None:
    _, output = trained
    foreign = [line for line in output.splitlines() if "warn" in line.lower()]
    assert foreign == []


def reply_gaps(model: torch.nn.Module, turns: list[Turn]) -> list[float]:
    """Return how far a model's logprob of each reply token is from the sampler's.

    Args:
        model: The causal language model with the player's adapter.
        turns: The turns of one conversation.
    """
    ids: list[int] = []
    is_reply: list[bool] = []
    sampled: list[float] = []
    for turn in turns:
        ids += [*turn.prompt_ids, *turn.reply_ids]
        is_reply += [False] * len(turn.prompt_ids) + [True] * len(turn.reply_ids)
        sampled += turn.logprobs
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    targets = torch.tensor(ids[1:])[:, None]
    logprobs = torch.log_softmax(logits[:-1], -1).gather(-1, targets)[:, 0]
    reply_logprobs = logprobs[torch.tensor(is_reply[1:])]
    return (reply_logprobs - torch.tensor(sampled)).abs().tolist()


def test_a_checkpoint_in_plain_peft_gives_the_logprobs_that_the_server_gave(
    trained: tuple[Path, str], server: Server
) -> None:
    folder, _ = trained
    base = AutoModelForCausalLM.from_pretrained(server.model, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder / "checkpoint-3" / "player_1").eval()
    config = EnvConfig(preset="laptop", observation="compact", legal_moves=False)
    tasks = []
    for seed in range(6):
        tasks.append({"env_config": config.model_dump(), "suite": "eval", "seed": seed})
    result = RolloutClient(server.url).play(
        tasks,
        num_games=1,
        max_tokens=4,
        temperature=1.0,
        seats=["player_0@3", "player_1@3"],
    )
    gaps: list[float] = []
    for [episode] in result.groups:
        turns = list(episode.trajectory(1))
        if turns:
            gaps += reply_gaps(model, turns)
    assert len(gaps) > 20
    assert max(gaps) < 1e-3


@pytest.mark.rest
def test_one_adapter_for_all_players_trains_through_the_same_code(
    server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "train"
    trainer = train(server, folder, MAX_STEPS=1, HANABI_ADAPTERS="shared")
    assert trainer.returncode == 0, trainer.stdout[-4000:]
    names = sorted(path.name for path in (folder / "checkpoint-1").iterdir())
    assert names == ["manifest.json", "shared", "trainer"]


@pytest.mark.rest
def test_players_who_remember_two_turns_agree_with_the_sampler_before_and_after_a_resume(
    server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "train"
    trainer = train(server, folder, HANABI_MEMORY=2, SAVE_STEPS=1, MAX_STEPS=2)
    assert trainer.returncode == 0, trainer.stdout[-4000:]
    trainer = train(server, folder, HANABI_MEMORY=2, SAVE_STEPS=1, MAX_STEPS=4, RESUME="latest")
    assert trainer.returncode == 0, trainer.stdout[-4000:]
    assert "the next step is number 3" in trainer.stdout
    rows = read_metrics(folder)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert_parity(rows)
    tokenizer = AutoTokenizer.from_pretrained(server.model)
    [user_token] = tokenizer.encode("user", add_special_tokens=False)
    most_turns = 0
    for version, row in enumerate(rows):
        assert 0 < row["tokens/cached_share"] < 1
        episodes = read_episodes(folder, version)
        assert versions_of(episodes) == {version}
        for episode in episodes:
            for player in (0, 1):
                turns = episode.trajectory(player)
                assert_two_turns_are_remembered(turns, user_token)
                most_turns = max(most_turns, len(turns))
        num_prompt_tokens = 0
        for episode in episodes:
            num_prompt_tokens += sum(len(turn.prompt_ids) for turn in episode.turns)
        expected = num_prompt_tokens / len(episodes)
        assert row["tokens/prompts_per_game"] == pytest.approx(expected)
    assert most_turns > 2, "nobody had more turns than it remembers"


def assert_two_turns_are_remembered(turns: Any, user_token: int) -> None:
    """Every prompt is a fresh conversation with the messages of the last two turns."""
    num_messages = []
    for turn in turns:
        assert turn.fresh
        num_messages.append(turn.prompt_ids.count(user_token))
    expected = [1, *[2] * (len(turns) - 1)] if turns else []
    assert num_messages == expected


@pytest.mark.rest
def test_partners_play_and_only_the_players_of_the_run_are_trained(
    server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "train"
    trainer = train(
        server,
        folder,
        HANABI_PARTNERS="iggi,earlier",
        HANABI_PARTNER_SHARE="0.5",
        SAVE_STEPS=1,
        MAX_STEPS=3,
    )
    assert trainer.returncode == 0, trainer.stdout[-4000:]
    partners: list[tuple[str, int] | None] = []
    trained_players: set[str] = set()
    for version in range(3):
        episodes = read_episodes(folder, version)
        assert len(episodes) == 2 * GROUP_SIZE
        for start in (0, GROUP_SIZE):
            group = episodes[start : start + GROUP_SIZE]
            partner = partner_of(group, version)
            partners.append(partner)
            assert_turns_are_those_of_their_seats(group)
            for episode in group:
                for turn in episode.turns:
                    if partner is None or turn.player != partner[1]:
                        trained_players.add(PLAYERS[turn.player])
    # SEED=42 draws these; the only version before version 2 is that of checkpoint-1.
    assert partners[:4] == [None, None, None, ("iggi", 0)]
    assert partners[4] is not None
    earlier, seat = partners[4]
    assert is_frozen(earlier)
    assert earlier.endswith("@1")
    assert seat == 0
    assert partners[5] == ("iggi", 1)
    assert trained_players == {"player_0", "player_1"}
    for player in PLAYERS:
        first = load_adapter(folder, 1, player)
        last = load_adapter(folder, 3, player)
        assert_every_tensor_differs(first, last, player)
    rows = read_metrics(folder)
    assert_parity(rows)
    assert [row["self_play/games"] for row in rows] == [16, 8, 0]
    assert [row.get("partners/iggi/games", 0) for row in rows] == [0, 8, 8]
    assert rows[2]["partners/earlier/games"] == 8
    assert 0 <= rows[2]["partners/earlier/score"] <= 4
    manifest = json.loads((folder / "checkpoint-3/manifest.json").read_text())
    assert manifest["model_fingerprint"] == model_fingerprint(server.model)
    assert {"tokenizer_hash", "chat_hash", "dtype"} <= manifest.keys()


def partner_of(group: list[Episode], version: int) -> tuple[str, int] | None:
    """Return the partner of a group's players and its seat; None in self-play."""
    [seats] = {episode.seats for episode in group}
    players = own_seats(2, PLAYERS, version)
    for seat in (0, 1):
        if seats[seat] != players[seat]:
            return seats[seat], seat
    return None


def assert_turns_are_those_of_their_seats(group: list[Episode]) -> None:
    """A bot's turns have neither version nor tokens, an adapter's turns have both."""
    for episode in group:
        for turn in episode.turns:
            seat = episode.seats[turn.player]
            if seat == "iggi":
                assert turn.version is None
                assert not turn.reply_ids
            else:
                assert turn.version == int(seat.split("@")[1])
                assert turn.reply_ids


@pytest.mark.rest
def test_ctrl_c_ends_the_trainer_and_keeps_its_last_step_and_the_server(
    server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "train"
    log = tmp_path / "train.log"
    with log.open("wb") as output:
        trainer = subprocess.Popen(
            ["bash", str(ROOT / "tools/train/train_grpo_msswift.sh")],
            env=server.environment(OUTPUT_DIR=folder, MAX_STEPS=500, SAVE_STEPS=400),
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=reset_signals,
        )
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and num_recorded_steps(folder) < 2:
        assert trainer.poll() is None, log.read_text()[-3000:]
        time.sleep(0.5)
    assert stop(trainer, signal.SIGINT) == []
    assert trainer.returncode == 130, log.read_text()[-3000:]
    saved = [int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*")]
    assert saved
    assert saved[0] >= 2
    assert RolloutClient(server.url).health()["status"] == "ok"
    # What is printed last can be typed as it is, in a shell that knows none of the variables.
    command = log.read_text().rpartition("to continue:\n")[2].strip()
    dry_run = subprocess.run(
        ["bash", "-c", f"{command} --dry-run --json"],
        env=clean_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert dry_run.returncode == 0, f"{command}\n{dry_run.stdout[-3000:]}{dry_run.stderr[-1000:]}"
    checks = json.loads(dry_run.stdout)["doctor"]["checks"]
    [finding] = [check["finding"] for check in checks if check["name"] == "run folder"]
    assert f"{folder}; RESUME=latest: resumes from " in finding
    assert "changed" not in finding


def num_recorded_steps(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    if not metrics.exists():
        return 0
    return len(metrics.read_text().splitlines())


@pytest.mark.rest
def test_a_killed_server_leaves_no_engine_behind(tiny_model: Path, tmp_path: Path) -> None:
    server = start_server(tiny_model, tmp_path / "server.log")
    assert stop(server.process, signal.SIGKILL) == []
