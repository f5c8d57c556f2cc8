"""HANABI_INSTRUCTION: what is behind the system messages, who reads it, and what is refused."""

import json
import os
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from typer.testing import CliRunner

from fake_engine import CHAT, LAPTOP, TOKENIZER
from hanabi_grpo.cli import app as command
from hanabi_grpo.client.lineups import SeatResolver, parse_lineup
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.rewards import with_rewards
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.datasets import training_rows
from hanabi_grpo.rollout.handshake import SessionRequest, game_claims
from hanabi_grpo.rollout.vocabulary import check_vocabulary
from hanabi_grpo.server.identity import check_fit
from hanabi_grpo.settings import Settings, load_settings
from hanabi_grpo.settings.instructions import read_instruction
from server_app import make_identity, rollout_body, running_app, session_body

MESSAGES = {"messages": [{"role": "user", "content": "Play."}]}
BOTH = "Play your ones.\nplayer_1=Hint twice.\nThen play."


def setup_of(instruction: str, **variables: str) -> Setup[Any]:
    given = {"HANABI_INSTRUCTION": instruction, **variables}
    return load_settings(given, Path("no")).settings.setup()


def messages(setup: Setup[Any]) -> list[str]:
    """The system message of each player."""
    players = range(setup.spec.num_players)
    return [setup.environment.system_message(setup.config, player) for player in players]


def test_every_seat_reads_what_is_for_all_and_one_seat_what_is_for_it() -> None:
    setup = setup_of(BOTH, HANABI_OBSERVATION="full")
    rules = [HANABI.system(setup.config, player) for player in (0, 1)]
    assert messages(setup) == [
        f"{rules[0]}\n\nPlay your ones.",
        f"{rules[1]}\n\nPlay your ones.\n\nHint twice.\nThen play.",
    ]
    assert messages(setup_of("player_0=Only you.")) == ["Only you.", ""]


@pytest.mark.parametrize("env", ["hanabi", "kuhn_poker", "sokoban", "vote"])
def test_it_is_part_of_the_hash_of_every_environment_and_without_one_nothing_changes(
    env: str,
) -> None:
    preset = next(iter(registry.get(env).presets.values()))
    plain = Setup(registry.get(env), preset)
    assert "instruction" not in plain.row()["env_config"]
    config = preset.model_copy(update={"instruction": "Win."})
    hashes = {plain.spec.hash, Setup(plain.environment, config).spec.hash}
    config = preset.model_copy(update={"instruction": "Lose."})
    hashes.add(Setup(plain.environment, config).spec.hash)
    assert len(hashes) == 3
    assert messages(Setup(plain.environment, config))[0].endswith("Lose.")


def test_an_environment_with_rewards_of_ones_own_says_it_once() -> None:
    rewarded = with_rewards(
        HANABI, name="h_brief", rewards={"brief": lambda episode: [0.0] * 2}, reward_range=(0, 0)
    )
    config = LAPTOP.model_copy(update={"instruction": "Win."})
    assert messages(Setup(rewarded, config)) == ["Win.", "Win."]


def test_files_are_read_for_every_seat_or_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("team.md").write_text("Play your ones.\n")
    Path("last.txt").write_text("Hint twice.\nThen play.\n")
    loaded = load_settings({"HANABI_INSTRUCTION": "player_1=last.txt, team.md"}, Path("no"))
    assert loaded.settings.env_config["instruction"] == BOTH
    Path("team.md").write_text(BOTH)
    again = load_settings({"HANABI_INSTRUCTION": "team.md"}, Path("no")).settings
    assert again.env_config["instruction"] == BOTH
    # What a run folder holds is the text, which is read back as it is.
    assert read_instruction(BOTH) == BOTH
    assert read_instruction("Read notes.md") == "Read notes.md"


def test_what_cannot_be_an_instruction_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.md").touch()
    Path("latin.md").write_bytes(b"\xe9t\xe9")
    Path("other.md").write_text("team.md")
    Path("seats.md").write_text(BOTH)
    Path("long.md").write_text("x" * 100_000)
    os.mkfifo("pipe.md")
    for value, message in (
        ("none.md", r"HANABI_INSTRUCTION='none.md': cannot be read \(No such file"),
        ("pipe.md", r"cannot be read \(.*FIFO"),
        ("long.md", r"cannot be read \(longer than 64000 bytes"),
        ("empty.md", "is empty; write"),
        ("latin.md", "not UTF-8"),
        ("other.md", "only the name of a file, 'team.md'; name that file instead"),
        ("player_1=seats.md", "is for player_1 but has lines that begin with player_N="),
        ("seats.md,seats.md", "every seat has two files"),
        (
            "player_2=Hi.",
            "player_2 does not exist in a game with 2 players; allowed: player_0, player_1",
        ),
        ("player_1=a\nplayer_1=b", "player_1= starts two lines"),
        ("x" * 16_001, r"16001 characters; at most 16000 are allowed"),
    ):
        with pytest.raises(SettingsError, match=message) as caught:
            load_settings({"HANABI_INSTRUCTION": value}, Path("no"))
        assert len(str(caught.value)) < 400


def test_no_request_and_no_row_names_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the moon is blue")
    row = {**Setup(HANABI, LAPTOP).row(), "suite": "train", "seed": 3, "seats": ["base", "base"]}
    row["env_config"] |= {"instruction": f"player_0={secret}"}
    message = "is a file name, which only HANABI_INSTRUCTION accepts; give the text itself"
    with running_app() as app, RolloutClient(app.url) as client:
        body = rollout_body(tasks=[row])
        answer = httpx.post(f"{app.url}/rollout/", json=body, timeout=20, trust_env=False)
        assert (answer.status_code, message in answer.text) == (422, True), answer.text
        row["env_config"]["instruction"] = "player_0=Play 0"
        [[game]] = client.play([row], num_games=1, max_tokens=4, temperature=0.5).groups
    first = game.trajectory(0)[0]
    assert list(first.prompt_ids) == CHAT.open("Play 0", first.prompt)
    own = game.trajectory(1)[0]
    assert list(own.prompt_ids) == CHAT.open("", own.prompt)


def test_server_and_trainer_compare_it() -> None:
    [claim] = game_claims([setup_of("Play 0")])
    [other] = game_claims([setup_of("Play 1")])
    assert claim["spec_hash"] != other["spec_hash"]
    assert claim["prompt_hash"] != other["prompt_hash"]
    identity = make_identity()
    swapped = {**claim, "env_config": other["env_config"]}
    requests = []
    for game in (claim, swapped):
        requests.append(msgspec.convert(session_body(identity, games=[game]), SessionRequest))
    check_fit(identity, requests[0])
    message = rf"rules \(hanabi laptop, 2 players\) differs.*{claim['spec_hash']}"
    with pytest.raises(SettingsError, match=message):
        check_fit(identity, requests[1])


def test_rows_of_a_dataset_have_the_text_of_the_settings_or_one_of_their_own(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        json.dumps({**MESSAGES, "env_config": {"preset": "laptop"}})
        + "\n"
        + json.dumps({**MESSAGES, "env_config": {"preset": "laptop", "instruction": "Lose."}})
    )
    rows = training_rows(load_settings({"DATASET": str(path)}, Path("no")).settings)
    assert [row.env_config.get("instruction", "") for row in rows] == ["", "Lose."]
    one = tmp_path / "one.jsonl"
    one.write_text(json.dumps({**MESSAGES, "env_config": {"preset": "laptop"}}))
    given = {"DATASET": str(one), "HANABI_INSTRUCTION": "Win."}
    [row] = training_rows(load_settings(given, Path("no")).settings)
    assert row.env_config["instruction"] == "Win."


def test_a_tiny_model_that_lacks_its_words_is_refused_in_a_sentence() -> None:
    check_vocabulary([setup_of("Play 0")], TOKENIZER, "data/tiny-model")
    with pytest.raises(SettingsError, match="HANABI_INSTRUCTION has words that do not occur"):
        check_vocabulary([setup_of("Be brave")], TOKENIZER, "data/tiny-model")


def test_a_person_reads_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for options in ((), ("--raw",)):
        result = CliRunner().invoke(
            command,
            ["play", "random,human", *options],
            env={"HANABI_INSTRUCTION": BOTH},
            input="q\n",
        )
        assert "Hint twice." in result.output, result.output


def test_whoever_plays_a_run_without_its_instruction_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: dict[str, str | None] = {
        "HANABI_ENV": "hanabi",
        "HANABI_INSTRUCTION": "Win twice.",
    }
    monkeypatch.setattr("hanabi_grpo.client.lineups.recorded_settings", lambda run: learned)
    monkeypatch.setattr(SeatResolver, "run_folders", lambda self, refs: (tmp_path,))
    with running_app() as app, RolloutClient(app.url) as client:
        resolver = SeatResolver(client, Settings())
        resolver.compare_messages(parse_lineup("base", 2).refs, Setup(HANABI, LAPTOP))
        assert "trained with HANABI_INSTRUCTION='Win twice.'" in caplog.text
        learned["HANABI_INSTRUCTION"] = None
        resolver = SeatResolver(client, Settings())
        resolver.compare_messages(parse_lineup("base", 2).refs, setup_of("Play 0"))
    assert "export HANABI_INSTRUCTION=\n" in caplog.text
