"""The tiny model: its words, what it learns from, the folder that is shipped and those that are
made.
"""

import json
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.cli import app
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Observation, Setup, Task
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import HanabiGrpoError, RunFolderError, SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.runs.adapter_config import WIRE_KEYS, adapter_config_for_wire
from hanabi_grpo.runs.manifest import file_sha256
from hanabi_grpo.settings.defaults import TINY_MODEL
from hanabi_grpo.sft.samples import padded, reply_logits
from hanabi_grpo.sft.tiny_model import Recipe, build_tiny_model
from hanabi_grpo.types import Episode, Reply, ReplyKind
from made_games import play_episodes_sync
from small_models import SHIPPED

LAPTOP = Setup(HANABI, EnvConfig(preset="laptop", observation="compact", legal_moves=False))
KUHN = registry.setup("kuhn", {})
QUICK = Recipe.of("hanabi", seed=3, steps=1, num_games=20)
CHAT = QUICK.chat()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model", QUICK)


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "place" / "model"))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a copy of the shipped model."""
    shutil.copytree(SHIPPED, tmp_path / TINY_MODEL)
    monkeypatch.chdir(tmp_path)
    for name in ("MODEL", "SEED"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / TINY_MODEL


def rebuilt(folder: Path, **changes: Any) -> bool:
    """Build again by the same recipe; True when the weights were written anew."""
    weights = folder / "model.safetensors"
    stamp = weights.stat().st_mtime_ns if weights.exists() else 0
    build_tiny_model(folder, replace(QUICK, **changes))
    return weights.stat().st_mtime_ns != stamp


def test_the_shipped_model_is_small_and_what_the_recipe_of_today_makes() -> None:
    manifest = json.loads((SHIPPED / "tiny_model.json").read_text())
    recipe = Recipe.of("hanabi", presets=("laptop",), players=2, legal_moves=False, seed=42)
    assert (
        Recipe(**{**manifest["recipe"], "presets": tuple(manifest["recipe"]["presets"])}) == recipe
    )
    # Another hash means that prompts, bot or recipe have changed: make it again, see the card.
    assert manifest["recipe_hash"] == recipe.hash(CHAT)
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 2.6e6
    card = (SHIPPED / "README.md").read_text()
    assert file_sha256(SHIPPED / "model.safetensors") in card and "| seed | 42 |" in card


def test_the_shipped_model_stays_as_it_is(checkout: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in checkout.iterdir()}
    for environ in ({}, {"SEED": "7"}):
        answer = CliRunner().invoke(app, ["tiny-model"], env=environ)
        assert answer.exit_code == 0 and "data/tiny-model is shipped (recipe" in answer.stderr
    answer = CliRunner().invoke(app, ["tiny-model"], env={"HANABI_LEGAL_MOVES": "true"})
    assert (
        answer.exit_code == 0
        and "learned from other prompts than those of HANABI_LEGAL_MOVES=true" in answer.stderr
    )
    for option in (["--seed", "7"], ["--steps", "5"], ["--force"]):
        answer = CliRunner().invoke(app, ["tiny-model", *option])
        assert answer.exit_code == 2 and "--out outputs/tiny-laptop" in answer.stderr
    assert {path.name: path.stat().st_mtime_ns for path in checkout.iterdir()} == before


def test_another_recipe_is_built_again_and_the_same_is_not(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    assert not rebuilt(folder)
    assert rebuilt(folder, seed=4)
    assert (folder / "model.safetensors").read_bytes() != content
    assert json.loads((folder / "tiny_model.json").read_text())["recipe"]["seed"] == 4
    assert rebuilt(folder)
    assert (folder / "model.safetensors").read_bytes() == content, (
        "the same seed gives the same weights"
    )
    assert [path.name for path in folder.parent.iterdir()] == ["model"], "nothing is left beside it"
    (folder / "tiny_model.json").unlink()
    with pytest.raises(RunFolderError, match="did not make"):
        build_tiny_model(folder, QUICK)


def test_a_recipe_that_cannot_be_is_refused() -> None:
    with pytest.raises(SettingsError, match="--preset laptop: kuhn has kuhn"):
        Recipe.of("kuhn").setups()
    with pytest.raises(HanabiGrpoError, match="'laptop' is for 2 players"):
        Recipe(presets=("mini", "laptop"), players=3).setups()
    answer = CliRunner().invoke(app, ["tiny-model", "--steps", "0"])
    assert answer.exit_code == 2 and "--steps" in answer.stderr


def test_a_model_of_several_boards_knows_the_words_of_all_and_learns_from_as_many_games_of_each() -> (
    None
):
    recipe = replace(QUICK, presets=("laptop", "marshal-full"))
    chat = recipe.chat()
    for setup in recipe.setups():
        texts = [
            chat.tokenizer.decode(list(sample.ids)) for sample in recipe.samples(setup, chat, 20)
        ]
        assert 20 < len(texts) <= 40
        assert not any("<unk>" in text for text in texts)
    assert chat.tokenizer.encode("life1") == CHAT.tokenizer.encode("life1")


class Talker:
    """Sits in every seat and says what a model finds most likely, or samples it."""

    def __init__(self, folder: Path, *, sampled: bool = False) -> None:
        self.name, self.model, self.sampled = (
            "model",
            AutoModelForCausalLM.from_pretrained(folder),
            sampled,
        )
        self.chat = ChatFormat.from_tokenizer(AutoTokenizer.from_pretrained(folder))

    def seat(self, player: int, *, task: Task[Any], game: int) -> Any:
        conversation, chat = (
            Conversation(self.chat, task.environment.system(task.config, player)),
            self.chat,
        )

        class Seat:
            async def reply(_, seen: Observation) -> Reply:
                conversation.ask(seen.message())
                said: list[int] = []
                while len(said) < 4 and chat.eos_id not in said:
                    logits = self.model(input_ids=torch.tensor([conversation.ids + said])).logits[
                        0, -1
                    ]
                    said.append(
                        int(
                            torch.multinomial(logits.softmax(-1), 1)
                            if self.sampled
                            else logits.argmax()
                        )
                    )
                conversation.answer(said)
                return Reply(text=chat.decode(said))

        return Seat()


def played(player: Talker, setup: Setup[Any], seeds: Sequence[int]) -> list[Episode]:
    with torch.no_grad():
        return play_episodes_sync(setup, [player] * setup.spec.num_players, "eval", seeds)


@pytest.mark.rest
def test_a_tiny_model_of_another_environment_is_made_soon_and_replies_legally_almost_always(
    tmp_path: Path,
) -> None:
    start = time.process_time()
    answer = CliRunner().invoke(
        app, ["tiny-model", "--env", "kuhn", "--out", str(tmp_path / "kuhn"), "--seed", "1"]
    )
    assert answer.exit_code == 0, answer.output
    assert time.process_time() - start < 120
    torch.manual_seed(0)
    turns = [
        turn
        for game in played(Talker(tmp_path / "kuhn", sampled=True), KUHN, range(100))
        for turn in game.turns
    ]
    assert sum(turn.kind is ReplyKind.LEGAL for turn in turns) > 0.97 * len(turns)
    assert {turn.action for turn in turns} == {"check", "bet", "fold", "call"}
    card = (tmp_path / "kuhn" / "README.md").read_text()
    assert "tiny-model --env kuhn --preset kuhn --seed 1" in card and "A tiny Kuhn player" in card


@pytest.mark.rest
def test_made_again_the_shipped_model_says_and_scores_the_same_within_error(tmp_path: Path) -> None:
    again = build_tiny_model(tmp_path / "again", Recipe.of("hanabi", seed=42))
    batch = padded(list(Recipe.of("hanabi", seed=1000).samples(LAPTOP, CHAT, 100)))
    with torch.no_grad():
        models = (AutoModelForCausalLM.from_pretrained(folder) for folder in (SHIPPED, again))
        first, second = (reply_logits(model, *batch)[0].argmax(-1) for model in models)
    assert (first == second).float().mean() > 0.9
    ours, theirs = (
        [game.result["score"] for game in played(Talker(folder), LAPTOP, range(100))]
        for folder in (SHIPPED, again)
    )
    error = math.hypot(*(stdev(scores) / math.sqrt(len(scores)) for scores in (ours, theirs)))
    assert abs(mean(ours) - mean(theirs)) < 3 * error
    # It begins well above what an untrained model can, and leaves much to learn.
    assert 0.5 < mean(ours) < 3.5


def test_only_what_may_travel_is_left_of_a_peft_configuration() -> None:
    from peft import LoraConfig

    config = LoraConfig(r=8, target_modules=["v_proj", "q_proj"], base_model_name_or_path="/secret")
    wire = adapter_config_for_wire(config.to_dict())
    assert json.loads(json.dumps(wire)) == wire
    assert (wire["peft_type"], wire["r"], wire["target_modules"]) == (
        "LORA",
        8,
        ["q_proj", "v_proj"],
    )
    assert set(wire) <= WIRE_KEYS
