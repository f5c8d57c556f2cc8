"""From games to token ids: the same as in a rollout, with the replies marked that are learned."""

import asyncio
import dataclasses
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fake_engine import CHAT, LAPTOP, TOKENIZER, FakeEngine
from hanabi_grpo.agents.served_model import Model, ServedPlayer
from hanabi_grpo.envs.base import Setup, is_held_out
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.rollout.recordings import write_recordings
from hanabi_grpo.rollout.sampler import SamplingConfig
from hanabi_grpo.rollout.vocabulary import game_words
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.samples import Sample, data_digest, length_batches, split_held_out
from hanabi_grpo.sft.sources import SUITE, Sources
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer
from hanabi_grpo.types import Episode, ReplyKind
from made_games import made_episode
from toy_environments import DILEMMA
from toy_kuhn import KUHN

SETUP = Setup(HANABI, LAPTOP)
POKER = Setup(KUHN, KUHN.presets["kuhn"])
END = "<|im_end|>"


def make_encoder(
    setup: Setup[Any] = SETUP,
    chat: ChatFormat = CHAT,
    *,
    max_model_len: int = 1024,
    max_completion_length: int = 4,
) -> Encoder:
    return Encoder(
        setup=setup,
        chat=chat,
        max_model_len=max_model_len,
        max_completion_length=max_completion_length,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScriptGame:
    """A game of scripts."""

    episode: Episode
    is_taught: list[bool]
    """For each turn, whether the script chose its action; the others were drawn."""


def script_games(
    lineup: str = "hint-bot", noise: float = 0.0, num: int = 3, setup: Setup[Any] = SETUP
) -> list[ScriptGame]:
    sources = Sources(lineups=(lineup,), num_tasks=num, noise=noise)
    of_lineup = sources.lineup_games(lineup, setup, seed=0)
    games = []
    for task in range(num):
        recording, is_taught = of_lineup.play(task)
        games.append(ScriptGame(episode=recording.episode, is_taught=is_taught))
    return games


def script_episode(lineup: str = "hint-bot", setup: Setup[Any] = SETUP) -> Episode:
    [game] = script_games(lineup, num=1, setup=setup)
    return game.episode


def served_game(
    texts: Sequence[str], *, seed: int = 0, max_model_len: int = 1024, setup: Setup[Any] = SETUP
) -> Episode:
    """Play a game of a served model that replies with these texts.

    Its turns carry the rollout's own token ids.
    """
    model = Model(sampler=FakeEngine(texts), chat=CHAT, max_model_len=max_model_len)
    policy = ServedPlayer(model=model, sampling=SamplingConfig(max_tokens=4))
    return asyncio.run(play_episode(setup.task(SUITE, seed), [policy] * 2))


def rollout_ids(episode: Episode, player: int) -> list[int]:
    """Return the ids of a player's whole conversation in a rollout."""
    ids: list[int] = []
    for turn in episode.trajectory(player):
        ids += turn.prompt_ids
        ids += turn.reply_ids
    return ids


def reply_ids(episode: Episode, player: int) -> list[int]:
    """Return the ids of all replies of a player in a rollout."""
    ids: list[int] = []
    for turn in episode.trajectory(player):
        ids += turn.reply_ids
    return ids


def samples_of(
    episode: Episode, is_taught: Sequence[bool] | None = None, encoder: Encoder | None = None
) -> list[Sample]:
    """Return the samples of a game, every reply taught unless said otherwise."""
    encoder = encoder or make_encoder()
    if is_taught is None:
        is_taught = [True] * len(episode.turns)
    return encoder.samples(Recording(episode=episode), is_taught)


def marked_ids(sample: Sample) -> list[int]:
    """Return the ids that are learned."""
    pairs = zip(sample.ids, sample.is_reply, strict=True)
    return [token for token, is_reply in pairs if is_reply]


def read(
    *paths: Path, setup: Setup[Any] = SETUP, say: Callable[[str], None] = print, **filters: Any
) -> list[Sample]:
    """Return the samples of recorded games."""
    sources = Sources(paths=paths, num_tasks=5, noise=0.0, **filters)
    samples = []
    for of_game in sources.samples(make_encoder(setup), seed=0, say=say):
        samples += of_game
    return samples


def test_a_scripts_game_has_the_ids_that_a_rollout_with_these_replies_has() -> None:
    for game in script_games(noise=0.5):
        replies = [turn.reply for turn in game.episode.turns]
        served = served_game(replies, seed=game.episode.seed)
        assert [turn.action for turn in served.turns] == [
            turn.action for turn in game.episode.turns
        ]
        for sample in samples_of(game.episode):
            assert list(sample.ids) == rollout_ids(served, sample.player)
            assert marked_ids(sample) == reply_ids(served, sample.player)


def test_random_moves_are_read_but_not_learned() -> None:
    games = script_games("blind", noise=0.5, num=20)
    for game in games:
        pairs = zip(game.episode.turns, game.is_taught, strict=True)
        own_turns = [turn for turn, taught in pairs if taught]
        assert {turn.action for turn in own_turns} <= {"Play 0"}, "all that the script ever does"
        for sample in samples_of(game.episode, game.is_taught):
            learned = TOKENIZER.decode(marked_ids(sample)).replace(END, "").split()
            replies = [turn.reply for turn in own_turns if turn.player == sample.player]
            assert learned == " ".join(replies).split()
            assert sample.is_reply[-1] == 1, "nothing follows the last reply that is learned"
    num_random = sum(game.is_taught.count(False) for game in games)
    num_turns = sum(len(game.episode.turns) for game in games)
    assert 0.2 < num_random / num_turns < 0.7
    assert not is_held_out(SUITE)


def chat_for(setup: Setup[Any]) -> ChatFormat:
    """Return a chat format that knows the words of an environment."""
    return ChatFormat.from_tokenizer(build_tokenizer(game_words(setup)))


def learned_words(sample: Sample, chat: ChatFormat) -> list[str]:
    return chat.tokenizer.decode(marked_ids(sample)).split()


def test_another_environment_can_be_learned_from() -> None:
    chat = chat_for(POKER)
    [game] = script_games("equilibrium-0.2,random", num=1, setup=POKER)
    first, second = samples_of(game.episode, game.is_taught, make_encoder(POKER, chat))
    card = POKER.environment.start_id(POKER.config, split=SUITE, seed=0)[0]
    text = chat.tokenizer.decode(list(first.ids))
    assert text.startswith("<|im_start|> system You are the first player")
    assert f"Your card is {card}." in text
    for player, sample in enumerate((first, second)):
        expected = []
        for turn in game.episode.trajectory(player):
            expected += [turn.action, END]
        assert learned_words(sample, chat) == expected


def test_all_players_who_act_at_once_have_a_sample() -> None:
    toy = Setup(DILEMMA, DILEMMA.presets["toy"])
    chat = chat_for(toy)
    policies = dict.fromkeys(range(3), DILEMMA.policies["taker"]())
    episode = play_scripts(toy.task(SUITE, 0), policies)
    samples = samples_of(episode, encoder=make_encoder(toy, chat))
    assert [sample.player for sample in samples] == [0, 1, 2]
    for sample in samples:
        assert learned_words(sample, chat) == ["take", END] * toy.config.rounds


@pytest.mark.parametrize("thought", ["", "<think> life1 </think> "])
@pytest.mark.parametrize("memory", ["turn", 3])
def test_with_a_window_each_turn_is_a_sample_of_which_the_last_reply_is_learned(
    memory: object, thought: str
) -> None:
    setup = Setup(HANABI, LAPTOP.model_copy(update={"memory": memory}))
    episode = script_episode()
    replies = [thought + turn.reply for turn in episode.turns]
    served = served_game(replies, seed=episode.seed, setup=setup)
    thought_ids = set(TOKENIZER.encode(thought, add_special_tokens=False))
    thought_ids -= set(TOKENIZER.encode("life1"))
    for turn in served.turns:
        assert thought_ids.isdisjoint(turn.prompt_ids)
        assert thought_ids <= set(turn.reply_ids)
    encoder = make_encoder(setup, max_completion_length=9)
    samples = samples_of(served, encoder=encoder)
    assert encoder.counts["recorded"] == len(served.turns), "no reply is encoded from its text"
    turns = [*served.trajectory(0), *served.trajectory(1)]
    for sample, turn in zip(samples, turns, strict=True):
        assert list(sample.ids) == [*turn.prompt_ids, *turn.reply_ids]
        assert marked_ids(sample) == list(turn.reply_ids)


def test_recorded_ids_are_used_where_the_tokenizer_is_the_same() -> None:
    episode = served_game(["Play 0", "Hint R"] * 20)
    encoder = make_encoder()
    samples_of(episode, encoder=encoder)
    assert encoder.counts["recorded"] == len(episode.turns)
    assert encoder.counts["encoded"] == 0


def test_a_reply_that_was_cut_is_learned_as_it_was_recorded() -> None:
    episode = served_game(["Play 0", "Hint R"] * 20)
    play = TOKENIZER.encode("Play 0", add_special_tokens=False)
    # The engine closed its replies; a text that is encoded is closed too, so a cut reply tells the
    # recorded ids from encoded ones.
    cut = with_first_reply(episode, episode.turns[0].reply_ids[:-1])
    [first, *_] = samples_of(cut)
    assert marked_ids(first)[: len(play)] == play


def test_an_id_that_the_model_does_not_have_is_never_used() -> None:
    episode = served_game(["Play 0", "Hint R"] * 20)
    play = TOKENIZER.encode("Play 0", add_special_tokens=False)
    foreign = with_first_reply(episode, (*episode.turns[0].reply_ids[:-1], 99999))
    [first, *_] = samples_of(foreign)
    assert marked_ids(first)[: len(play) + 1] == [*play, 2]


def with_first_reply(episode: Episode, ids: tuple[int, ...]) -> Episode:
    """Return the game with other ids of its first reply."""
    first, *others = episode.turns
    changed = dataclasses.replace(first, reply_ids=ids, logprobs=(-0.5,) * len(ids))
    return dataclasses.replace(episode, turns=(changed, *others))


def test_another_tokenizer_encodes_the_texts() -> None:
    episode = served_game(["Play 0", "Hint R"] * 20)
    [whole, *_] = samples_of(episode)
    other = ChatFormat.from_tokenizer(build_tokenizer(compact_vocabulary(LAPTOP.spec())[::-1]))
    encoder = make_encoder(chat=other)
    [first, *_] = samples_of(episode, encoder=encoder)
    assert encoder.counts["recorded"] == 0
    assert encoder.counts["encoded"] == len(episode.turns)
    assert other.tokenizer.decode(list(first.ids)) == TOKENIZER.decode(list(whole.ids))


def has_legal_and_illegal_replies(episode: Episode) -> bool:
    """Tell whether both players were right and wrong."""
    for player in (0, 1):
        kinds = {turn.kind for turn in episode.trajectory(player)}
        if len(kinds) < 2:
            return False
    return True


def test_illegal_replies_are_read_and_not_learned() -> None:
    replies = ["Hint R", "Hint 1", "nonsense", "Play 7"] * 10
    games = (served_game(replies, seed=seed) for seed in range(200))
    episode = next(game for game in games if has_legal_and_illegal_replies(game))
    is_taught = Sources(lineups=("iggi",), num_tasks=1, noise=0).taught(
        Recording(episode=episode), "score"
    )
    assert is_taught == tuple(turn.kind is ReplyKind.LEGAL for turn in episode.turns)
    for legal_only, whole in zip(samples_of(episode, is_taught), samples_of(episode), strict=True):
        assert list(whole.ids) == rollout_ids(episode, whole.player)
        assert legal_only.ids == whole.ids[: len(legal_only.ids)], "the conversation is the same"
        assert len(marked_ids(legal_only)) < len(marked_ids(whole))


def learned_from(min_score: float) -> Sources:
    return Sources(lineups=("random",), num_tasks=1, noise=0, min_score=min_score)


def test_a_return_that_decides_what_is_learned_is_the_players_own() -> None:
    episode = script_episode("random", setup=POKER)
    winner = 0 if episode.reward(0) > 0 else 1
    is_taught = learned_from(1).taught(Recording(episode=episode), "return")
    assert is_taught == tuple(turn.player == winner for turn in episode.turns)


def test_games_below_the_lowest_score_are_not_learned() -> None:
    game = Recording(episode=script_episode())
    score = game.episode.result["score"]
    assert set(learned_from(score).taught(game, "score")) == {True}
    assert set(learned_from(score + 1).taught(game, "score")) == {False}
    empty = Recording(episode=made_episode(score=3))
    assert learned_from(1).taught(empty, "score") == (), "it has no turns"


def test_a_conversation_is_cut_where_the_rollout_would_cut_it() -> None:
    episode = script_episode()
    limit = len(samples_of(episode)[0].ids) - 5
    replies = [turn.reply for turn in episode.turns]
    served = served_game(replies, seed=episode.seed, max_model_len=limit)
    encoder = make_encoder(max_model_len=limit)
    [first, *_] = samples_of(episode, encoder=encoder)
    assert list(first.ids) == rollout_ids(served, 0)
    assert encoder.counts["cut"] >= 1


def test_a_reply_that_no_rollout_could_generate_is_refused() -> None:
    with pytest.raises(SettingsError, match="MAX_COMPLETION_LENGTH=2"):
        samples_of(script_episode(), encoder=make_encoder(max_completion_length=2))


def test_recorded_games_are_read_back_as_they_were_played(tmp_path: Path) -> None:
    recordings = [Recording(episode=game.episode) for game in script_games(num=5)]
    write_recordings(tmp_path / "games.jsonl", recordings)
    assert data_digest(read(tmp_path)) == data_digest(read(lineups=("hint-bot",)))


def test_one_policy_of_recorded_games_can_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    games = script_games("iggi,hint-bot")
    write_recordings(path, [Recording(episode=game.episode) for game in games])
    assert {sample.player for sample in read(path)} == {0, 1}
    assert {sample.player for sample in read(path, who="hint-bot")} == {1}
    assert read(path, who="piers") == []


def test_one_person_or_one_seat_of_recorded_games_can_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "people.jsonl"
    games = []
    for number, game in enumerate(script_games()):
        episode = dataclasses.replace(game.episode, seats=("human", "human"))
        names = ("Ann", "Bo") if number else ("Bo", "Cy")
        games.append(Recording(episode=episode, names=names))
    write_recordings(path, games)
    everything = read(path)
    assert data_digest(read(path, who="human")) == data_digest(everything)
    assert [sample.player for sample in read(path, who="Bo")] == [0, 1, 1]
    assert [sample.player for sample in read(path, who="Ann")] == [0, 0]
    assert [sample.player for sample in read(path, who="Bo", seats=(1,))] == [1, 1]
    assert [sample.player for sample in read(path, seats=(1,))] == [1, 1, 1]
    assert data_digest(read(path, seats=(0, 1))) == data_digest(everything)


def test_a_persons_game_is_learned_in_other_prompts_than_those_it_was_played_with() -> None:
    """A person chooses an action, whatever the words; what the model beside it reads is not used.

    With two players a hint has no target in the compact style.
    """
    said = {"Hint R": "Hint player_1 red", "Hint 1": "Hint player_1 1"}
    episode = served_game([*said, "Play 0"] * 20)
    turns = []
    for turn in episode.turns:
        if turn.player == 0:
            text = said.get(turn.reply, turn.reply)
            turn = dataclasses.replace(
                turn, prompt=f"other words: {turn.prompt}", reply=text, action=text, reply_ids=()
            )
        else:
            turn = dataclasses.replace(turn, prompt=f"other words: {turn.prompt}")
        turns.append(turn)
    played = dataclasses.replace(episode, turns=tuple(turns))
    is_taught = [turn.player == 0 for turn in played.turns]
    expected = samples_of(episode, is_taught)
    [sample] = samples_of(played, is_taught)
    assert (sample.ids, sample.is_reply) == (expected[0].ids, expected[0].is_reply)
    with pytest.raises(SettingsError, match="other words"):
        samples_of(played)


def test_held_out_suites_are_warned_of(tmp_path: Path) -> None:
    spoiled = dataclasses.replace(script_episode(), suite="eval", turns=())
    write_recordings(tmp_path / "games.jsonl", [Recording(episode=spoiled)])
    notes: list[str] = []
    assert read(tmp_path, say=notes.append) == []
    assert "suite eval is held out" in notes[0]


@pytest.mark.parametrize("name", ["mini", "kuhn"])
def test_games_of_another_board_or_environment_are_refused(tmp_path: Path, name: str) -> None:
    mini = Setup(HANABI, LAPTOP.model_copy(update={"preset": "mini"}))
    setup = mini if name == "mini" else POKER
    write_recordings(tmp_path / "games.jsonl", [Recording(episode=script_episode())])
    with pytest.raises(
        SettingsError, match=rf"a game of laptop .* with 2 players, expected {name}"
    ):
        read(tmp_path, setup=setup)


def test_games_with_other_prompts_are_refused() -> None:
    with_legal_moves = Setup(HANABI, LAPTOP.model_copy(update={"legal_moves": True}))
    with pytest.raises(SettingsError, match="HANABI_LEGAL_MOVES"):
        samples_of(served_game(["Play 0"] * 20), encoder=make_encoder(with_legal_moves))


@pytest.mark.parametrize("change", [{"action": "Discard 0"}, {"action": "dance"}, {"player": 1}])
def test_records_that_the_rules_forbid_are_refused(change: dict[str, Any]) -> None:
    episode = script_episode()
    first, *others = episode.turns
    damaged = dataclasses.replace(episode, turns=(dataclasses.replace(first, **change), *others))
    with pytest.raises(SettingsError, match="turn 0"):
        samples_of(damaged)


def test_a_deck_is_on_one_side_whatever_its_seed() -> None:
    samples = []
    for game in script_games(num=40):
        samples += samples_of(game.episode)
    twins = [dataclasses.replace(sample, player=1 - sample.player) for sample in samples]
    taught, held_out = split_held_out([*samples, *twins])
    taught_starts = {sample.start for sample in taught}
    held_out_starts = {sample.start for sample in held_out}
    assert taught_starts.isdisjoint(held_out_starts)
    all_starts = {sample.start for sample in samples}
    assert len(held_out_starts) == round(len(all_starts) / 10)
    with pytest.raises(SettingsError, match="at least 2"):
        split_held_out(samples[:2])


@pytest.mark.parametrize(("num", "size"), [(1, 9), (60, 1), (59, 7), (300, 3)])
def test_each_pass_holds_every_sample_once(num: int, size: int) -> None:
    sample = Sample(player=0, start=0, ids=array("i", [1, 5]), is_reply=array("b", [0, 1]))
    samples = [dataclasses.replace(sample, start=number) for number in range(num)]
    batches = length_batches(samples, 0, size)
    for _ in range(2):
        starts: list[int] = []
        while len(starts) < num:
            starts += [sample.start for sample in next(batches)]
        assert sorted(starts) == list(range(num))
