"""The tiny model: its words, what it learns from, the shipped folder and those that are made."""

import json
import math
import shutil
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from doctor_machines import ROOT
from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.cli import app
from hanabi_grpo.commands import demo
from hanabi_grpo.commands.tiny_model import _check_words
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Observation, Setup, Task
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import HanabiGrpoError, RunFolderError, SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.vocabulary import game_words
from hanabi_grpo.runs.adapter_config import WIRE_KEYS, adapter_config_for_wire
from hanabi_grpo.runs.manifest import file_sha256
from hanabi_grpo.settings import load_settings
from hanabi_grpo.settings.defaults import TINY_MODEL
from hanabi_grpo.settings.shipped import TINY_MODEL_COUNTED
from hanabi_grpo.sft.samples import Sample, padded, reply_logits
from hanabi_grpo.sft.tiny_model import Recipe, build_tiny_model
from hanabi_grpo.sft.tiny_model.network import single_turns
from hanabi_grpo.types import Episode, Reply, ReplyKind
from made_games import play_episodes_sync
from small_models import SHIPPED

SHIPPED_COUNTED = ROOT / TINY_MODEL_COUNTED
LAPTOP = Setup(HANABI, EnvConfig(preset="laptop", observation="compact", legal_moves=False))
KUHN = registry.setup("kuhn", {})
QUICK = Recipe.of("hanabi", seed=3, steps=1, num_games=20)
"""A recipe whose model is made within a second."""
CHAT = QUICK.chat()
MAX_REPLY = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model", QUICK)


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of a made model."""
    return Path(shutil.copytree(made, tmp_path / "parent" / "model"))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped model in a copy of the working directory."""
    shutil.copytree(SHIPPED, tmp_path / TINY_MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODEL", raising=False)
    monkeypatch.delenv("SEED", raising=False)
    return tmp_path / TINY_MODEL


def is_built_again(folder: Path, **changes: Any) -> bool:
    """Build by the same recipe with changes; tell whether the weights were written."""
    weights = folder / "model.safetensors"
    before = weights.stat().st_mtime_ns if weights.exists() else 0
    build_tiny_model(folder, replace(QUICK, **changes))
    return weights.stat().st_mtime_ns != before


def test_the_shipped_model_is_what_the_recipe_of_today_makes() -> None:
    manifest = json.loads((SHIPPED / "tiny_model.json").read_text())
    fields = manifest["recipe"]
    fields["presets"] = tuple(fields["presets"])
    recipe = Recipe.of("hanabi", presets=("laptop",), players=2, legal_moves=False, seed=42)
    assert Recipe(**fields) == recipe
    # Another hash means that prompts, bot or recipe have changed: make it again, see the card.
    assert manifest["recipe_hash"] == recipe.hash(CHAT)


def test_the_model_of_the_demo_is_what_the_recipe_of_today_makes() -> None:
    manifest = json.loads((SHIPPED_COUNTED / "tiny_model.json").read_text())
    recipe = Recipe.of(
        "hanabi",
        presets=("laptop",),
        players=2,
        legal_moves=False,
        deductions="counted",
        seed=42,
        steps=4000,
        num_games=12000,
    )
    assert manifest["recipe_hash"] == recipe.hash(recipe.chat())
    # It reads what the demo's players see.
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED_COUNTED)
    setup = registry.setup("hanabi", demo.BOARD)
    assert set(game_words(setup)) <= set(tokenizer.get_vocab())


def highest_probability(folder: Path, word: str) -> float:
    """Return how likely any hidden state of a model makes a word.

    Behind the final norm, a hidden state is any vector of the norm's length.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    token = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(word)
    words = model.lm_head.weight.detach()
    scale = model.model.norm.weight.detach()
    hidden = (words[token] * scale).clone().requires_grad_()
    optimizer = torch.optim.Adam([hidden], lr=0.05)
    loss = torch.zeros(())
    for _ in range(100):
        normalized = hidden / hidden.square().mean().sqrt()
        loss = -torch.log_softmax(words @ (scale * normalized), dim=0)[token]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return math.exp(-loss.item())


def test_the_logit_scale_lets_players_become_sure_of_a_word(tmp_path: Path) -> None:
    recipe = Recipe.of("hanabi", seed=3, steps=40, num_games=100)
    scaled = replace(recipe, logit_scale=3.0)
    assert scaled.hash(CHAT) != recipe.hash(CHAT)
    usual = build_tiny_model(tmp_path / "usual", recipe)
    sure = build_tiny_model(tmp_path / "sure", scaled)
    for word in ("R", "Y"):
        assert highest_probability(usual, word) < 0.998
        assert highest_probability(sure, word) > 0.9999
    assert "--logit-scale 3 " in (sure / "README.md").read_text()
    assert "--logit-scale" not in (usual / "README.md").read_text()


def test_a_recipe_decides_the_size_of_its_network(tmp_path: Path) -> None:
    sized = replace(QUICK, width=192, layers=1)
    assert sized.hash(CHAT) != QUICK.hash(CHAT)
    folder = build_tiny_model(tmp_path / "sized", sized)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (192, 1)
    (layer,) = model.model.layers
    num_weights = sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)
    # Queries and output, half as many keys and values, and three matrices of the feed-forward part.
    assert num_weights == (2 + 2 * 0.5 + 3 * 3) * 192**2
    assert "--width 192 --layers 1 " in (folder / "README.md").read_text()


def test_a_width_that_is_no_number_of_heads_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"--width 100: must be a multiple of 64, e.g. 128"):
        Recipe.of("hanabi", width=100)


@pytest.mark.parametrize("shipped", [SHIPPED, SHIPPED_COUNTED], ids=lambda folder: folder.name)
def test_a_shipped_model_is_small_and_its_card_names_its_weights(shipped: Path) -> None:
    assert sum(path.stat().st_size for path in shipped.iterdir()) < 2.6e6
    card = (shipped / "README.md").read_text()
    assert file_sha256(shipped / "model.safetensors") in card
    assert "| seed | 42 |" in card


def times_of_change(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


@pytest.mark.parametrize("environ", [{}, {"SEED": "7"}])
def test_the_shipped_model_is_found_and_stays_as_it_is(
    checkout: Path, environ: dict[str, str]
) -> None:
    before = times_of_change(checkout)
    answer = CliRunner().invoke(app, ["tiny-model"], env=environ)
    assert answer.exit_code == 0
    assert "data/tiny-model is shipped (recipe" in answer.stderr
    assert times_of_change(checkout) == before


@pytest.mark.usefixtures("checkout")
def test_the_shipped_model_has_learned_from_one_kind_of_prompts() -> None:
    answer = CliRunner().invoke(app, ["tiny-model"], env={"HANABI_LEGAL_MOVES": "true"})
    assert answer.exit_code == 0
    message = "was not trained on prompts with HANABI_LEGAL_MOVES=true"
    assert message in answer.stderr


@pytest.mark.parametrize(
    "options", [["--seed", "7"], ["--steps", "5"], ["--force"], ["--teacher", "iggi"]]
)
def test_the_shipped_model_is_never_made_anew_in_its_place(
    checkout: Path, options: list[str]
) -> None:
    before = times_of_change(checkout)
    answer = CliRunner().invoke(app, ["tiny-model", *options])
    assert answer.exit_code == 2
    assert "--out outputs/tiny-laptop" in answer.stderr
    assert times_of_change(checkout) == before


@pytest.mark.parametrize(
    "environ",
    [
        {"HANABI_ENV": "debate", "HANABI_STYLE": "full"},
        {"HANABI_OBSERVATION": "full"},
        {"HANABI_ENV": "vote", "HANABI_PROBLEMS": "apples.jsonl", "HANABI_STYLE": "full"},
    ],
    ids=["style", "observation", "own problems"],
)
def test_no_tiny_model_is_made_for_texts_that_it_could_not_read(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = []
    for number in range(200):
        question = f"{2 * number} apples are shared by two. How many has each?"
        rows.append(json.dumps({"question": question, "answer": str(number)}))
    Path("apples.jsonl").write_text("\n".join(rows) + "\n")
    answer = CliRunner().invoke(app, ["tiny-model"], env=environ)
    assert answer.exit_code == 2
    message = " ".join(answer.stderr.split())
    assert "knows only the words of its own tasks in the compact style, and not" in message
    assert "MODEL=Qwen/Qwen3-0.6B" in message
    assert not Path("outputs").exists()


@pytest.mark.parametrize("env", ["hanabi", "kuhn_poker", "debate", "vote", "sokoban"])
def test_a_tiny_model_knows_all_words_of_its_environments_defaults(
    env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANABI_ENV", env)
    settings = load_settings().settings
    preset = settings.preset or (
        "laptop" if env == "hanabi" else next(iter(registry.get(env).presets))
    )
    recipe = Recipe.of(env, presets=(preset,), players=settings.players)
    _check_words(recipe, settings)


def test_another_recipe_is_built_again_and_the_same_is_not(folder: Path) -> None:
    weights = folder / "model.safetensors"
    before = weights.read_bytes()
    assert not is_built_again(folder)
    assert is_built_again(folder, seed=4)
    assert weights.read_bytes() != before
    assert json.loads((folder / "tiny_model.json").read_text())["recipe"]["seed"] == 4
    assert is_built_again(folder)
    assert weights.read_bytes() == before, "the same seed gives the same weights"
    assert [path.name for path in folder.parent.iterdir()] == ["model"], "nothing is left beside it"


def test_the_help_says_when_an_existing_model_is_replaced() -> None:
    said = " ".join(CliRunner().invoke(app, ["tiny-model", "--help"]).stdout.split())
    assert "is kept if it was built with the same options and settings; otherwise it is" in said


def test_a_folder_that_something_else_made_is_refused(folder: Path) -> None:
    (folder / "tiny_model.json").unlink()
    with pytest.raises(RunFolderError, match="did not create"):
        build_tiny_model(folder, QUICK)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"file/model: the tiny model cannot be written there"):
        build_tiny_model(tmp_path / "file" / "model", QUICK)


def test_a_recipe_that_cannot_be_is_refused() -> None:
    with pytest.raises(
        SettingsError, match="--preset laptop: kuhn has no such preset; allowed are"
    ):
        Recipe.of("kuhn").setups()
    with pytest.raises(HanabiGrpoError, match="'laptop' is for 2 players"):
        Recipe(presets=("mini", "laptop"), players=3).setups()
    answer = CliRunner().invoke(app, ["tiny-model", "--steps", "0"])
    assert answer.exit_code == 2
    assert "--steps" in answer.stderr


def test_a_model_of_several_boards_knows_the_words_of_all_and_learns_from_each() -> None:
    recipe = replace(QUICK, presets=("laptop", "marshal-full"))
    chat = recipe.chat()
    for setup in recipe.setups():
        samples = list(recipe.samples(setup, chat, 20))
        # One or two for each of 20 games.
        assert 20 < len(samples) <= 40
        for sample in samples:
            assert "<unk>" not in chat.tokenizer.decode(list(sample.ids))
    assert chat.tokenizer.encode("life1") == CHAT.tokenizer.encode("life1")


def text_recipe(env: str = "hanabi", **fields: Any) -> Recipe:
    return Recipe.of(env, style="full", steps=1, num_games=20, **fields)


def test_a_model_of_the_full_style_reads_any_text_and_says_a_move_in_a_token_or_two() -> None:
    recipe = text_recipe(memory="turn", deductions="none")
    [setup] = recipe.setups()
    assert (setup.config.observation, setup.config.memory) == ("full", "turn")
    tokenizer = recipe.chat().tokenizer
    assert tokenizer.unk_token_id is None
    for text in ("Zwölf Boxkämpfer 🎲\n\tjagen", "<think>slot 1 fits</think>\nPlay 1", " a  b "):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
    assert len(tokenizer.encode("<think>", add_special_tokens=False)) == 1
    for word in ("Play 0", "Hint player_1 red"):
        assert len(tokenizer.encode(word, add_special_tokens=False)) <= 2
    samples = list(recipe.samples(setup, recipe.chat(), 3))
    for sample in samples:
        num_characters = len(tokenizer.decode(list(sample.ids)))
        assert len(sample.ids) < num_characters / 10, "phrases are tokens"
        assert num_characters > 1500, "the rules stand in front of each turn"


def test_a_teacher_that_thinks_aloud_puts_its_phrases_into_the_tokenizer() -> None:
    silent = text_recipe(memory="turn")
    aloud = text_recipe(memory="turn", teacher="hint-bot-aloud", noise=0.0)
    [setup] = aloud.setups()
    thought = "My slot 1 can be played now with a chance of 60%.\n"
    num_tokens = []
    for recipe in (silent, aloud):
        tokenizer = recipe.chat().tokenizer
        num_tokens.append(len(tokenizer.encode(thought, add_special_tokens=False)))
    assert num_tokens[1] <= 4
    assert num_tokens[0] > 2 * num_tokens[1]
    sample = next(aloud.samples(setup, aloud.chat(), 1))
    reply = [
        number for number, is_reply in zip(sample.ids, sample.is_reply, strict=True) if is_reply
    ]
    assert aloud.chat().tokenizer.decode(reply).startswith("<think>\nMy slot 0 can be played now")


@pytest.mark.parametrize(("env", "preset"), [("kuhn_poker", "kuhn_poker"), ("debate", "debate")])
def test_other_environments_have_models_of_the_full_style(env: str, preset: str) -> None:
    recipe = text_recipe(env, presets=(preset,))
    [setup] = recipe.setups()
    assert setup.config.style == "full"
    assert recipe.words() == ()
    first = next(recipe.samples(setup, recipe.chat(), 1))
    assert setup.environment.system_message(setup.config, first.player)[:40] in (
        recipe.chat().tokenizer.decode(list(first.ids))
    )


def test_the_style_is_a_part_of_the_recipe_and_its_model_is_made(tmp_path: Path) -> None:
    recipe = text_recipe()
    assert recipe.hash(recipe.chat()) != QUICK.hash(QUICK.chat())
    folder = build_tiny_model(tmp_path / "model", recipe)
    model = AutoModelForCausalLM.from_pretrained(folder)
    body = model.num_parameters() - model.get_input_embeddings().weight.numel()
    assert 2_000_000 < body < 10_000_000
    assert "--style full" in (folder / "README.md").read_text()
    assert AutoTokenizer.from_pretrained(folder).eos_token == "<|im_end|>"


def test_a_conversation_is_split_into_its_turns() -> None:
    ids = array("i", [1, 2, 3, 4, 5, 6, 7])
    is_reply = array("b", [0, 0, 1, 1, 0, 1, 0])
    first, second = single_turns(Sample(player=1, start=0, ids=ids, is_reply=is_reply))
    assert list(first.ids) == [1, 2, 3, 4]
    assert list(first.is_reply) == [0, 0, 1, 1]
    assert list(second.ids) == [5, 6]
    assert list(second.is_reply) == [0, 1]


class ModelPolicy:
    """Replies with what a model finds most likely, or samples it."""

    name = "model"

    def __init__(self, folder: Path, *, sampled: bool = False) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder)
        self.chat = ChatFormat.from_tokenizer(AutoTokenizer.from_pretrained(folder))
        self.sampled = sampled

    def seat(self, player: int, *, task: Task[Any], game: int) -> "ModelSeat":
        system = task.environment.system(task.config, player)
        return ModelSeat(policy=self, conversation=Conversation(self.chat, system))

    def next_token(self, ids: list[int]) -> int:
        logits = self.model(input_ids=torch.tensor([ids])).logits[0, -1]
        if self.sampled:
            return int(torch.multinomial(logits.softmax(-1), 1))
        return int(logits.argmax())


@dataclass(slots=True, kw_only=True)
class ModelSeat:
    """A model in one seat of one game."""

    policy: ModelPolicy
    conversation: Conversation

    async def reply(self, seen: Observation) -> Reply:
        chat = self.policy.chat
        self.conversation.ask(seen.message())
        reply: list[int] = []
        while len(reply) < MAX_REPLY and chat.eos_id not in reply:
            reply.append(self.policy.next_token(self.conversation.ids + reply))
        self.conversation.answer(reply)
        return Reply(text=chat.decode(reply))


def play_games(policy: ModelPolicy, setup: Setup[Any], num_games: int) -> list[Episode]:
    """Let a model play with itself."""
    players = [policy] * setup.spec.num_players
    with torch.no_grad():
        return play_episodes_sync(setup, players, "eval", range(num_games))


@pytest.mark.rest
def test_a_tiny_model_of_another_environment_is_made_soon_and_replies_legally_almost_always(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "kuhn"
    start = time.process_time()
    answer = CliRunner().invoke(
        app, ["tiny-model", "--env", "kuhn", "--out", str(folder), "--seed", "1"]
    )
    assert answer.exit_code == 0, answer.output
    assert time.process_time() - start < 120
    torch.manual_seed(0)
    turns = []
    for episode in play_games(ModelPolicy(folder, sampled=True), KUHN, 100):
        turns += episode.turns
    num_legal = sum(turn.kind is ReplyKind.LEGAL for turn in turns)
    assert num_legal > 0.97 * len(turns)
    assert {turn.action for turn in turns} == {"check", "bet", "fold", "call"}
    card = (folder / "README.md").read_text()
    assert "tiny-model --env kuhn --preset kuhn --seed 1" in card
    assert "A tiny Kuhn player" in card


def test_the_command_on_a_card_makes_the_same_recipe_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(QUICK, deductions="counted", teacher="iggi", num_games=12)
    first = build_tiny_model(tmp_path / "first", recipe)
    card = (first / "README.md").read_text()
    command = card.partition("```bash\n")[2].partition("\n```")[0]
    words = command.split()
    program = next(number for number, word in enumerate(words) if "=" not in word)
    for word in words[:program]:
        monkeypatch.setenv(*word.split("=", 1))
    arguments = [str(tmp_path / "again") if word == "FOLDER" else word for word in words]
    answer = CliRunner().invoke(app, arguments[program + 1 :])
    assert answer.exit_code == 0, answer.output
    manifests = [
        json.loads((tmp_path / name / "tiny_model.json").read_text()) for name in ("first", "again")
    ]
    assert manifests[0]["recipe_hash"] == manifests[1]["recipe_hash"]


def most_likely_tokens(folder: Path, batch: Sequence[Any]) -> torch.Tensor:
    logits, _ = reply_logits(AutoModelForCausalLM.from_pretrained(folder), *batch)
    return logits.argmax(-1)


def scores_of(folder: Path) -> list[float]:
    return [game.result["score"] for game in play_games(ModelPolicy(folder), LAPTOP, 100)]


def standard_error(scores: Sequence[float]) -> float:
    return stdev(scores) / math.sqrt(len(scores))


@pytest.mark.rest
def test_made_again_the_shipped_model_says_and_scores_the_same_within_error(tmp_path: Path) -> None:
    again = build_tiny_model(tmp_path / "again", Recipe.of("hanabi", seed=42))
    other_games = Recipe.of("hanabi", seed=1000)
    batch = padded(list(other_games.samples(LAPTOP, CHAT, 100)))
    with torch.no_grad():
        is_equal = most_likely_tokens(SHIPPED, batch) == most_likely_tokens(again, batch)
    assert is_equal.float().mean() > 0.9
    shipped_scores = scores_of(SHIPPED)
    again_scores = scores_of(again)
    error = math.hypot(standard_error(shipped_scores), standard_error(again_scores))
    assert abs(mean(shipped_scores) - mean(again_scores)) < 3 * error
    # It begins well above what an untrained model can, and leaves much to learn.
    assert 0.5 < mean(shipped_scores) < 3.5


def test_only_what_may_travel_is_left_of_a_peft_configuration() -> None:
    from peft import LoraConfig

    config = LoraConfig(r=8, target_modules=["v_proj", "q_proj"], base_model_name_or_path="/secret")
    wire = adapter_config_for_wire(config.to_dict())
    assert json.loads(json.dumps(wire)) == wire
    assert wire["peft_type"] == "LORA"
    assert wire["r"] == 8
    assert wire["target_modules"] == ["q_proj", "v_proj"]
    assert set(wire) <= WIRE_KEYS


def test_the_model_is_made_where_model_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"HANABI_ENV": "kuhn_poker", "MODEL": "outputs/tiny-mine"}
    quick = ["tiny-model", "--steps", "1", "--games", "2"]
    answer = CliRunner().invoke(app, quick, env=environ)
    assert answer.exit_code == 0, answer.output
    assert [path.name for path in Path("outputs").iterdir()] == ["tiny-mine"]
    # A model of a hub is no folder, and a board that an option names has a folder of its own.
    for other in ({"MODEL": "Qwen/Qwen3-0.6B"}, environ):
        options = ["--preset", "kuhn_poker"] if other is environ else []
        answer = CliRunner().invoke(app, [*quick, *options], env={**environ, **other})
        assert answer.exit_code == 0, answer.output
        assert Path("outputs/tiny-kuhn_poker/model.safetensors").is_file()
