"""The two real scripts: train, save, agree, stop."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from conftest_e2e import ROOT, Server, clean_environment, reset_signals, start_server, stop, train
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.rollout.wire import episode_from_json
from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.settings.partners import own_seats
from hanabi_grpo.settings.refs import is_frozen
from hanabi_grpo.types import player_names

pytestmark = pytest.mark.e2e
PLAYERS = ("player_0", "player_1")


def _tensors(folder: Path, step: int, player: str) -> dict[str, torch.Tensor]:
    return load_file(folder / f"checkpoint-{step}" / player / "adapter_model.safetensors")


def _run(words: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": 400}
    return subprocess.run([sys.executable, *words], env=environment, check=False, **given)  # type: ignore[call-overload]


def test_every_player_learns_its_own_adapter(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    first, last = (
        {player: _tensors(folder, step, player) for player in PLAYERS} for step in (1, 3)
    )
    for player in PLAYERS:
        moved = [
            name
            for name in last[player]
            if not torch.equal(first[player][name], last[player][name])
        ]
        assert len(moved) == len(last[player]), (
            f"{player}: only {moved} moved between steps 1 and 3"
        )
    differing = [
        name
        for name in last["player_0"]
        if not torch.equal(last["player_0"][name], last["player_1"][name])
    ]
    assert len(differing) == len(last["player_0"])
    manifests = [
        json.loads((folder / f"checkpoint-{step}/manifest.json").read_text()) for step in (1, 2, 3)
    ]
    assert len({one["base_checksum"] for one in manifests}) == 1, (
        "the base model in the trainer changed"
    )


def test_the_run_folder_holds_its_records(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    settings = json.loads((folder / "settings.json").read_text())
    assert "LORA_RANK" in json.dumps(settings)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["player_0/parity"] < 1e-4 and row["player_1/parity"] < 1e-4 for row in rows)
    assert rows[-1]["time/push"] > 0
    assert all(0 <= row["tokens/cached_share"] < 1 < row["tokens/prompts_per_game"] for row in rows)
    episodes = [
        episode_from_json(json.loads(line))
        for line in (folder / "episodes/step_000002.jsonl").read_text().splitlines()
    ]
    assert len(episodes) == 16
    assert {turn.version for episode in episodes for turn in episode.turns} == {2}
    assert len({(episode.suite, episode.seed) for episode in episodes}) == 2
    assert list(folder.glob("wandb/offline-run-*/*.wandb")), "no offline W&B run in the run folder"


def test_a_checkpoint_in_plain_peft_gives_the_logprobs_that_the_server_gave(
    trained: tuple[Path, str], server: Server
) -> None:
    folder, _ = trained
    base = AutoModelForCausalLM.from_pretrained(server.model, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder / "checkpoint-3" / "player_1").eval()
    client = RolloutClient(server.url)
    config = EnvConfig(preset="laptop", observation="compact", legal_moves=False)
    tasks = [
        {"env_config": config.model_dump(), "suite": "eval", "seed": seed} for seed in range(6)
    ]
    seats = [f"{player}@3" for player in player_names(2)]
    groups = client.play(tasks, num_games=1, max_tokens=4, temperature=1.0, seats=seats).groups
    gaps = []
    for [episode] in groups:
        ids, marks, sampled = [], [], []
        for turn in episode.trajectory(1):
            ids += [*turn.prompt_ids, *turn.reply_ids]
            marks += [False] * len(turn.prompt_ids) + [True] * len(turn.reply_ids)
            sampled += turn.logprobs
        if not ids:
            continue
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0]
        ours = torch.log_softmax(logits[:-1], -1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
        gaps += (ours[torch.tensor(marks[1:])] - torch.tensor(sampled)).abs().tolist()
    assert len(gaps) > 20
    assert max(gaps) < 1e-3


@pytest.mark.rest
def test_one_adapter_for_all_players_trains_through_the_same_code(
    server: Server, tmp_path: Path
) -> None:
    done = train(server, tmp_path / "train", MAX_STEPS=1, HANABI_ADAPTERS="shared")
    assert done.returncode == 0, done.stdout[-4000:]
    assert sorted(path.name for path in (tmp_path / "train/checkpoint-1").iterdir()) == [
        "manifest.json",
        "shared",
        "trainer",
    ]


@pytest.mark.rest
def test_players_who_remember_two_turns_agree_with_the_sampler_before_and_after_a_resume(
    server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "train"
    remembered = {"HANABI_MEMORY": 2, "SAVE_STEPS": 1}
    for words in ({"MAX_STEPS": 2}, {"MAX_STEPS": 4, "RESUME": "latest"}):
        done = train(server, folder, **remembered, **words)
        assert done.returncode == 0, done.stdout[-4000:]
    assert "the next step is number 3" in done.stdout
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row[f"{player}/parity"] < 1e-4 for row in rows for player in PLAYERS)
    assert all(0 < row["tokens/cached_share"] < 1 for row in rows)
    [user] = AutoTokenizer.from_pretrained(server.model).encode("user", add_special_tokens=False)
    longest = 0
    for step, row in enumerate(rows):
        lines = (folder / f"episodes/step_{step:06d}.jsonl").read_text().splitlines()
        games = [episode_from_json(json.loads(line)) for line in lines]
        assert {turn.version for game in games for turn in game.turns} == {step}
        for own in (game.trajectory(player) for game in games for player in (0, 1)):
            assert all(turn.fresh for turn in own)
            seen = [turn.prompt_ids.count(user) for turn in own]
            assert seen == [min(number, 2) for number in range(1, len(own) + 1)]
            longest = max(longest, len(own))
        prompts = sum(len(turn.prompt_ids) for game in games for turn in game.turns)
        assert row["tokens/prompts_per_game"] == pytest.approx(prompts / len(games))
    assert longest > 2, "nobody had more turns than it remembers"


@pytest.mark.rest
def test_partners_play_and_only_the_players_of_the_run_are_trained(
    server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "train"
    partners = {
        "HANABI_PARTNERS": "iggi,earlier",
        "HANABI_PARTNER_SHARE": "0.5",
        "SAVE_STEPS": 1,
        "MAX_STEPS": 3,
    }
    done = train(server, folder, **partners)
    assert done.returncode == 0, done.stdout[-4000:]
    drawn, trained = [], set()
    for step in range(3):
        own = own_seats(2, PLAYERS, step)
        lines = (folder / f"episodes/step_{step:06d}.jsonl").read_text().splitlines()
        games = [episode_from_json(json.loads(line)) for line in lines]
        assert len(games) == 16
        for start in (0, 8):
            group = games[start : start + 8]
            (seats,) = {episode.seats for episode in group}
            others = [seat for seat in (0, 1) if seats[seat] != own[seat]]
            drawn.append((seats[others[0]], others[0]) if others else None)
            trained |= {
                PLAYERS[turn.player]
                for one in group
                for turn in one.turns
                if turn.player not in others
            }
            for turn in (turn for episode in group for turn in episode.turns):
                word = seats[turn.player]
                assert turn.version == (None if word == "iggi" else int(word.split("@")[1]))
                assert bool(turn.reply_ids) == (word != "iggi")
    # SEED=42 draws these; the only version before version 2 is that of checkpoint-1.
    assert drawn[:4] == [None, None, None, ("iggi", 0)]
    assert (
        drawn[4] is not None
        and is_frozen(drawn[4][0])
        and drawn[4][0].endswith("@1")
        and drawn[4][1] == 0
    )
    assert drawn[5] == ("iggi", 1)
    assert trained == set(PLAYERS)
    for player in PLAYERS:
        first, last = _tensors(folder, 1, player), _tensors(folder, 3, player)
        assert all(not torch.equal(first[name], last[name]) for name in last), player
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(row[f"{player}/parity"] < 1e-4 for row in rows for player in PLAYERS)
    assert [(row["self_play/games"], row.get("partners/iggi/games", 0)) for row in rows] == [
        (16, 0),
        (8, 8),
        (0, 8),
    ]
    assert rows[2]["partners/earlier/games"] == 8 and 0 <= rows[2]["partners/earlier/score"] <= 4
    manifest = json.loads((folder / "checkpoint-3/manifest.json").read_text())
    assert manifest["model_fingerprint"] == model_fingerprint(server.model)
    assert {"tokenizer_hash", "chat_hash", "dtype"} <= manifest.keys()


@pytest.mark.rest
def test_ctrl_c_ends_the_trainer_and_keeps_its_last_step_and_the_server(
    server: Server, tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", str(ROOT / "tools/train/train_grpo_msswift.sh")],
            env=server.environment(OUTPUT_DIR=tmp_path / "train", MAX_STEPS=500, SAVE_STEPS=400),
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=reset_signals,
        )
    deadline = time.monotonic() + 300
    metrics = tmp_path / "train/metrics.jsonl"
    while time.monotonic() < deadline and not (
        metrics.exists() and len(metrics.read_text().splitlines()) >= 2
    ):
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.5)
    assert stop(process, signal.SIGINT) == []
    assert process.returncode == 130, log.read_text()[-3000:]
    saved = [int(path.name.split("-")[1]) for path in (tmp_path / "train").glob("checkpoint-*")]
    assert saved and saved[0] >= 2
    assert RolloutClient(server.url).health()["status"] == "ok"
    # What is printed last can be typed as it is, in a shell that knows none of the variables.
    command = log.read_text().rpartition("to go on:\n")[2].strip()
    looked = subprocess.run(
        ["bash", "-c", f"{command} --dry-run --json"],
        env=clean_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert looked.returncode == 0, f"{command}\n{looked.stdout[-3000:]}{looked.stderr[-1000:]}"
    [found] = [
        check
        for check in json.loads(looked.stdout)["doctor"]["checks"]
        if check["name"] == "run folder"
    ]
    assert (
        f"{tmp_path / 'train'}; RESUME=latest: goes on from " in found["finding"]
        and "changed" not in found["finding"]
    )


@pytest.mark.rest
def test_a_killed_server_leaves_no_engine_behind(tiny_model: Path, tmp_path: Path) -> None:
    server = start_server(tiny_model, tmp_path / "server.log")
    assert stop(server.process, signal.SIGKILL) == []
