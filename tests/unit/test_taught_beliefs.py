"""`--beliefs`: questions about hidden cards among what a warm start and a tiny model learn."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from boards import scripted_episodes
from fake_engine import CHAT, LAPTOP, TOKENIZER
from hanabi_grpo.cli import app
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.saved_adapters import read_adapters
from hanabi_grpo.settings import Settings
from hanabi_grpo.sft.beliefs import parse_shares
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.run import WarmStart, Watcher
from hanabi_grpo.sft.samples import Sample, data_digest, length_batches
from hanabi_grpo.sft.sources import Sources
from hanabi_grpo.sft.tiny_model import Recipe, build_tiny_model
from hanabi_grpo.sft.tiny_model.network import _batch_size, single_turns
from hanabi_grpo.types import Episode
from small_models import SHIPPED, untaught_model

SETUP = Setup(HANABI, LAPTOP)
GAMES = scripted_episodes(LAPTOP, ["hint-bot"] * 2, range(40))


def samples_of(
    shares: tuple[float, ...], config: EnvConfig = LAPTOP, games: Sequence[Episode] = GAMES
) -> list[Sample]:
    encoder = Encoder(
        setup=Setup(HANABI, config),
        chat=CHAT,
        max_model_len=1024,
        max_completion_length=4,
        belief_shares=shares,
    )
    samples = []
    for number, game in enumerate(games):
        recording = Recording(episode=game, number=number)
        samples += encoder.samples(recording, [True] * len(game.turns))
    return samples


def is_asked(sample: Sample) -> bool:
    return sample.question_start is not None


def num_replies(samples: Sequence[Sample]) -> int:
    """Return how many replies end in some samples."""
    count = 0
    for sample in samples:
        pairs = zip(sample.ids, sample.is_reply, strict=True)
        count += sum(token == CHAT.eos_id and bool(is_reply) for token, is_reply in pairs)
    return count


def test_without_the_option_the_samples_are_those_of_before() -> None:
    plain = samples_of(())
    assert data_digest([s for s in samples_of((0.3, 0.3)) if not is_asked(s)]) == data_digest(plain)
    assert data_digest(samples_of((0.3, 0.3))) != data_digest(plain)


def test_a_question_stands_behind_a_turns_message_and_its_answer_is_the_card() -> None:
    """Of each turn of the game every card is asked for: 3 / (1 + 3) of the replies are answers."""
    [game] = GAMES[:1]
    asked = [sample for sample in samples_of((0.75, 0.75), games=[game]) if is_asked(sample)]
    plain = {sample.player: sample for sample in samples_of((), games=[game])}
    expected: Counter[tuple[int, str]] = Counter()
    state = HANABI.reset(LAPTOP, split=game.suite, seed=game.seed)
    for turn in game.turns:
        player = turn.player
        for slot, card in enumerate(state.table.hands[player]):
            text = f"{state.message(player)} me slot{slot} <|im_end|> <|im_start|> assistant {card}"
            expected[player, f"{text} <|im_end|>"] += 1
        state.step({player: turn.action})
    found: Counter[tuple[int, str]] = Counter()
    for sample in asked:
        start = sample.question_start
        assert start is not None
        last_turn = TOKENIZER.decode(list(sample.ids[start:]))
        found[sample.player, last_turn.removeprefix("<|im_start|> user ")] += 1
        # What is before the asked turn is what the player has read and said before it.
        conversation = plain[sample.player]
        assert sample.ids[:start] == conversation.ids[:start]
        assert start == 0 or conversation.ids[start - 1] == CHAT.eos_id
        assert list(sample.is_reply) == [0] * (len(sample.ids) - 2) + [1, 1]
    assert found == expected


def test_with_a_memory_of_one_turn_a_question_is_a_conversation_of_one_turn() -> None:
    one_turn = LAPTOP.model_copy(update={"memory": "turn"})
    asked = [sample for sample in samples_of((0.5, 0.5), one_turn) if is_asked(sample)]
    assert {sample.question_start for sample in asked} == {0}
    for sample in asked:
        assert TOKENIZER.decode(list(sample.ids)).count("assistant") == 1


def test_the_share_is_of_the_learned_replies_of_each_seat() -> None:
    samples = samples_of((0.3, 0.0))
    first = [sample for sample in samples if sample.player == 0]
    asked = [sample for sample in samples if is_asked(sample)]
    assert {sample.player for sample in asked} == {0}
    assert num_replies(asked) / num_replies(first) == pytest.approx(0.3, abs=0.06)
    assert samples_of((0.3, 0.0)) == samples, "the draw is the same each time"
    # Three cards are all that can be asked for.
    most = samples_of((0.9, 0.9))
    assert num_replies([s for s in most if is_asked(s)]) == 3 * num_replies(samples_of(()))


def test_only_of_turns_that_are_learned_questions_are_asked() -> None:
    [game] = GAMES[:1]
    encoder = Encoder(
        setup=SETUP,
        chat=CHAT,
        max_model_len=1024,
        max_completion_length=4,
        belief_shares=(0.75,) * 2,
    )
    is_taught = [turn.player == 1 for turn in game.turns]
    samples = encoder.samples(Recording(episode=game), is_taught)
    assert {sample.player for sample in samples} == {1}
    assert encoder.counts["answers"] == 3 * sum(is_taught)
    assert f"{3 * sum(is_taught)} answers to questions about hidden cards" in encoder.line()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1", "must be at least 0 and below 1"),
        ("-0.1", "must be at least 0 and below 1"),
        ("player_0=0.3", "adapter player_1 has no value; add an entry"),
        ("player_2=0.3,0", "player_2 is not a player of this game; allowed are player_0, player_1"),
        ("much", "give a share for all players, or one for each"),
    ],
)
def test_shares_that_are_none_are_refused(value: str, message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_shares(value, SETUP)
    assert str(refused.value).startswith("--beliefs")
    assert message in str(refused.value)


def test_shares_are_of_all_seats_or_of_each() -> None:
    assert parse_shares("0.3", SETUP) == (0.3, 0.3)
    assert parse_shares("player_0=0.2,0.1", SETUP) == (0.2, 0.1)
    assert parse_shares("0", SETUP) == parse_shares(0.0, SETUP) == ()
    with pytest.raises(SettingsError, match=r"kuhn kuhn has no questions for its players"):
        parse_shares("0.3", registry.setup("kuhn", {}))
    assert parse_shares("0.3", registry.setup("kuhn_poker", {"preset": "kuhn_poker"})) == (0.3, 0.3)


# --- Learning


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows nothing."""
    return untaught_model(tmp_path_factory.mktemp("base") / "model", TOKENIZER)


def learn(base: Path, out: Path, beliefs: str, **changes: Any) -> list[tuple[str, dict[str, Any]]]:
    options: dict[str, Any] = {
        "num_tasks": 60,
        "steps": 4,
        "full": False,
        "resume": False,
        "said": [],
        "config": LAPTOP,
        "rate": 1e-2,
    }
    options.update(changes)
    said = options.pop("said")
    rate = options.pop("rate")
    start = WarmStart(
        settings=Settings(model=str(base), lora_rank=16, lora_alpha=32, seed=7),
        setup=Setup(HANABI, options.pop("config")),
        sources=Sources(lineups=("hint-bot",), num_tasks=options.pop("num_tasks"), noise=0.2),
        out=out,
        batch=16,
        learning_rate=rate,
        shared=False,
        every_start=False,
        beliefs=beliefs,
        **options,
    )
    watcher = Watcher(say=said.append, show=lambda *progress: None, should_stop=lambda: False)
    return [(label, dict(row)) for label, row in start.run(watcher)]


@pytest.mark.rest
def test_answers_are_learned_beside_moves(tmp_path: Path) -> None:
    """The shipped tiny model was never asked: an answer costs it more than 15 nats.

    After 120 steps it answers about as well as one that only counts the deck's cards (three R1,
    three Y1, one R2, one Y2): -6/8 log 3/8 - 2/8 log 1/8 = 1.26 nats.
    """
    one_turn = LAPTOP.model_copy(update={"memory": "turn"})
    said: list[str] = []
    rows = learn(
        SHIPPED,
        tmp_path / "out",
        "0.5",
        num_tasks=300,
        steps=120,
        full=True,
        rate=3e-3,
        config=one_turn,
        said=said,
    )
    [before, best, _] = [row for _, row in rows]
    for player in ("player_0", "player_1"):
        assert before["beliefs"][player]["loss"] > 15
        assert best["beliefs"][player]["loss"] < 1.8
        assert best["beliefs"][player]["num_answers"] > 40
        assert any(f"{player} {best['beliefs'][player]['loss']:.3f}" in line for line in said)
    assert best["objective"] < before["objective"]
    assert best["accuracy"] >= before["accuracy"] - 0.03
    assert best["accuracy"] > 0.8
    facts = json.loads((tmp_path / "out" / "model" / "warm_start.json").read_text())
    assert facts["key"]["beliefs"] == "0.5"
    assert set(facts["best"][0]["beliefs"]) == {"player_0", "player_1"}


def test_every_batch_has_moves_and_answers() -> None:
    """In batches of one kind a model moves at one step and answers at the next."""
    one_turn = LAPTOP.model_copy(update={"memory": "turn"})
    samples = samples_of((0.5, 0.5), one_turn)
    share = sum(map(is_asked, samples)) / len(samples)
    batches = length_batches(samples, 0, 20)
    num_seen = 0
    while num_seen < len(samples):
        batch = next(batches)
        num_seen += len(batch)
        if len(batch) == 20:
            assert abs(sum(map(is_asked, batch)) / 20 - share) <= 0.05


def test_a_player_that_is_asked_nothing_learns_what_it_would_without(
    base: Path, tmp_path: Path
) -> None:
    rows = learn(base, tmp_path / "asked", "player_0=0.5,player_1=0")
    learn(base, tmp_path / "plain", "0")
    assert {row["name"] for _, row in rows if "beliefs" in row} == {"player_0"}
    asked = read_adapters(tmp_path / "asked" / "checkpoint-0").adapters
    plain = read_adapters(tmp_path / "plain" / "checkpoint-0").adapters
    assert asked["player_1"][0] == plain["player_1"][0]
    assert asked["player_0"][0] != plain["player_0"][0]
    with pytest.raises(SettingsError, match=r"beliefs was player_0=0\.5,player_1=0, is now 0\.5"):
        learn(base, tmp_path / "asked", "0.5", resume=True)


def test_a_whole_model_shows_the_belief_loss_of_each_seat(base: Path, tmp_path: Path) -> None:
    rows = learn(base, tmp_path / "out", "0.5", full=True)
    assert {tuple(row["beliefs"]) for _, row in rows} == {("player_0", "player_1")}
    # As many moves are measured as without questions.
    plain = learn(base, tmp_path / "plain", "0", full=True)
    assert rows[0][1]["num_replies"] == plain[0][1]["num_replies"]
    assert rows[0][1]["loss"] == pytest.approx(plain[0][1]["loss"], rel=1e-6)


# --- The tiny model

ASKED = Recipe.of("hanabi", seed=3, steps=1, num_games=20, beliefs=0.4)


def test_the_recipe_names_the_share_and_without_it_has_its_old_hash() -> None:
    plain = replace(ASKED, beliefs=0.0)
    chat = ASKED.chat()
    assert ASKED.hash(chat) != plain.hash(chat)
    assert plain.hash(chat) == replace(ASKED, beliefs="0").hash(chat)


def test_a_step_of_a_tiny_model_has_as_many_replies_with_questions_as_without() -> None:
    chat = ASKED.chat()
    [setup] = ASKED.setups()
    plain = list(replace(ASKED, beliefs=0.0).samples(setup, chat, 60))
    asked = list(ASKED.samples(setup, chat, 60))
    per_step = {}
    for name, samples in (("plain", plain), ("asked", asked)):
        size = _batch_size(samples, ASKED.batch_size)
        per_step[name] = size * num_replies(samples) / len(samples)
    assert _batch_size(plain, ASKED.batch_size) == ASKED.batch_size
    assert per_step["asked"] == pytest.approx(per_step["plain"], rel=0.03)


def test_the_turn_of_a_question_is_split_off_its_conversation() -> None:
    [setup] = ASKED.setups()
    asked = [sample for sample in ASKED.samples(setup, ASKED.chat(), 10) if is_asked(sample)]
    later = next(sample for sample in asked if sample.question_start)
    [turn] = single_turns(later)
    assert turn.ids == later.ids[later.question_start :]
    assert sum(turn.is_reply) == 2
    assert ASKED.chat().tokenizer.decode(list(turn.ids)).startswith("<|im_start|> user life")


def test_a_tiny_model_keeps_its_held_out_figures(tmp_path: Path, capsys: Any) -> None:
    folder = build_tiny_model(tmp_path / "model", ASKED)
    manifest = json.loads((folder / "tiny_model.json").read_text())
    figures = manifest["held_out"]["laptop"]
    assert set(figures["beliefs"]) == {"player_0", "player_1"}
    assert manifest["recipe"]["beliefs"] == 0.4
    assert "--beliefs 0.4" in (folder / "README.md").read_text()
    text = capsys.readouterr().err
    agreement = f"agreement {figures['accuracy']:.3f}"
    belief = f"player_0 {figures['beliefs']['player_0']['loss']:.3f}"
    assert f"{agreement}; belief loss in nats per answer: {belief}" in " ".join(text.split())


def test_the_commands_refuse_a_share_that_is_none(tmp_path: Path) -> None:
    for words in (
        ["tiny-model", "--preset", "mini", "--out", str(tmp_path / "tiny"), "--beliefs", "2"],
        ["warm-start", "hint-bot", "--out", str(tmp_path / "warm"), "--beliefs", "2"],
    ):
        result = CliRunner().invoke(app, words)
        assert (result.exit_code, "--beliefs 2" in result.stderr) == (2, True), result.output
