"""Supervised learning on a really tiny model: it imitates, it resumes bit by bit, and players stay
apart.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fake_engine import CHAT, LAPTOP, TOKENIZER
from hanabi_grpo.cli import app
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import NonFiniteError, RunFolderError, SettingsError
from hanabi_grpo.rollout.handshake import tokenizer_hash
from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.runs.manifest import check_checkpoint
from hanabi_grpo.runs.saved_adapters import read_adapters
from hanabi_grpo.settings import Settings
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.learning import Lesson, held_out_figures, learn, load_base, make_students
from hanabi_grpo.sft.run import StoppedError, WarmStart, Watcher
from hanabi_grpo.sft.samples import split_held_out
from hanabi_grpo.sft.sources import Sources
from hanabi_grpo.types import player_names
from small_models import small_model

SETUP = Setup(HANABI, LAPTOP)
Rows = list[tuple[str, Mapping[str, Any]]]
LESSON = Lesson(steps=4, micro_batch=64, learning_rate=3e-3, max_grad_norm=1.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows nothing."""
    folder = tmp_path_factory.mktemp("base") / "model"
    torch.manual_seed(0)
    shape = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    words = {
        "vocab_size": len(TOKENIZER),
        "eos_token_id": TOKENIZER.eos_token_id,
        "tie_word_embeddings": True,
    }
    model = small_model(head_dim=32, initializer_range=0.1, **shape, **words)
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def settings(base: Path, **other: Any) -> Settings:
    return Settings(model=str(base), lora_rank=16, lora_alpha=32, seed=7, **other)


def work(base: Path, out: Path, **other: Any) -> WarmStart:
    sources = Sources(lineups=("hint-bot",), num_tasks=60, noise=0.2)
    given: dict[str, Any] = {"sources": sources, "steps": 4, "batch": 8, "learning_rate": 3e-3}
    given |= {
        "shared": False,
        "full": False,
        "every_start": False,
        "resume": False,
        "settings": settings(base),
    }
    return WarmStart(setup=SETUP, out=out, **{**given, **other})


def do(what: WarmStart, should_stop: Callable[[], bool] = lambda: False) -> Rows:
    return what.run(
        Watcher(
            say=lambda text: None,
            show=lambda name, done, total, text: None,
            should_stop=should_stop,
        )
    )


def after(calls: int) -> Callable[[], bool]:
    """True from this call on."""
    left = iter(range(calls))
    return lambda: next(left, None) is None


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    """A finished start of two adapters, for tests that look at it; those that change it take a
    copy.
    """
    out = tmp_path_factory.mktemp("trained") / "out"
    return out, do(work(base, out))


@pytest.fixture
def copied(trained: tuple[Path, Rows], tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained[0], tmp_path / "copy"))


def weights(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*.safetensors"))
    }


def start(base: Path, names: Sequence[str], **changes: Any) -> tuple[Any, list[Any]]:
    """A base model and its students, on games of the hint bot."""
    what = work(base, Path("unused"))
    encoder = Encoder(setup=SETUP, chat=CHAT, max_model_len=1024, max_completion_length=4)
    games = what.sources.samples(encoder, seed=7, say=print)
    taught, held_out = split_held_out([one for own in games for one in own])
    if "player_1" in changes:
        taught = changes["player_1"](taught)
    model = load_base(what.settings, base, full="model" in names)
    _, students = make_students(model, names, what.settings, taught, held_out, 3e-3, batch_size=8)
    return model, students


def run_steps(model: Any, students: list[Any], lesson: Lesson = LESSON) -> None:
    for _ in learn(model, students, lesson, lambda student, loss: None, lambda: False):
        pass
    assert {student.step for student in students} == {lesson.steps}


def test_adapters_on_a_model_that_knows_nothing_learn_to_play_like_the_bot(
    base: Path, tmp_path: Path
) -> None:
    sources = Sources(lineups=("hint-bot",), num_tasks=150, noise=0.2)
    done = do(work(base, tmp_path / "out", sources=sources, steps=40, batch=16, learning_rate=1e-2))
    rows = {(label, row["name"]): row for label, row in done}
    for name in ("player_0", "player_1"):
        before, best = rows["before", name], rows["best", name]
        assert before["accuracy"] < 0.05
        assert best["accuracy"] > 0.3
        assert best["loss"] < before["loss"] / 3


def test_the_whole_model_learns_and_its_folder_is_a_model(base: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (_, before), (_, best), _ = do(
        work(base, tmp_path, full=True, steps=30, batch=32, learning_rate=3e-3)
    )
    assert (before["accuracy"] < 0.05, best["accuracy"] > 0.3) == (True, True)
    folder = tmp_path / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    assert tokenizer_hash(AutoTokenizer.from_pretrained(folder)) == tokenizer_hash(TOKENIZER)
    assert model_fingerprint(folder) != model_fingerprint(base)
    assert (folder / "model.safetensors").stat().st_size <= (
        base / "model.safetensors"
    ).stat().st_size + 4096
    assert model.generation_config.eos_token_id == 2
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == [
        "last",
        "model",
        "warm_start.json",
    ]


def test_the_checkpoint_is_read_by_everybody_who_reads_checkpoints(
    base: Path, trained: tuple[Path, Rows]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = trained[0] / "checkpoint-0"
    manifest = check_checkpoint(folder)
    saved = read_adapters(folder)
    assert (saved.step, saved.lora_rank, list(saved.adapters)) == (0, 16, ["player_0", "player_1"])
    expected = {
        "adapters": ["player_0", "player_1"],
        "model_fingerprint": model_fingerprint(base),
        "tokenizer_hash": tokenizer_hash(TOKENIZER),
        "dtype": "float32",
        "spec_hashes": [SETUP.spec.hash],
        "games": ["hint-bot: 60 tasks, 0.2 of the actions random"],
    }
    assert expected.items() <= manifest.facts.items()
    # Plain PEFT gives the figures that the manifest names.
    _, students = start(base, player_names(2))
    for number, student in enumerate(students):
        plain = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base), folder / student.name
        )
        loss = held_out_figures(
            plain.get_base_model(), replace(student, select=lambda: None), LESSON
        )["loss"]
        assert loss == pytest.approx(manifest.facts["warm_start"]["best"][number]["loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("full", "moments"), [(False, (10, 63, 66)), (True, (62,))], ids=["adapters", "model"]
)
def test_a_stopped_and_resumed_start_ends_bit_by_bit_where_an_undisturbed_one_does(
    base: Path, tmp_path: Path, full: bool, moments: tuple[int, ...]
) -> None:
    whole = tmp_path / "whole"
    do(work(base, whole, full=full))
    for calls in moments:
        parts = tmp_path / f"parts-{calls}"
        # While the 60 games are read, or after.
        with pytest.raises(
            StoppedError, match="nothing was learned" if calls < 60 else "of 4, kept in"
        ):
            do(work(base, parts, full=full), after(calls))
        do(work(base, parts, full=full, resume=True))
        assert weights(parts) == weights(whole)
        figures = [
            json.loads((folder / "warm_start.json").read_text()) for folder in (parts, whole)
        ]
        assert figures[0] == figures[1]


def test_a_finished_start_is_not_learned_again(
    base: Path, trained: tuple[Path, Rows], copied: Path
) -> None:
    before = weights(copied)
    with pytest.raises(RunFolderError, match="holds something already"):
        do(work(base, copied))
    assert do(work(base, copied, resume=True)) == trained[1]
    assert weights(copied) == before


def test_a_resume_needs_the_same_work(base: Path, copied: Path) -> None:
    fewer = Sources(lineups=("hint-bot",), num_tasks=50, noise=0.2)
    changes = {"steps": 5, "learning_rate": 1e-4, "batch": 9, "data": fewer}
    for name, value in changes.items():
        with pytest.raises(SettingsError, match=f"another warm start: {name} was"):
            do(work(base, copied, resume=True, **{"sources" if name == "data" else name: value}))


def test_one_players_games_move_no_other_players_adapter_and_nobodys_the_base_model(
    base: Path,
) -> None:
    ends = []
    for keep in (True, False):
        model, students = start(
            base,
            player_names(2),
            player_1=lambda taught, keep=keep: [
                one for one in taught if keep or one.player == 0 or one.start % 2
            ],
        )
        frozen = {
            name: value.detach().clone()
            for name, value in model.named_parameters()
            if "lora_" not in name
        }
        run_steps(model, students)
        assert all(
            torch.equal(value, dict(model.named_parameters())[name])
            for name, value in frozen.items()
        )
        ends.append(
            [
                {name: value.detach().clone() for name, value in one.parameters.items()}
                for one in students
            ]
        )
    (first_0, first_1), (second_0, second_1) = ends
    assert all(torch.equal(first_0[name], second_0[name]) for name in first_0)
    assert not all(torch.equal(first_1[name], second_1[name]) for name in first_1)


def test_how_a_batch_is_cut_changes_no_update(base: Path) -> None:
    ends = []
    for micro_batch in (8, 3):
        model, students = start(base, ("shared",))
        run_steps(model, students, replace(LESSON, micro_batch=micro_batch, steps=1))
        ends.append(students[0].optimizer.state_dict()["state"])
    for number, state in ends[0].items():
        assert torch.allclose(state["exp_avg"], ends[1][number]["exp_avg"], rtol=1e-3, atol=1e-7)


def test_a_loss_that_is_no_number_stops_before_anything_moves(base: Path) -> None:
    model, [student] = start(base, ("shared",))
    name, poisoned = next((n, p) for n, p in student.parameters.items() if "lora_B" in n)
    with torch.no_grad():
        poisoned.fill_(float("nan"))
    before = {key: held.detach().clone() for key, held in student.parameters.items()}
    with pytest.raises(NonFiniteError, match="shared, update 1: loss"):
        run_steps(model, [student])
    assert student.step == 0
    assert all(
        torch.equal(before[key], held) for key, held in student.parameters.items() if key != name
    )


def test_every_start_is_learned_where_none_is_held_out(base: Path, tmp_path: Path) -> None:
    lines = list[str]()
    for every in (False, True):
        watcher = Watcher(say=lines.append, show=lambda *_: None, should_stop=lambda: False)
        work(base, tmp_path / str(every), every_start=every, steps=1).run(watcher)
    held, every = (line.split() for line in lines if "conversations to learn from" in line)
    assert int(every[0]) == int(held[0]) + int(held[5]) and int(every[5]) == int(held[5]) > 0


def test_the_best_parameters_are_those_of_the_lowest_held_out_loss(base: Path) -> None:
    model, [student] = start(base, ("shared",))
    run_steps(model, [student])
    best = {name: value.clone() for name, value in student.best.items()}
    with torch.no_grad():
        for value in student.parameters.values():
            value.add_(1.0)
    for loss in (held_out_figures(model, student, LESSON)["loss"], float("nan")):
        student.remember(loss)
    assert all(torch.equal(best[name], value) for name, value in student.best.items())
    assert student.best_step == 4


def test_the_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    lesson = replace(LESSON, steps=100, learning_rate=1.0)
    rates = [lesson.rate(step) for step in range(1, 101)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)
    assert replace(lesson, steps=1).rate(1) == 1.0


def test_a_player_without_anything_to_learn_and_float16_are_refused(base: Path) -> None:
    with pytest.raises(SettingsError, match="player_1 has 0 conversations"):
        start(
            base,
            ("player_0", "player_1"),
            player_1=lambda taught: [one for one in taught if one.player == 0],
        )
    with pytest.raises(SettingsError, match="float16"):
        load_base(settings(base, dtype="float16"), base, full=False)


def test_a_shared_adapter_learns_on_a_bfloat16_base_and_a_whole_model_is_saved_in_it(
    base: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    half = settings(base, dtype="bfloat16")
    do(work(base, tmp_path / "a", settings=half, shared=True))
    saved = read_adapters(tmp_path / "a" / "checkpoint-0")
    assert (saved.facts["dtype"], list(saved.adapters)) == ("bfloat16", ["shared"])
    do(work(base, tmp_path / "f", settings=half, full=True))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "f" / "model")
    assert {model.config.dtype, *(value.dtype for value in model.parameters())} == {torch.bfloat16}


def test_a_wrong_command_ends_with_one_line_and_leaves_no_folder(
    base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for options, text in (
        ([], "Name scripts that play"),
        (["hint-bot", "--steps", "0"], "--steps"),
        (["hint-but"], "hint-bot"),
        (["--games", "nowhere"], "no such file or folder"),
    ):
        command = ["warm-start", *options, "--out", str(out), "--preset", "laptop"]
        answer = CliRunner().invoke(app, command, env={"MODEL": str(base)})
        assert (answer.exit_code, text in answer.output, "Traceback" in answer.output) == (
            2,
            True,
            False,
        )
        assert not out.exists()


@pytest.mark.rest
def test_ctrl_c_keeps_the_newest_state_and_the_same_command_goes_on(
    base: Path, tmp_path: Path, start_process: Callable[..., subprocess.Popen[str]]
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "hanabi_grpo.cli", "warm-start", "hint-bot", "--out", str(out)]
    command += ["--preset", "laptop", "--tasks", "40", "--steps", "200", "--batch", "4"]
    environ = {**os.environ, "MODEL": str(base), "SEED": "3"}
    process = start_process(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not (out / "last" / "checkpoint-0" / "manifest.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate()
    assert process.returncode == 130
    assert "with --resume goes on" in " ".join(told.split())
    again = subprocess.run([*command, "--resume"], env=environ, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert check_checkpoint(out / "checkpoint-0").facts["warm_start"]["steps"] == {
        "player_0": 200,
        "player_1": 200,
    }
