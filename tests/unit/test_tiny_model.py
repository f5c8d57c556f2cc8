import json
from dataclasses import replace
from pathlib import Path

import pytest

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies import HintBot
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.envs.hanabi.rules import is_held_out, make_spec
from hanabi_grpo.errors import HanabiGrpoError, RunFolderError, SettingsError
from hanabi_grpo.rollout.chat import ChatFormat, Conversation
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.runs.adapter_config import WIRE_KEYS, adapter_config_for_wire
from hanabi_grpo.sft.tiny_model import Recipe, build_tiny_model
from hanabi_grpo.sft.tiny_model.corpus import SUITE, Sample, ShownPolicy, play_corpus, single_turns
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer
from hanabi_grpo.sft.tiny_model.warm_start import new_model, warm_start
from hanabi_grpo.training.model.shared_prefixes import shares_prefixes

LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)
WORDS = compact_vocabulary(make_spec("laptop"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model", seed=3, steps=2, num_games=40)


def rebuilt(folder: Path, **changes: int) -> bool:
    """Build again by the same recipe; True when the weights were written anew."""
    weights = folder / "model.safetensors"
    stamp = weights.stat().st_mtime_ns if weights.exists() else 0
    build_tiny_model(folder, **{"seed": 3, "steps": 2, "num_games": 40, **changes})  # type: ignore[arg-type]
    return weights.stat().st_mtime_ns != stamp


def test_a_conversation_is_one_token_per_word_and_line_breaks_cost_none() -> None:
    chat = ChatFormat.from_tokenizer(build_tokenizer(WORDS))
    text = chat.tokenizer.decode(chat.open("", "life1 info3"))
    assert text == "<|im_start|> user life1 info3 <|im_end|> <|im_start|> assistant"
    assert (chat.glue, chat.tail) == ("\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")


def test_every_word_of_the_board_has_a_token_and_comes_back() -> None:
    tokenizer = build_tokenizer(WORDS)
    ids = tokenizer.encode(" ".join(WORDS), add_special_tokens=False)
    assert len(ids) == len(WORDS)
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == " ".join(WORDS)


def test_think_tags_are_tokens_that_decoding_keeps() -> None:
    chat = ChatFormat.from_tokenizer(build_tokenizer(WORDS))
    ids = chat.tokenizer.encode("<think> me </think> Play 0", add_special_tokens=False)
    assert len(ids) == 5
    assert chat.decode([*ids, chat.eos_id]) == "<think> me </think> Play 0"


def test_a_sample_is_exactly_the_conversation_of_the_rollout() -> None:
    chat = ChatFormat.from_tokenizer(build_tokenizer(WORDS))
    teacher = HintBot(noise=0.4)
    samples = list(play_corpus(LAPTOP, teacher, chat, first_seed=5, num_games=1))
    [episode] = play_episodes_sync(LAPTOP, [ShownPolicy(inner=teacher)] * 2, SUITE, [5])
    for player, sample in enumerate(samples):
        conversation, spoken = Conversation(chat, ""), []
        for turn in episode.trajectory(player):
            conversation.ask(turn.prompt)
            reply = [*chat.tokenizer.encode(turn.reply, add_special_tokens=False), chat.eos_id]
            conversation.answer(reply)
            spoken += reply
        assert list(sample.ids) == conversation.ids
        assert [token for token, own in zip(sample.ids, sample.is_reply, strict=True) if own] == spoken
    assert len(samples) == 2


def test_a_single_turn_is_a_conversation_that_begins_there() -> None:
    chat = ChatFormat.from_tokenizer(build_tokenizer(WORDS))
    teacher = HintBot(noise=0.4)
    [episode] = play_episodes_sync(LAPTOP, [ShownPolicy(inner=teacher)] * 2, SUITE, [2])
    [sample, _] = play_corpus(LAPTOP, teacher, chat, first_seed=2, num_games=1)
    turns = single_turns(sample)
    assert len(turns) == len(episode.trajectory(0)) > 1
    assert [token for turn in turns for token in turn.ids] == list(sample.ids)
    for turn, played in zip(turns, episode.trajectory(0), strict=True):
        reply = [*chat.tokenizer.encode(played.reply, add_special_tokens=False), chat.eos_id]
        assert list(turn.ids) == chat.open("", played.prompt) + reply
        assert sum(turn.is_reply) == len(reply)


def test_the_teacher_never_sees_a_deal_of_an_evaluation() -> None:
    assert not is_held_out(SUITE)


def test_the_folder_is_loaded_by_transformers_in_float32(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert sum(parameter.numel() for parameter in model.parameters()) == 590_912 + 128 * len(tokenizer)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 0)
    assert ChatFormat.from_tokenizer(tokenizer).eos_id == 2


def test_the_same_recipe_is_not_built_twice(folder: Path) -> None:
    assert not rebuilt(folder)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(folder: Path, tmp_path: Path) -> None:
    def weights(seed: int) -> bytes:
        made = build_tiny_model(tmp_path / str(seed), seed=seed, steps=2, num_games=40)
        return (made / "model.safetensors").read_bytes()

    assert weights(3) == (folder / "model.safetensors").read_bytes()
    assert weights(4) != weights(3)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_folder_with_a_torn_file_is_built_again(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    assert rebuilt(folder)
    assert (folder / name).read_bytes() == content


def test_a_folder_with_a_missing_file_is_built_again(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert rebuilt(folder)


def test_another_recipe_is_built_in_its_place(folder: Path) -> None:
    assert rebuilt(folder, steps=1)
    assert json.loads((folder / "tiny_model.json").read_text())["recipe"]["steps"] == 1
    assert rebuilt(folder)


def test_nothing_is_left_beside_the_folder(folder: Path) -> None:
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_somebody_elses_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunFolderError, match="did not make"):
        build_tiny_model(tmp_path, steps=1)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_recipe_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="steps=0"):
        build_tiny_model(tmp_path / "x", steps=0)


def test_a_recipe_hash_follows_the_recipe_and_the_data() -> None:
    recipe = Recipe(preset="laptop", players=2, legal_moves=False, seed=0)
    assert recipe.hash([1]) == recipe.hash([1])
    assert (
        len(
            {recipe.hash([1]), recipe.hash([2]), Recipe(preset="laptop", players=2, legal_moves=True, seed=0).hash([1])}
        )
        == 3
    )


def test_a_recipe_of_one_board_keeps_its_hash_and_the_order_of_boards_counts() -> None:
    one = Recipe(preset="laptop", players=2, legal_moves=False, seed=0)
    # Written out: folders that were made before there could be several boards are still found to be whole.
    assert one.hash([1]) == "d61be3a2e5f05685"
    two = replace(one, more_presets=("mini",))
    assert two.presets == ("laptop", "mini")
    assert len({recipe.hash([1]) for recipe in (one, two, replace(one, preset="mini", more_presets=("laptop",)))}) == 3


def test_a_model_of_several_boards_knows_the_words_of_all_and_learns_from_games_of_all(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    boards = ("laptop", "marshal-full")
    out = build_tiny_model(tmp_path / "two", preset=boards, seed=3, steps=2, num_games=20)
    tokenizer = AutoTokenizer.from_pretrained(out)
    for board in boards:
        words = compact_vocabulary(make_spec(board))
        assert tokenizer.unk_token_id not in tokenizer.encode(" ".join(words), add_special_tokens=False)
    assert tokenizer.encode("life1", add_special_tokens=False) == build_tokenizer(WORDS).encode("life1")
    recipe = json.loads((out / "tiny_model.json").read_text())["recipe"]
    assert (recipe["preset"], recipe["more_presets"], recipe["num_games"]) == ("laptop", ["marshal-full"], 20)
    stamp = (out / "model.safetensors").stat().st_mtime_ns
    build_tiny_model(out, preset=boards, seed=3, steps=2, num_games=20)
    assert (out / "model.safetensors").stat().st_mtime_ns == stamp
    build_tiny_model(out, preset="laptop", seed=3, steps=2, num_games=20)
    assert (out / "model.safetensors").stat().st_mtime_ns != stamp


def test_the_warm_start_reads_as_many_games_of_each_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def learn(model: object, samples: list[Sample], *args: object, **kwargs: object) -> None:
        seen.extend(" ".join(words[index] for index in sample.ids) for sample in samples)

    monkeypatch.setattr("hanabi_grpo.sft.tiny_model.warm_start.warm_start", learn)
    specs = [make_spec("laptop"), make_spec("marshal-full")]
    every = dict.fromkeys(word for spec in specs for word in compact_vocabulary(spec))
    words = build_tokenizer(tuple(every)).convert_ids_to_tokens(range(200))
    build_tiny_model(tmp_path / "two", preset=("laptop", "marshal-full"), seed=3, steps=2, num_games=20)
    full = [text for text in seen if "nextG" in text]
    assert len(full) == 40
    assert 20 < len(seen) - len(full) <= 40
    assert not any("<unk>" in text for text in seen)


def test_the_warm_start_computes_once_what_conversations_begin_with_alike() -> None:
    model = new_model(build_tokenizer(WORDS))
    assert not shares_prefixes(model)
    is_reply = (False, False, True, True)
    samples = [Sample(ids=(5, 6, last, 8), is_reply=is_reply) for last in (7, 9)]
    recipe = Recipe(preset="laptop", players=2, legal_moves=False, seed=0, steps=1, batch_size=2, single_turn_share=0)
    losses: list[float] = []
    warm_start(model, samples, recipe, pad_id=0, on_step=lambda step, loss: losses.append(loss))
    assert shares_prefixes(model) and len(losses) == 1


@pytest.mark.parametrize("presets", [("laptop", "laptop"), ()])
def test_boards_are_named_once_each(tmp_path: Path, presets: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match="name at least one board, and each once"):
        build_tiny_model(tmp_path / "x", preset=presets)
    with pytest.raises(HanabiGrpoError, match="'laptop' is for 2 players"):
        build_tiny_model(tmp_path / "x", preset=("mini", "laptop"), players=3)


def test_only_what_may_travel_is_left_of_a_peft_configuration() -> None:
    from peft import LoraConfig

    config = LoraConfig(
        r=8, target_modules=["v_proj", "q_proj"], task_type="CAUSAL_LM", base_model_name_or_path="/secret"
    )
    wire = adapter_config_for_wire(config.to_dict())
    assert json.loads(json.dumps(wire)) == wire
    assert (wire["peft_type"], wire["r"], wire["target_modules"]) == ("LORA", 8, ["q_proj", "v_proj"])
    assert set(wire) <= WIRE_KEYS
