"""Problems in parquet and in folders with their own split, and answers compared by their value."""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.access import GameAccess
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.referee import Referee, play_scripts
from hanabi_grpo.envs.workflows.math_answers import means_the_same
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import load_settings
from server_app import running_app

Pair = tuple[str, str]
TRAIN = [(f"What is {n} + 1?", f"{n} + 1 is\n#### {n + 1}") for n in range(300)]
TEST = [(f"What is {n} - 1?", f"#### {n - 1:,}") for n in range(1000, 1040)]


def write(path: Path, pairs: Sequence[Pair]) -> None:
    """Write problems as JSON lines or as parquet, by the file's ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"question": question, "answer": answer} for question, answer in pairs]
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def folder(path: Path, kind: str = "jsonl", **files: Sequence[Pair]) -> Path:
    for split, pairs in {"train": TRAIN, "test": TEST, **files}.items():
        write(path / f"{split}.{kind}", pairs)
    return path


def vote(problems: Path | str, **fields: Any) -> Setup[Any]:
    config = {"preset": "vote", "style": "full", "players": 1, "problems": str(problems), **fields}
    return registry.setup("vote", config)


def questions(setup: Setup[Any], split: str, seeds: int = 600) -> set[str]:
    environment, config = setup.environment, setup.config
    return {environment.start_id(config, split=split, seed=seed) for seed in range(seeds)}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_folder_keeps_its_split_and_no_question_is_in_two_of_them(
    tmp_path: Path, kind: str
) -> None:
    setup = vote(folder(tmp_path / "sums", kind))
    by_split = {}
    for split in ("train", "eval", "eval-validation", "test"):
        by_split[split] = questions(setup, split)
    # All of the test file, and one task for each of its questions.
    assert by_split["test"] == {question for question, _ in TEST}
    assert questions(setup, "test", len(TEST)) == by_split["test"]
    # Of the training file one tenth each is for evaluations and for validation.
    rest = [by_split[split] for split in ("train", "eval", "eval-validation")]
    assert set.union(*rest) == {question for question, _ in TRAIN}
    assert sum(map(len, rest)) == len(TRAIN)
    assert 15 < len(by_split["eval"]) < 50
    assert 15 < len(by_split["eval-validation"]) < 50
    # The solution is what follows ####.
    solver = setup.environment.policies["solver"]()
    for split in by_split:
        game = play_scripts(setup.task(split, 7), {0: solver})
        assert game.result["final"] == 1.0
        assert "####" not in game.turns[0].reply


def test_a_validation_file_is_what_is_validated_on(tmp_path: Path) -> None:
    own = [(f"What is {n} * 2?", f"#### {n * 2}") for n in range(20)]
    setup = vote(folder(tmp_path, validation=own))
    assert questions(setup, "eval-validation") == {question for question, _ in own}
    held_out = questions(setup, "eval")
    assert questions(setup, "train") == {question for question, _ in TRAIN} - held_out


def test_what_is_in_two_files_is_learned_from_in_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leaked = [(f"  {question} ", answer) for question, answer in TEST[:7]]
    setup = vote(folder(tmp_path, train=[*TRAIN, *leaked]))
    assert "7 questions of its train or validation files are also in a later split" in caplog.text
    learned = questions(setup, "train") | questions(setup, "eval")
    assert not learned & {question for question, _ in TEST}


def test_parts_and_a_single_parquet_file_are_read_as_the_hub_has_them(tmp_path: Path) -> None:
    whole = folder(tmp_path / "whole", "parquet")
    parts = tmp_path / "parts"
    write(parts / "train-00000-of-00002.parquet", TRAIN[:100])
    write(parts / "train-00001-of-00002.parquet", TRAIN[100:])
    write(parts / "test-00000-of-00001.parquet", TEST)
    (parts / "README.md").write_text("a card")
    for split in ("train", "eval", "test"):
        assert questions(vote(parts), split) == questions(vote(whole), split)
    write(tmp_path / "one.parquet", TRAIN)
    write(tmp_path / "one.jsonl", TRAIN)
    for split in ("train", "test"):
        of_parquet = questions(vote(tmp_path / "one.parquet"), split)
        assert of_parquet == questions(vote(tmp_path / "one.jsonl"), split)


def test_the_content_is_a_part_of_the_hash_wherever_the_folder_is(tmp_path: Path) -> None:
    first = vote(folder(tmp_path / "a" / "sums"))
    again = vote(f"{folder(tmp_path / 'b' / 'sums')}/")
    other = vote(folder(tmp_path / "c" / "sums", test=TEST[1:]))
    swapped = vote(folder(tmp_path / "d" / "sums", train=TEST * 1, test=TRAIN))
    assert first.spec.hash == again.spec.hash
    assert len({setup.spec.hash for setup in (first, other, swapped)}) == 3
    # A request may call it by its name or digest, and names no other folder.
    access = GameAccess.of([first])
    [outside] = first.environment.outside(first.config).values()
    assert (outside.name, outside.digest[:7]) == ("sums", "sha256:")
    row = first.row()["env_config"]
    for name in ("/elsewhere/sums", "/elsewhere/sums/", outside.digest):
        asked = access.setup("vote", {**row, "problems": name})
        assert asked.spec.hash == first.spec.hash
    with pytest.raises(SettingsError, match="may name only what the server was started"):
        access.setup("vote", {**row, "problems": str(tmp_path / "c")})


def test_what_is_no_such_folder_or_file_is_refused_in_one_message(tmp_path: Path) -> None:
    def refused(name: str, message: str) -> None:
        with pytest.raises(SettingsError, match=message) as caught:
            load_settings(
                {"HANABI_ENV": "vote", "HANABI_PROBLEMS": str(tmp_path / name)}, Path("no")
            )
        assert str(caught.value).count("HANABI_PROBLEMS") <= 2

    (tmp_path / "empty").mkdir()
    refused("empty", r"no train and no test; it contains nothing\. Give a folder with train\.json")
    write(tmp_path / "half" / "train.jsonl", TRAIN)
    refused("half", r"has no test; it contains train\.jsonl")
    folder(tmp_path / "two")
    write(tmp_path / "two" / "train.parquet", TRAIN)
    refused("two", r"train exists as train\.jsonl and as train\.parquet; keep only one")
    write(tmp_path / "parts" / "train-00000-of-00002.parquet", TRAIN)
    write(tmp_path / "parts" / "test.parquet", TEST)
    refused("parts", "train has 1 of 2 parts, part 00001 is missing; copy all")
    folder(tmp_path / "short", train=TRAIN[:4])
    refused("short", "train has 4 distinct problems, but the hashes of .* assign none to")
    folder(tmp_path / "same", train=TEST)
    refused("same", "train has no question that is not in another file; add more")
    folder(tmp_path / "void", test=[])
    refused("void", "test has no question; add more")
    refused("none/", "cannot be listed .No such file")

    parquet.write_table(
        pyarrow.table({"problem": ["a"], "answer": ["b"]}), tmp_path / "columns.parquet"
    )
    refused("columns.parquet", "has no column question; its columns are problem, answer. Name them")
    write(tmp_path / "gap.parquet", [*TRAIN, ("x", "")])
    refused("gap.parquet", r'row 301: no "answer"; each row needs both')
    write(tmp_path / "both.parquet", [*TRAIN, (TRAIN[4][0], "7")])
    refused("both.parquet", "row 301: same question as row 5 but a different answer")
    (tmp_path / "text.parquet").write_text("PAR1 no, this is a text")
    refused("text.parquet", "not parquet")
    good = (tmp_path / "two" / "train.parquet").read_bytes()
    (tmp_path / "torn.parquet").write_bytes(good[:40] + b"\xff" * 40 + good[80:])
    refused("torn.parquet", "cannot be unpacked|not parquet")
    folder(tmp_path / "fifo")
    (tmp_path / "fifo" / "test.jsonl").unlink()
    os.mkfifo(tmp_path / "fifo" / "test.jsonl")
    refused("fifo", "not a regular file")


def test_half_an_emoji_in_a_problem_is_no_reason_to_lose_its_games(tmp_path: Path) -> None:
    path = tmp_path / "apples.jsonl"
    rows = [{"question": f"{n} \ud83d + 0?", "answer": f"{n}\ud83d"} for n in range(300)]
    path.write_text("\n".join(map(json.dumps, rows)))
    problem = vote(path).environment.problem(vote(path).config, split="train", seed=0)  # type: ignore[attr-defined]
    number = problem.question.partition(" ")[0]
    assert problem.question == f"{number} ? + 0?"
    assert problem.answer == f"{number}?"


RIGHT = [
    ("1/2", "0.5"),
    (r"\frac{1}{2}", "1/2"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    ("1,200", "1200.0"),
    ("x + 1", "1 + x"),
    ("12", "12 apples"),
    ("-3", "-3.0"),
    ("0.00001", "1e-5"),
    ("2.5E3", "2500"),
    ("300000000", r"3\times10^8"),
    ("-3", "−3"),
    ("90", r"90^\circ"),
    ("90", r"90\text{ degrees}"),
    ("1.5", r"1\frac{1}{2}"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
]
WRONG = [
    ("7", "8"),
    ("7", "7, 8"),
    ("0.0001", "1e-5"),
    # What a question asks for has the right value as well.
    ("7", "3 + 4"),
    ("7", "10 - 3"),
    ("6", "12/2"),
    ("6", r"2 \times 3"),
    ("21", "7×3"),
    ("531441", "9^6"),
    ("5", "7−2"),
    ("5", "10:2"),
    ("1", r"\gcd(21,4)"),
    ("1", r"\cos 0"),
    ("4", "|-4|"),
    ("3", r"\lfloor 3.7\rfloor"),
    ("2", "7=2"),
    # A word is no product of its letters.
    ("Paris", "Sirap"),
    (r"\text{Monday}", "yaModn"),
    ("7", "(" * 300),
    ("7", "7" + " " * 500),
    ("7", r"\frac{"),
]


def test_answers_are_compared_by_their_value_where_that_is_asked_for(tmp_path: Path) -> None:
    for solution, answer in RIGHT:
        assert means_the_same(solution, answer), (solution, answer)
    for solution, answer in WRONG:
        assert not means_the_same(solution, answer), (solution, answer)
    halves = [(f"Half of {n}?", rf"#### \frac{{{n}}}{{2}}") for n in range(1, 400, 2)]
    by_text = vote(folder(tmp_path, train=halves))
    by_value = vote(tmp_path, verify="math")
    assert "verify" not in by_text.row()["env_config"]
    assert by_text.spec.hash != by_value.spec.hash
    assert registry.may_block(by_value) and not registry.may_block(by_text)
    for setup, expected in ((by_text, 0.0), (by_value, 1.0)):
        referee = Referee(setup.task("train", 3))
        number = referee.game.problem.question.removeprefix("Half of ").removesuffix("?")  # type: ignore[attr-defined]
        referee.step({0: f"Answer: {int(number) / 2}"})
        assert referee.episode().result["final"] == expected
        referee = Referee(setup.task("train", 3))
        referee.step({0: f"Answer: \\frac{{{number}}}{{2}}"})
        assert referee.episode().result["final"] == 1.0


def test_an_answer_that_takes_for_ever_is_wrong_in_time() -> None:
    start = time.monotonic()
    assert not means_the_same("7", "9^{9^{9^{9}}}")
    assert time.monotonic() - start < 20


def test_answers_are_compared_off_the_main_thread_too() -> None:
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(means_the_same("1/2", "0.5")))
    thread.start()
    thread.join(20)
    assert answers == [True]


def test_a_server_compares_them_in_a_process_of_its_own(tmp_path: Path) -> None:
    setup = vote(folder(tmp_path, "parquet"), players=2, verify="math")
    row = {**setup.row(), "suite": "test", "seed": 2, "seats": ["solver", "random"]}
    with running_app(access=GameAccess.of([setup])) as app, RolloutClient(app.url) as client:
        [[game]] = client.play([row], num_games=1, max_tokens=4, temperature=0.5).groups
    assert [turn.rewards[turn.player] for turn in game.turns] == [{"correct": 1.0}, {"correct": 0}]
    assert game.spec_hash == setup.spec.hash


def test_math_is_refused_where_it_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path)
    with pytest.raises(SettingsError, match="HANABI_VERIFY=math with HANABI_PROBLEMS=chain_sum"):
        vote("chain_sum", verify="math")
    pytest.importorskip("reasoning_gym")
    with pytest.raises(SettingsError, match="which has its own verifier; unset"):
        vote("reasoning-gym:leg_counting", verify="math")
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(SettingsError, match=r"uv pip install math-verify==0\.9\.0"):
        vote(tmp_path, verify="math")
