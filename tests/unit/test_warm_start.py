"""Supervised learning on a very small model.

It imitates a script, it resumes bit by bit, and players stay apart.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from doctor_machines import ROOT
from fake_engine import CHAT, LAPTOP, TOKENIZER
from hanabi_grpo.cli import app
from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import NonFiniteError, RunFolderError, SettingsError
from hanabi_grpo.rollout.handshake import tokenizer_hash
from hanabi_grpo.runs import checkpoints
from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.runs.manifest import check_checkpoint, read_manifest, write_manifest
from hanabi_grpo.runs.run_folder import LOCK, open_locked
from hanabi_grpo.runs.saved_adapters import read_adapters
from hanabi_grpo.settings import Settings, load
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.learning import (
    Lesson,
    Student,
    held_out_figures,
    learn,
    load_base,
    make_students,
)
from hanabi_grpo.sft.run import StoppedError, WarmStart, Watcher
from hanabi_grpo.sft.samples import Sample, split_held_out
from hanabi_grpo.sft.sources import Sources
from hanabi_grpo.training.model.start_from import read_start
from hanabi_grpo.types import player_names
from small_models import untaught_model

SETUP = Setup(HANABI, LAPTOP)
Rows = list[tuple[str, Mapping[str, Any]]]
LESSON = Lesson(steps=4, micro_batch=64, learning_rate=3e-3, max_grad_norm=1.0)
NUM_GAMES = 60


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows nothing."""
    return untaught_model(tmp_path_factory.mktemp("base") / "model", TOKENIZER)


def make_settings(base: Path, **changes: Any) -> Settings:
    return Settings(model=str(base), lora_rank=16, lora_alpha=32, seed=7, **changes)


def make_sources(num_tasks: int = NUM_GAMES) -> Sources:
    return Sources(lineups=("hint-bot",), num_tasks=num_tasks, noise=0.2)


def make_start(base: Path, out: Path, **changes: Any) -> WarmStart:
    """Return a warm start of four steps on games of the hint bot.

    Args:
        base: The base model.
        out: Folder of the result.
        changes: Options that differ.
    """
    options: dict[str, Any] = {
        "settings": make_settings(base),
        "sources": make_sources(),
        "steps": 4,
        "batch": 8,
        "learning_rate": 3e-3,
        "shared": False,
        "full": False,
        "every_start": False,
        "resume": False,
    }
    options.update(changes)
    return WarmStart(setup=SETUP, out=out, **options)


def run(
    start: WarmStart,
    should_stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda text: None,
) -> Rows:
    watcher = Watcher(say=say, show=lambda *progress: None, should_stop=should_stop)
    return start.run(watcher)


def stop_after(calls: int) -> Callable[[], bool]:
    """Return a function that is False so many times, then True."""
    remaining = iter(range(calls))
    return lambda: next(remaining, None) is None


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    """A finished start of two adapters; tests that change it take a copy."""
    out = tmp_path_factory.mktemp("trained") / "out"
    return out, run(make_start(base, out))


@pytest.fixture
def copied(trained: tuple[Path, Rows], tmp_path: Path) -> Path:
    """A copy of the finished start."""
    return Path(shutil.copytree(trained[0], tmp_path / "copy"))


def weights(folder: Path) -> dict[str, bytes]:
    """Return every safetensors file below a folder."""
    files = {}
    for path in sorted(folder.rglob("*.safetensors")):
        files[str(path.relative_to(folder))] = path.read_bytes()
    return files


def clone(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in parameters.items()}


def all_equal(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


def make_model_and_students(
    base: Path,
    names: Sequence[str],
    choose: Callable[[Sample], bool] = lambda sample: True,
) -> tuple[Any, list[Student]]:
    """Return a base model and its students, on games of the hint bot.

    Args:
        base: The base model.
        names: The students.
        choose: Which samples are learned from.
    """
    start = make_start(base, Path("unused"))
    encoder = Encoder(setup=SETUP, chat=CHAT, max_model_len=1024, max_completion_length=4)
    samples = []
    for of_game in start.sources.samples(encoder, seed=7, say=print):
        samples += of_game
    taught, held_out = split_held_out(samples)
    taught = [sample for sample in taught if choose(sample)]
    model = load_base(start.settings, base, full="model" in names)
    _, students = make_students(model, names, start.settings, taught, held_out, 3e-3, batch_size=8)
    return model, students


def run_steps(model: Any, students: list[Student], lesson: Lesson = LESSON) -> None:
    """Make all steps of a lesson."""
    for _ in learn(model, students, lesson, lambda student, loss: None, lambda: False):
        pass
    assert {student.step for student in students} == {lesson.steps}


def test_adapters_on_a_model_that_knows_nothing_learn_to_play_like_the_bot(
    base: Path, tmp_path: Path
) -> None:
    start = make_start(
        base,
        tmp_path / "out",
        sources=make_sources(num_tasks=150),
        steps=40,
        batch=16,
        learning_rate=1e-2,
    )
    rows = {(label, row["name"]): row for label, row in run(start)}
    for name in ("player_0", "player_1"):
        before = rows["before", name]
        best = rows["best", name]
        assert before["accuracy"] < 0.05
        assert best["accuracy"] > 0.3
        assert best["loss"] < before["loss"] / 3


def test_the_whole_model_learns_and_its_folder_is_a_model(base: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = run(make_start(base, tmp_path, full=True, steps=30, batch=32))
    (_, before), (_, best), _ = rows
    assert before["accuracy"] < 0.05
    assert best["accuracy"] > 0.3
    folder = tmp_path / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    assert model.generation_config.eos_token_id == 2
    assert tokenizer_hash(AutoTokenizer.from_pretrained(folder)) == tokenizer_hash(TOKENIZER)
    assert model_fingerprint(folder) != model_fingerprint(base)
    # Tied weights are written once.
    size = (folder / "model.safetensors").stat().st_size
    assert size <= (base / "model.safetensors").stat().st_size + 4096
    names = sorted(path.name for path in tmp_path.glob("[!.]*"))
    assert names == ["games", "last", "model", "warm_start.json"]


def test_the_manifest_of_the_checkpoint_says_what_it_was_learned_from(
    base: Path, trained: tuple[Path, Rows]
) -> None:
    folder = trained[0] / "checkpoint-0"
    facts = check_checkpoint(folder).facts
    assert facts["adapters"] == ["player_0", "player_1"]
    assert facts["model_fingerprint"] == model_fingerprint(base)
    assert facts["tokenizer_hash"] == tokenizer_hash(TOKENIZER)
    assert facts["dtype"] == "float32"
    assert facts["spec_hashes"] == [SETUP.spec.hash]
    assert facts["games"] == ["hint-bot: 60 tasks, 0.2 of the actions random"]
    saved = read_adapters(folder)
    assert saved.step == 0
    assert saved.lora_rank == 16
    assert list(saved.adapters) == ["player_0", "player_1"]


def test_plain_peft_gives_the_figures_that_the_manifest_names(
    base: Path, trained: tuple[Path, Rows]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = trained[0] / "checkpoint-0"
    best = check_checkpoint(folder).facts["warm_start"]["best"]
    _, students = make_model_and_students(base, player_names(2))
    for number, student in enumerate(students):
        plain_base = AutoModelForCausalLM.from_pretrained(base)
        plain = PeftModel.from_pretrained(plain_base, folder / student.name)
        loaded = replace(student, select=lambda: None)
        figures = held_out_figures(plain.get_base_model(), loaded, LESSON)
        assert figures["loss"] == pytest.approx(best[number]["loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("full", "moments"), [(False, (10, 63, 66)), (True, (62,))], ids=["adapters", "model"]
)
def test_a_stopped_and_resumed_start_ends_bit_by_bit_where_an_undisturbed_one_does(
    base: Path, tmp_path: Path, full: bool, moments: tuple[int, ...]
) -> None:
    whole = tmp_path / "whole"
    run(make_start(base, whole, full=full))
    for calls in moments:
        parts = tmp_path / f"parts-{calls}"
        # It asks once for each game, then in every update.
        message = "training has not started" if calls < NUM_GAMES else "of 4, saved in"
        with pytest.raises(StoppedError, match=message):
            run(make_start(base, parts, full=full), stop_after(calls))
        run(make_start(base, parts, full=full, resume=True))
        assert weights(parts) == weights(whole)
        figures_of_parts = json.loads((parts / "warm_start.json").read_text())
        figures_of_whole = json.loads((whole / "warm_start.json").read_text())
        assert figures_of_parts == figures_of_whole


def test_a_recipe_tells_an_interrupted_start_from_a_finished_one(
    base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    start = make_start(base, out, full=True)
    environ = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}

    def is_taught() -> bool:
        command = ["bash", "-c", 'source tools/recipe.sh && is_taught "$1"', "bash", str(out)]
        answer = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
        assert answer.stderr == ""
        return answer.returncode == 0

    assert not is_taught()
    with pytest.raises(StoppedError, match="of 4, saved in"):
        run(start, (out / "model").is_dir)
    assert not is_taught(), "its model is only the best one so far"
    run(replace(start, resume=True))
    assert is_taught()


def test_a_finished_start_is_not_learned_again(
    base: Path, trained: tuple[Path, Rows], copied: Path
) -> None:
    before = weights(copied)
    with pytest.raises(RunFolderError, match="is not empty"):
        run(make_start(base, copied))
    assert run(make_start(base, copied, resume=True)) == trained[1]
    assert weights(copied) == before


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("steps", {"steps": 5}),
        ("learning_rate", {"learning_rate": 1e-4}),
        ("batch", {"batch": 9}),
        ("tasks", {"sources": make_sources(num_tasks=50)}),
    ],
)
def test_a_resume_needs_the_same_work(
    base: Path, copied: Path, name: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError, match=f"a different warm start: {name} was"):
        run(make_start(base, copied, resume=True, **changes))


def test_a_state_of_version_0_2_is_refused_with_the_way_out(base: Path, copied: Path) -> None:
    checkpoint = copied / "last" / "checkpoint-0"
    index = checkpoint / "warm_start" / "state.json"
    state = json.loads(index.read_text())
    assert state.pop("format") == 3
    index.write_text(json.dumps(state))
    manifest = read_manifest(checkpoint)
    write_manifest(checkpoint, step=0, facts=manifest.facts)
    with pytest.raises(
        SettingsError, match=r"format 1; this version resumes format 3 only\. Continue with the "
    ):
        run(make_start(base, copied, resume=True))


def learn_and_keep_base(
    base: Path, choose: Callable[[Sample], bool]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Train both players, check that the base model stays, and return both players' weights."""
    model, students = make_model_and_students(base, player_names(2), choose)
    frozen = {}
    for name, value in model.named_parameters():
        if "lora_" not in name:
            frozen[name] = value.detach().clone()
    run_steps(model, students)
    assert all_equal(frozen, dict(model.named_parameters()))
    first, second = students
    return clone(first.parameters), clone(second.parameters)


def test_one_players_games_change_no_other_players_adapter_and_nobodys_the_base_model(
    base: Path,
) -> None:
    first_0, first_1 = learn_and_keep_base(base, lambda sample: True)
    # Player 1 learns from half of its games.
    second_0, second_1 = learn_and_keep_base(
        base, lambda sample: sample.player == 0 or bool(sample.start % 2)
    )
    assert all_equal(first_0, second_0)
    assert not all_equal(first_1, second_1)


def test_how_a_batch_is_cut_changes_no_update(base: Path) -> None:
    states = []
    for micro_batch in (8, 3):
        model, students = make_model_and_students(base, ("shared",))
        run_steps(model, students, replace(LESSON, micro_batch=micro_batch, steps=1))
        states.append(students[0].optimizer.state_dict()["state"])
    in_one_piece, in_pieces = states
    for number, state in in_one_piece.items():
        other = in_pieces[number]
        assert torch.allclose(state["exp_avg"], other["exp_avg"], rtol=1e-3, atol=1e-7)


def test_a_loss_that_is_no_number_stops_before_anything_changes(base: Path) -> None:
    model, [student] = make_model_and_students(base, ("shared",))
    poisoned = next(name for name in student.parameters if "lora_B" in name)
    with torch.no_grad():
        student.parameters[poisoned].fill_(float("nan"))
    before = clone(student.parameters)
    with pytest.raises(NonFiniteError, match="shared, update 1: loss"):
        run_steps(model, [student])
    assert student.step == 0
    del before[poisoned]
    assert all_equal(before, student.parameters)


def test_every_start_is_learned_where_none_is_held_out(base: Path, tmp_path: Path) -> None:
    counts = []
    for every_start in (False, True):
        lines: list[str] = []
        out = tmp_path / str(every_start)
        run(make_start(base, out, every_start=every_start, steps=1), say=lines.append)
        [line] = [line for line in lines if "conversations to learn from" in line]
        # "100 conversations to learn from, 12 held out (…)"
        words = line.split()
        counts.append((int(words[0]), int(words[5])))
    (taught, held_out), (all_taught, measured) = counts
    assert held_out > 0
    assert measured == held_out
    assert all_taught == taught + held_out


def test_the_best_parameters_are_those_of_the_lowest_held_out_loss(base: Path) -> None:
    model, [student] = make_model_and_students(base, ("shared",))
    run_steps(model, [student])
    assert student.best is not None
    best = clone(student.best)
    with torch.no_grad():
        for value in student.parameters.values():
            value.add_(1.0)
    student.remember(held_out_figures(model, student, LESSON)["loss"])
    student.remember(float("nan"))
    assert all_equal(best, student.best)
    assert student.best_step == 4


def test_the_learning_rate_warms_up_and_falls_to_almost_nothing() -> None:
    lesson = replace(LESSON, steps=100, learning_rate=1.0)
    rates = [lesson.rate(step) for step in range(1, 101)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0 < rates[-1] < 1e-3
    assert replace(lesson, steps=1).rate(1) == 1.0


def test_what_to_type_next_names_the_seats_where_only_some_have_learned(
    base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "a clone"
    sources = replace(make_sources(), seats=(1,))
    start = make_start(base, out, sources=sources, steps=1)
    run(start)
    checkpoint = out / "checkpoint-0"
    _, evaluate, train = start.next_steps()
    assert evaluate == f"  hanabi-grpo evaluate 'base,{checkpoint}:player_1' --own-server"
    [setting, *_] = shlex.split(train)
    assert setting == f"HANABI_START_FROM=player_1={checkpoint}"

    # Both are accepted, and neither asks for an adapter that was not trained.
    lineup = parse_lineup(shlex.split(evaluate)[2], 2)
    assert lineup.specs == ("base", f"{checkpoint}:player_1")
    [started] = read_start(Settings(start_from=[setting.partition("=")[2]]))
    assert (started.name, started.adapter) == ("player_1", "player_1")

    everybody = replace(start, sources=make_sources())
    shared = replace(start, shared=True)
    for complete in (everybody, shared):
        _, evaluate, train = complete.next_steps()
        assert evaluate == f"  hanabi-grpo evaluate '{checkpoint}' --own-server"
        assert shlex.split(train)[0] == f"HANABI_START_FROM={checkpoint}"


def test_options_choose_the_default_model_and_the_game_of_the_next_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[WarmStart] = []

    def run(self: WarmStart, watcher: Watcher) -> Rows:
        started.append(self)
        return []

    monkeypatch.setattr(WarmStart, "run", run)
    monkeypatch.setattr(load, "installed_device", lambda: ("cpu", "a test says so"))
    monkeypatch.chdir(ROOT)

    def next_commands(*options: str, **environ: str) -> list[str]:
        command = ["warm-start", "random", "--out", "out", *options]
        answer = CliRunner().invoke(app, command, env={"MODEL": "", **environ})
        assert answer.exit_code == 0, answer.output
        return answer.stdout.splitlines()[-2:]

    evaluate = "hanabi-grpo evaluate out/checkpoint-0 --own-server"
    train = "HANABI_START_FROM=out/checkpoint-0 bash tools/train/train_grpo_msswift.sh"
    game = "HANABI_PRESET=mini HANABI_PLAYERS=3"
    assert next_commands("--preset", "mini", "--players", "3", HANABI_PRESET="laptop") == [
        f"  {game} {evaluate}",
        f"  {game} {train}",
    ]
    assert started[-1].settings.model == "outputs/tiny-mini-3-players"
    # Tools need longer replies.
    calculator = "HANABI_ENV=vote HANABI_PRESET=vote-calculator"
    options = ("--env", "vote", "--preset", "vote-calculator", "--full")
    assert next_commands(*options, HANABI_DEDUCTIONS="counted", SEED="3", RESUME="latest") == [
        f"  SEED=3 {calculator} MODEL=out/model hanabi-grpo evaluate base --own-server",
        f"  SEED=3 {calculator} MODEL=out/model bash tools/train/train_grpo_msswift.sh",
    ]
    assert started[-1].settings.model == "outputs/tiny-vote-vote-calculator-3-players"
    assert started[-1].settings.max_completion_length == 16
    # Without options, the settings choose; a model that was named stays.
    assert next_commands(HANABI_PRESET="mini", MODEL="models/mine") == [
        f"  HANABI_PRESET=mini MODEL=models/mine {evaluate}",
        f"  HANABI_PRESET=mini MODEL=models/mine {train}",
    ]
    assert next_commands("--preset", "mini", MODEL="models/mine")[0] == (
        f"  MODEL=models/mine HANABI_PRESET=mini {evaluate}"
    )
    assert started[-1].settings.model == "models/mine"


def test_a_dataset_is_no_part_of_the_next_commands_where_options_chose_the_game(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WarmStart, "run", lambda self, watcher: [])
    monkeypatch.chdir(ROOT)
    command = ["warm-start", "random", "--out", "out", "--preset", "mini"]
    environ = {"MODEL": "models/mine", "DATASET": "data/hanabi.laptop.jsonl"}
    *_, train, hint = CliRunner().invoke(app, command, env=environ).stdout.splitlines()
    assert "DATASET" not in train
    assert hint == (
        "DATASET=data/hanabi.laptop.jsonl selects other games; unset it for these commands."
    )


def test_a_missing_model_names_the_command_that_makes_that_of_the_game(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start = make_start(Path("outputs/tiny-mini"), tmp_path / "out")
    made = "tiny-model --preset laptop --players 2 --out outputs/tiny-mini"
    with pytest.raises(SettingsError, match=f"no such folder in .* {made}$"):
        run(start)


def test_a_player_without_anything_to_learn_is_refused(base: Path) -> None:
    with pytest.raises(SettingsError, match="player_1 has 0 conversations"):
        make_model_and_students(base, player_names(2), lambda sample: sample.player == 0)


def test_float16_is_refused(base: Path) -> None:
    with pytest.raises(SettingsError, match="float16"):
        load_base(make_settings(base, dtype="float16"), base, full=False)


def test_a_warm_start_on_the_cpu_says_so_where_the_packages_are_those_for_gpus(
    base: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device, is_said in (("cpu", False), ("gpu", True)):
        settings = make_settings(base).model_copy(
            update={"device": device, "device_reason": "engine vllm 0.32.0 is installed"}
        )
        model = load_base(settings, base, full=False)
        assert model.device.type == "cpu"
        line = (
            "warm-start runs on the CPU: engine vllm 0.32.0 is installed, but torch cannot use a "
        )
        assert (line in caplog.text) == is_said


def test_a_model_with_dropout_ends_at_the_same_weights_each_time(
    base: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "base"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    first, second = tmp_path / "first", tmp_path / "second"
    for out in (first, second):
        run(make_start(folder, out, steps=1))
    assert weights(first) == weights(second)


def test_a_shared_adapter_learns_on_a_bfloat16_base(base: Path, tmp_path: Path) -> None:
    settings = make_settings(base, dtype="bfloat16")
    run(make_start(base, tmp_path, settings=settings, shared=True))
    saved = read_adapters(tmp_path / "checkpoint-0")
    assert saved.facts["dtype"] == "bfloat16"
    assert list(saved.adapters) == ["shared"]


def test_a_whole_model_is_saved_in_bfloat16(base: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    settings = make_settings(base, dtype="bfloat16")
    run(make_start(base, tmp_path, settings=settings, full=True))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.dtype == torch.bfloat16
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Name scripts that play"),
        (["hint-bot", "--steps", "0"], "--steps"),
        (["hint-but"], "hint-bot"),
        (["--games", "nowhere"], "no such file or folder"),
    ],
)
def test_a_wrong_command_ends_with_one_line_and_leaves_no_folder(
    base: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    out = tmp_path / "out"
    command = ["warm-start", *options, "--out", str(out), "--preset", "laptop"]
    answer = CliRunner().invoke(app, command, env={"MODEL": str(base)})
    assert answer.exit_code == 2
    assert message in answer.output
    assert "Traceback" not in answer.output
    assert not out.exists()


def test_a_folder_that_cannot_be_used_is_named_by_its_option(base: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out, problem in (
        ("file", "is a file; choose a folder that does not exist yet."),
        (
            "file/out",
            "cannot be used (Not a directory); choose a folder that can be created.",
        ),
    ):
        with pytest.raises(RunFolderError) as caught:
            run(make_start(base, tmp_path / out))
        assert str(caught.value) == f"--out {tmp_path / out}: {problem}"
    used = tmp_path / "used"
    used.mkdir()
    with open_locked(used / LOCK) as lock:
        lock.write(b"pid 1 on gpu7\n")
        with pytest.raises(RunFolderError) as caught:
            run(make_start(base, used))
    assert str(caught.value) == (
        f"{used}: another process is using it (pid 1 on gpu7). Stop it, or choose another --out."
    )


def test_a_full_disk_ends_with_the_option_that_continues_the_warm_start(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(RunFolderError) as caught:
        run(make_start(base, tmp_path / "out"))
    assert str(caught.value).endswith(
        "0 MiB are left. Free space there, then run the same command with --resume."
    )


@pytest.mark.rest
def test_ctrl_c_keeps_the_newest_state_and_the_same_command_continues(
    base: Path, tmp_path: Path, start_process: Callable[..., subprocess.Popen[str]]
) -> None:
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "hanabi_grpo.cli",
        "warm-start",
        "hint-bot",
        "--out",
        str(out),
        "--preset",
        "laptop",
        "--tasks",
        "40",
        "--steps",
        "200",
        "--batch",
        "4",
    ]
    environ = {**os.environ, "MODEL": str(base), "SEED": "3"}
    process = start_process(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not (out / "last" / "checkpoint-0" / "manifest.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 130
    assert "to continue, run the same command with --resume" in " ".join(output.split())
    resumed = subprocess.run([*command, "--resume"], env=environ, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    steps = check_checkpoint(out / "checkpoint-0").facts["warm_start"]["steps"]
    assert steps == {"player_0": 200, "player_1": 200}
