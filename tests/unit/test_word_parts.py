"""Words that share parts: which parts they are, and how they learn."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary, joined_word_parts
from hanabi_grpo.envs.hanabi.prompts.deductions import Deductions
from hanabi_grpo.sft.run import StoppedError
from hanabi_grpo.sft.tiny_model.network import untrained_model
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer
from hanabi_grpo.sft.word_parts import WordParts
from joined_starts import LAPTOP, joined_model, make_start, run
from small_models import small_model

PARTS = {"x.y": ("x", "y"), "x.x": ("x", "x"), "y.z": ("y", "z")}
WORDS = ("a", "x.y", "b", "x.x", "y.z")


def test_a_joined_word_has_the_parts_that_its_fields_and_their_elements_are() -> None:
    parts = joined_word_parts(EnvConfig(preset="full").spec())
    assert parts["fit2.cRY.r1"] == ("own fit2", "colours 2", "cR", "cY", "ranks 1", "r1")
    assert parts["Y4later.cY.r45"] == (
        *("later", "Y4", "of Y", "of 4"),
        *("colours 1", "cY", "ranks 2", "r4", "r5"),
    )
    assert parts["Hint.4.2.3"] == ("Hint", "Hint 4", "touched 2", "touched 3")
    assert parts["Play.0.R2.good"] == ("Play", "Play 0", "R2", "of R", "of 2", "good")
    assert parts["Discard.3.W5"] == ("Discard", "Discard 3", "W5", "of W", "of 5")
    of_three = joined_word_parts(EnvConfig(preset="full", players=3).spec())
    assert of_three["Hint.player_2.B.0"] == ("Hint", "Hint player_2", "Hint B", "touched 0")


def test_words_of_recalled_hands_share_parts_with_cards_and_moves() -> None:
    parts = joined_word_parts(EnvConfig(preset="full", players=3).spec(), "recalled")
    assert parts["2.R1.fits"] == ("then 2", "then fits", "R1", "of R", "of 1")
    assert parts["R1fits.2"] == ("fits", "R1", "of R", "of 1", "in 2")
    assert parts["cRY.r1"] == ("known", "colours 2", "cR", "cY", "ranks 1", "r1")


@pytest.mark.parametrize("deductions", ["joined", "recalled"])
@pytest.mark.parametrize(("preset", "players"), [("laptop", 2), ("full", 2), ("full", 5)])
def test_different_joined_words_have_different_parts(
    preset: str, players: int, deductions: Deductions
) -> None:
    spec = EnvConfig(preset=preset, players=players).spec()
    parts = joined_word_parts(spec, deductions)
    words = compact_vocabulary(spec, deductions)
    assert set(parts) == {word for word in words if "." in word}
    assert len({tuple(sorted(own)) for own in parts.values()}) == len(parts)
    # They are far fewer than the words.
    assert len({part for own in parts.values() for part in own}) < 200


def test_other_words_share_nothing() -> None:
    counted = EnvConfig(preset="laptop", observation="compact", deductions="counted")
    full_text = EnvConfig(preset="laptop", observation="full", deductions="joined")
    assert HANABI.word_parts(counted) == {}
    assert HANABI.word_parts(full_text) == {}
    kuhn = registry.setup("kuhn", {})
    assert kuhn.environment.word_parts(kuhn.config) == {}
    tokenizer = build_tokenizer(WORDS)
    assert WordParts.of(small_model(vocab_size=len(tokenizer)), tokenizer, {"c.d": ("c",)}) is None


def test_words_and_parts_learn_as_two_tables_whose_sum_the_model_reads() -> None:
    tokenizer = build_tokenizer(WORDS)
    torch.manual_seed(0)
    model = small_model(vocab_size=len(tokenizer), tie_word_embeddings=True)
    parts = WordParts.of(model, tokenizer, PARTS)
    assert parts is not None
    embedding = model.get_input_embeddings().weight
    # The same by two tables that autograd knows.
    vocabulary = tokenizer.get_vocab()
    counts = torch.zeros(len(tokenizer), 3)
    for word, own in PARTS.items():
        for part in own:
            counts[vocabulary[word], "xyz".index(part)] += 1
    words = torch.nn.Parameter(embedding.detach().clone())
    vectors = torch.nn.Parameter(torch.zeros(3, embedding.shape[1]))
    ids = torch.tensor([vocabulary[word] for word in WORDS])
    targets = torch.tensor([1, 0, 1, 0, 1])
    head = torch.randn(embedding.shape[1], 2)

    one_table = torch.optim.AdamW([embedding, parts.vectors], lr=0.05, weight_decay=0.0)
    two_tables = torch.optim.AdamW([words, vectors], lr=0.05, weight_decay=0.0)
    for _ in range(5):
        cross_entropy(embedding[ids] @ head, targets).backward()
        parts.collect_gradient()
        one_table.step()
        one_table.zero_grad()
        parts.move_words()
        cross_entropy((words + counts @ vectors)[ids] @ head, targets).backward()
        two_tables.step()
        two_tables.zero_grad()
    torch.testing.assert_close(embedding.detach(), (words + counts @ vectors).detach())
    torch.testing.assert_close(parts.vectors.detach(), vectors.detach())
    # A part was moved by each word that has it: none of them stays alone.
    assert float(parts.vectors.detach().abs().min()) > 0.05


def test_a_word_that_never_came_begins_as_its_parts_are() -> None:
    torch.manual_seed(0)
    tokenizer = build_tokenizer(compact_vocabulary(LAPTOP.config.spec(), "joined"))
    model, parts = untrained_model(tokenizer, HANABI.word_parts(LAPTOP.config))
    assert parts is not None
    number = tokenizer.get_vocab()
    table = model.get_input_embeddings().weight.detach()

    def row(word: str) -> torch.Tensor:
        return table[number[word]]

    # Both pairs differ in the same part.
    torch.testing.assert_close(
        row("sure.cR.r1") - row("dead.cR.r1"), row("sure.cY.r12") - row("dead.cY.r12")
    )
    lengths = table.norm(dim=1)
    assert float(row("sure.cR.r1").norm()) == pytest.approx(float(lengths[:30].mean()), rel=0.5)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untaught model whose words share parts."""
    return joined_model(tmp_path_factory.mktemp("joined") / "model")


def tensors(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetens*")
    }


def test_a_warm_start_with_parts_resumes_bit_by_bit(base: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    run(make_start(base, whole))
    stopped = tmp_path / "stopped"
    with pytest.raises(StoppedError, match="of 4, saved in"):
        run(make_start(base, stopped), calls=42)
    run(make_start(base, stopped, resume=True))
    assert tensors(stopped) == tensors(whole)
    # The vectors of parts are in the state, and none in the model.
    [state] = whole.rglob("weights.safetensors")
    assert "word_parts" in load_file(state)
    assert "word_parts" not in load_file(whole / "model" / "model.safetensors")
