"""A tiny model that starts from another one: what it copies, composes, and refuses."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.sft.tiny_model import Recipe, build_tiny_model
from hanabi_grpo.sft.tiny_model.network import untrained_model
from hanabi_grpo.sft.tiny_model.transfer import transfer
from small_models import SHIPPED


def recipe_for(players: int, **fields: object) -> Recipe:
    """Return a recipe with words of parts whose model is made within a second."""
    quick = {"steps": 1, "num_games": 2, "memory": "turn", "deductions": "joined", **fields}
    return Recipe.of("hanabi", presets=("mini",), players=players, **quick)


THREE = recipe_for(3)
FOUR = recipe_for(4)


@pytest.fixture(scope="module")
def of_three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for three players, trained for a step."""
    return build_tiny_model(tmp_path_factory.mktemp("transfer") / "three", THREE)


def test_between_models_with_the_same_words_everything_is_copied(of_three: Path) -> None:
    chat = THREE.chat()
    model, _ = untrained_model(chat.tokenizer, THREE.word_parts())
    taken = transfer(model, chat.tokenizer, THREE.word_parts(), of_three)
    assert (taken.num_shared, taken.num_composed, taken.num_new) == (len(chat.tokenizer), 0, 0)
    trained = AutoModelForCausalLM.from_pretrained(of_three)
    ids = torch.arange(40)[None]
    assert torch.equal(model.eval()(ids).logits, trained.eval()(ids).logits)


def test_a_word_is_found_by_its_text_and_not_by_its_number(of_three: Path) -> None:
    chat = FOUR.chat()
    model, _ = untrained_model(chat.tokenizer, FOUR.word_parts())
    at_random = model.get_input_embeddings().weight.detach().clone()
    taken = transfer(model, chat.tokenizer, FOUR.word_parts(), of_three)
    trained = AutoModelForCausalLM.from_pretrained(of_three)
    known = trained.get_input_embeddings().weight
    embeddings = model.get_input_embeddings().weight
    assert model.lm_head.weight is embeddings
    trained_numbers = AutoTokenizer.from_pretrained(of_three).get_vocab()
    num_moved = 0
    for word, number in chat.tokenizer.get_vocab().items():
        if word in trained_numbers:
            assert torch.equal(embeddings[number], known[trained_numbers[word]])
            num_moved += trained_numbers[word] != number
        elif word in FOUR.word_parts():
            assert not torch.equal(embeddings[number], at_random[number])
        else:
            assert torch.equal(embeddings[number], at_random[number])
    assert num_moved > 0
    # "Hint.player_3.R.0" and others; "left4", "mate3" and "player_3".
    assert (taken.num_composed, taken.num_new) == (12, 3)
    for name, weight in trained.named_parameters():
        if weight.shape != known.shape:
            assert torch.equal(model.get_parameter(name), weight)


def test_a_new_word_is_the_sum_of_the_parts_that_others_share(tmp_path: Path) -> None:
    # In an untrained model every joined word is exactly such a sum.
    source, parts = untrained_model(THREE.chat().tokenizer, THREE.word_parts())
    assert parts is not None
    source.save_pretrained(tmp_path)
    THREE.chat().tokenizer.save_pretrained(tmp_path)
    tokenizer = FOUR.chat().tokenizer
    model, _ = untrained_model(tokenizer, FOUR.word_parts())
    transfer(model, tokenizer, FOUR.word_parts(), tmp_path)
    embeddings = model.get_input_embeddings().weight
    numbers = tokenizer.get_vocab()
    # "Hint player_3" is a part of no word for three players; the other parts are.
    composed = embeddings[numbers["Hint.player_3.R.0"]]
    fitted = [number for word, number in numbers.items() if word.startswith("Hint.player_2.")]
    distances = (embeddings[fitted] - composed).norm(dim=1)
    closest = fitted[int(distances.argmin())]
    assert tokenizer.convert_ids_to_tokens(closest) == "Hint.player_2.R.0"


def test_the_model_that_it_starts_from_belongs_to_the_recipe(
    of_three: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_for(4, start=str(of_three))
    assert recipe.hash(recipe.chat()) != FOUR.hash(FOUR.chat())
    folder = build_tiny_model(tmp_path / "four", recipe)
    assert "the network and" in shown(capsys)
    assert f"--start {of_three}" in (folder / "README.md").read_text()
    # Built once, and again if those weights change.
    build_tiny_model(folder, recipe)
    assert "already exists" in shown(capsys)
    other = build_tiny_model(tmp_path / "three", recipe_for(3, seed=1))
    build_tiny_model(folder, recipe_for(4, start=str(other)))
    assert "is rebuilt" in shown(capsys)


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a terminal has shown since the last call, in one line."""
    return " ".join(capsys.readouterr().err.split())


def test_another_network_is_refused_with_its_differences() -> None:
    chat = THREE.chat()
    model, _ = untrained_model(chat.tokenizer, THREE.word_parts())
    with pytest.raises(SettingsError, match=r"hidden_size 128 instead of 192, .*num_hidden_layers"):
        transfer(model, chat.tokenizer, THREE.word_parts(), SHIPPED)


def test_a_folder_without_a_model_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    answer = CliRunner().invoke(
        app, ["tiny-model", "--start", str(tmp_path), "--out", str(tmp_path / "model")]
    )
    assert answer.exit_code == 2
    assert f"--start {tmp_path}: no model in this folder" in answer.stderr
    assert not (tmp_path / "model").exists()
