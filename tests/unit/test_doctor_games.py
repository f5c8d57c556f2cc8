"""Model, dataset, batch, context budget, trackers."""

import json
from pathlib import Path

import pytest

from doctor_machines import find, make_model, only
from hanabi_grpo.commands.doctor import games, model, trackers
from hanabi_grpo.commands.doctor.budget import measure_budget
from hanabi_grpo.commands.doctor.context import read_chat
from hanabi_grpo.envs.registry import setup
from hanabi_grpo.settings import Settings

LAPTOP = setup("hanabi", {"preset": "laptop", "players": 2, "observation": "compact", "legal_moves": False})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("doctor") / "model")


def dataset(path: Path, **env_config: object) -> Path:
    row = {"messages": [{"role": "user", "content": "Play."}], "env_config": {"preset": "laptop", **env_config}}
    path.write_text(json.dumps(row) + "\n")
    return path


def test_a_whole_model_is_described(folder: Path) -> None:
    check = only(find(model.model_checks, MODEL=folder))
    assert check.status == "ok"
    # 64 × 16 + 16 × 16 + 8 × 16 parameters; an adapter has 16 × (16 + 16) + 16 × (8 + 16).
    assert "qwen3, 1.41 k parameters; 2 adapters of rank 16, 896 each, on q_proj, v_proj" in check.finding
    assert "1 adapters" in only(find(model.model_checks, MODEL=folder, HANABI_ADAPTERS="shared")).finding


def test_a_missing_folder_names_the_command_that_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The script of terminal 1 makes the default one.
    for given, status, remedy in (
        ({}, "warn", "--preset laptop --players 2 --out data/tiny-model"),
        (
            {"HANABI_PRESET": "mini", "HANABI_PLAYERS": 3},
            "warn",
            "--preset mini --players 3 --out outputs/tiny-mini-3-players",
        ),
        ({"MODEL": "outputs/mine"}, "fail", "--preset laptop --players 2 --out outputs/mine"),
    ):
        check = only(find(model.model_checks, **given))
        assert (check.status, check.remedy) == (status, f".venv/bin/hanabi-grpo tiny-model {remedy}")
    assert only(find(model.model_checks, MODEL="/no/model")).status == "fail"
    assert only(find(model.chat_checks, MODEL="/no/model")).status == "skip"
    assert only(find(model.memory_checks, MODEL="/no/model")).status == "skip"


def test_a_model_of_a_hub_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = only(find(model.model_checks, MODEL="nobody/nothing"))
    assert (check.status, check.remedy) == ("warn", ".venv/bin/hf download nobody/nothing")
    offline = only(find(model.model_checks, MODEL="nobody/nothing", shell={"HF_HUB_OFFLINE": "1"}))
    assert offline.status == "fail"


def test_weights_that_are_not_whole_fail(tmp_path: Path) -> None:
    for number, (content, finding) in enumerate(
        (
            (lambda file: file.read_bytes()[:-10], "not a whole safetensors file"),
            (lambda file: b"version https://git-lfs.github.com/spec/v1", "not a whole safetensors file"),
        )
    ):
        folder = make_model(tmp_path / str(number))
        (folder / "model.safetensors").write_bytes(content(folder / "model.safetensors"))
        check = only(find(model.model_checks, MODEL=folder))
        assert check.status == "fail" and finding in check.finding
    (folder / "model.safetensors").unlink()
    assert "no config.json with *.safetensors weights" in only(find(model.model_checks, MODEL=folder)).finding
    shards = make_model(tmp_path / "shards")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002-of-00002.safetensors: missing" in only(find(model.model_checks, MODEL=shards)).finding


def test_a_model_that_brings_code_or_cannot_be_split_fails(tmp_path: Path) -> None:
    code = make_model(tmp_path / "code", auto_map={"AutoModel": "x.Y"})
    assert "auto_map" in only(find(model.model_checks, MODEL=code)).finding
    heads = make_model(tmp_path / "heads", num_attention_heads=6)
    check = only(find(model.model_checks, MODEL=heads, VLLM_TENSOR_PARALLEL_SIZE=4))
    assert (check.status, check.remedy) == ("fail", "export VLLM_TENSOR_PARALLEL_SIZE=3")


def test_a_chat_template_is_read_and_one_without_fails(folder: Path, tmp_path: Path) -> None:
    assert "a reply ends with <|im_end|>" in only(find(model.chat_checks, MODEL=folder)).finding
    bare = make_model(tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    check = only(find(model.chat_checks, MODEL=bare))
    assert check.status == "fail" and "no chat template" in check.finding


def test_memory_that_no_machine_has_is_warned_of(folder: Path) -> None:
    usual = {"MODEL": folder, "VLLM_SERVER_PORT": 18125, "DATASET": "none"}
    assert only(find(model.memory_checks, **usual)).status in ("ok", "warn")
    check = only(find(model.memory_checks, PER_DEVICE_TRAIN_BATCH_SIZE=10**9, **usual))
    assert check.status == "warn" and "GiB are free" in check.finding


def test_a_dataset_is_summed_up_and_a_bad_row_fails(tmp_path: Path) -> None:
    good = dataset(tmp_path / "good.jsonl", seeds=[1, 2, 3])
    check = only(find(games.dataset_checks, DATASET=good))
    assert check.finding.endswith("1 row(s), 3 fixed deals; hanabi laptop (2 players)")
    bad = only(find(games.dataset_checks, DATASET=dataset(tmp_path / "bad.jsonl", seeds=[-1])))
    assert bad.status == "fail" and "bad.jsonl line 1" in bad.finding
    for function in (games.batch_checks, games.context_checks):
        assert only(find(function, DATASET=tmp_path / "none", MODEL=tmp_path)).status == "skip"


def test_any_environment_is_looked_at(folder: Path) -> None:
    given = {"HANABI_ENV": "kuhn", "MODEL": folder}
    assert only(find(games.dataset_checks, **given)).finding.endswith("1 with fresh deals; kuhn kuhn (2 players)")
    assert "(kuhn, 2 turns a player)" in only(find(games.context_checks, **given)).finding
    unknown = only(find(games.vocabulary_checks, **given))
    assert unknown.status == "fail" and "tiny-model --env kuhn --preset kuhn\n" in unknown.remedy


def test_the_batch_is_shown_in_the_words_of_train_or_what_train_would_refuse(tmp_path: Path) -> None:
    good = dataset(tmp_path / "good.jsonl")
    check = only(find(games.batch_checks, DATASET=good))
    assert check.finding.startswith("500 steps of 8 deals × 16 games = 128 games")
    for settings, said in (
        ({"NUM_GENERATIONS": 5, "PER_DEVICE_TRAIN_BATCH_SIZE": 64}, "games do not divide by NPROC_PER_NODE="),
        ({"NPROC_PER_NODE": 2}, "several processes need DEEPSPEED=zero1, zero2 or zero3"),
        ({"NUM_TRAIN_EPOCHS": 1}, "so an epoch has no end"),
    ):
        check = only(find(games.batch_checks, DATASET=good, **settings))
        assert check.status == "fail" and said in check.finding


def test_a_budget_counts_every_message_and_full_replies(folder: Path) -> None:
    budget = measure_budget([LAPTOP], read_chat(folder, False), 10)
    assert budget.turns == 6 and budget.longest == budget.prompts + 60
    assert budget.opening <= budget.longest
    # The first of two who check and bet in turn acts at most twice in Kuhn's three steps.
    assert measure_budget([setup("kuhn", {"preset": "kuhn"})], read_chat(folder, False), 10).turns == 2


def test_the_context_is_compared_with_the_longest_game(folder: Path, tmp_path: Path) -> None:
    usual = {"MODEL": folder, "DATASET": dataset(tmp_path / "d.jsonl")}
    longest = measure_budget([LAPTOP], read_chat(folder, False), 4).longest
    fits = only(find(games.context_checks, HANABI_MAX_MODEL_LEN=longest, **usual))
    assert fits.status == "ok" and f"= {longest} of HANABI_MAX_MODEL_LEN={longest}" in fits.finding
    short = only(find(games.context_checks, HANABI_MAX_MODEL_LEN=longest - 1, **usual))
    assert short.status == "warn"
    assert short.remedy.splitlines() == ["export HANABI_MAX_MODEL_LEN=256", "export MAX_COMPLETION_LENGTH=3"]
    none = only(find(games.context_checks, HANABI_MAX_MODEL_LEN=64, MAX_COMPLETION_LENGTH=100, **usual))
    assert none.status == "fail" and "no move can be made" in none.finding
    beyond = only(find(games.context_checks, HANABI_MAX_MODEL_LEN=5000, **usual))
    assert (beyond.status, beyond.remedy) == ("fail", "export HANABI_MAX_MODEL_LEN=4096")


def test_a_thinking_model_has_room_for_its_thoughts_where_a_game_has_at_most_20_turns_of_a_player(
    folder: Path, tmp_path: Path
) -> None:
    for device, plain, context, thoughts in (("cpu", 4, 1024, 51), ("gpu", 512, 40960, 2048), ("gpu", 512, 2048, 512)):
        for thinking, limit in ((False, plain), (True, thoughts)):
            given = Settings(device=device, thinking=thinking, max_model_len=context)
            assert given.max_completion_length == limit
            assert Settings(device=device, thinking=thinking, max_completion_length=9).max_completion_length == 9
    usual = {"MODEL": folder, "DATASET": dataset(tmp_path / "d.jsonl"), "HANABI_THINKING": "true"}
    fits = only(find(games.context_checks, **usual))
    assert fits.status == "ok" and "6 turns a player" in fits.finding and "6 replies of 51 = " in fits.finding
    long = only(find(games.context_checks, MAX_COMPLETION_LENGTH=250, **usual))
    assert long.status == "warn" and "6 replies of 250 = " in long.finding
    reply, thinking = long.remedy.splitlines()[-2:]
    assert thinking == "export HANABI_THINKING=false"
    name, _, value = reply.removeprefix("export ").partition("=")
    assert only(find(games.context_checks, **{**usual, name: value})).status == "ok"


def test_words_that_the_tokenizer_does_not_know_are_warned_of(folder: Path, tmp_path: Path) -> None:
    known = only(find(games.vocabulary_checks, MODEL=folder, DATASET=dataset(tmp_path / "a.jsonl")))
    assert known.status == "ok"
    other = dataset(tmp_path / "b.jsonl", preset="full")
    check = only(find(games.vocabulary_checks, MODEL=folder, DATASET=other))
    assert (
        check.status == "fail"
        and check.remedy == ".venv/bin/hanabi-grpo tiny-model --preset full --players 2\nexport MODEL=outputs/tiny-full"
    )


def wandb(tmp_path: Path, netrc: str = "", mode: str = "online", **shell: str) -> tuple[str, str]:
    if netrc:
        (tmp_path / ".netrc").write_text(netrc)
        (tmp_path / ".netrc").chmod(0o600)
    check = only(
        find(trackers.tracker_checks, REPORT_TO="wandb", WANDB_MODE=mode, shell={"HOME": str(tmp_path), **shell})
    )
    assert "topsecret" not in check.finding + check.remedy
    return check.status, check.finding


def test_wandb_online_needs_a_key(tmp_path: Path) -> None:
    assert wandb(tmp_path)[0] == "fail"
    assert wandb(tmp_path, mode="offline")[0] == "ok"
    assert wandb(tmp_path, WANDB_API_KEY="topsecret")[1] == "online at api.wandb.ai, key from WANDB_API_KEY"
    netrc = "machine api.wandb.ai\n  login user\n  password topsecret\n"
    assert wandb(tmp_path, netrc)[0] == "ok"
    assert wandb(tmp_path, WANDB_BASE_URL="https://wandb.example.org")[0] == "fail"
    status, finding = wandb(tmp_path, "machine\ntopsecret topsecret topsecret")
    assert status == "fail" and "is not in netrc's format" in finding
