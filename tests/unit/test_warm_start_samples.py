"""From games to token ids: the same ones as in a rollout, with exactly the replies marked that are
to be learned.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fake_engine import CHAT, LAPTOP, TOKENIZER, FakeEngine
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
from hanabi_grpo.server.seats import Model, ServedPlayer
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


def encoder(setup: Setup[Any] = SETUP, chat: ChatFormat = CHAT, **limits: int) -> Encoder:
    return Encoder(
        setup=setup, chat=chat, **{"max_model_len": 1024, "max_completion_length": 4, **limits}
    )


def taught_games(
    words: str = "hint-bot", noise: float = 0.0, num: int = 3, setup: Setup[Any] = SETUP
) -> list[tuple[Episode, list[bool]]]:
    sources = Sources(lineups=(words,), num_tasks=num, noise=noise)
    return [(game.episode, list(is_own)) for game, is_own in sources._games(setup, 0, print)]


def served_game(
    texts: Sequence[str], *, seed: int = 0, max_model_len: int = 1024, setup: Setup[Any] = SETUP
) -> Episode:
    """A game of a served model that says these texts; its turns carry the rollout's own ids."""
    model = Model(sampler=FakeEngine(texts), chat=CHAT, max_model_len=max_model_len)
    policy = ServedPlayer(model=model, sampling=SamplingConfig(max_tokens=4))
    return asyncio.run(play_episode(setup.task(SUITE, seed), [policy] * 2))


def rollout_ids(episode: Episode, player: int) -> list[int]:
    return [
        token
        for turn in episode.trajectory(player)
        for token in (*turn.prompt_ids, *turn.reply_ids)
    ]


def samples_of(
    episode: Episode, taught: Sequence[bool] | None = None, made: Encoder | None = None
) -> list[Sample]:
    made = made or encoder()
    taught = [True] * len(episode.turns) if taught is None else taught
    return made.samples(Recording(episode=episode), taught)


def marked(one: Sample) -> list[int]:
    return [token for token, is_own in zip(one.ids, one.is_reply, strict=True) if is_own]


def read(
    *paths: Path, setup: Setup[Any] = SETUP, say: Callable[[str], None] = print, **chosen: Any
) -> list[Sample]:
    what = Sources(paths=paths, num_tasks=5, noise=0.0, **chosen)
    return [one for own in what.samples(encoder(setup), seed=0, say=say) for one in own]


def test_a_scripts_game_has_the_ids_that_a_rollout_with_these_replies_has() -> None:
    for episode, _ in taught_games(noise=0.5):
        served = served_game([turn.reply for turn in episode.turns], seed=episode.seed)
        assert [turn.action for turn in served.turns] == [turn.action for turn in episode.turns]
        for one in samples_of(episode):
            assert list(one.ids) == rollout_ids(served, one.player)
            assert marked(one) == [
                token for turn in served.trajectory(one.player) for token in turn.reply_ids
            ]


def test_random_moves_are_read_but_not_learned() -> None:
    games = taught_games("blind", noise=0.5, num=20)
    for episode, taught in games:
        own = [turn for turn, is_own in zip(episode.turns, taught, strict=True) if is_own]
        assert {turn.action for turn in own} <= {"Play 0"}, "all that the script ever does"
        for one in samples_of(episode, taught):
            kept = " ".join(turn.reply for turn in own if turn.player == one.player)
            assert TOKENIZER.decode(marked(one)).replace("<|im_end|>", "").split() == kept.split()
            assert one.is_reply[-1] == 1, "nothing follows the last reply that is learned"
    drawn = sum(taught.count(False) for _, taught in games)
    assert 0.2 < drawn / sum(len(episode.turns) for episode, _ in games) < 0.7
    assert not is_held_out(SUITE)


def test_any_environment_can_be_learned_from_and_all_who_act_at_once_are_asked() -> None:
    def words_of(setup: Setup[Any]) -> ChatFormat:
        return ChatFormat.from_tokenizer(build_tokenizer(game_words(setup)))

    def said(one: Sample, chat: ChatFormat) -> list[str]:
        return chat.tokenizer.decode(marked(one)).split()

    chat = words_of(POKER)
    [(episode, taught)] = taught_games("equilibrium-0.2,random", num=1, setup=POKER)
    first, second = samples_of(episode, taught, encoder(POKER, chat))
    card = POKER.environment.start_id(POKER.config, split=SUITE, seed=0)[0]
    text = chat.tokenizer.decode(list(first.ids))
    assert (
        text.startswith("<|im_start|> system You are the first player")
        and f"Your card is {card}." in text
    )
    assert [said(one, chat) for one in (first, second)] == [
        [word for turn in episode.trajectory(player) for word in (turn.action, "<|im_end|>")]
        for player in (0, 1)
    ]
    toy = Setup(DILEMMA, DILEMMA.presets["toy"])
    episode = play_scripts(toy.task(SUITE, 0), dict.fromkeys(range(3), DILEMMA.policies["taker"]()))
    chat = words_of(toy)
    three = samples_of(episode, made=encoder(toy, chat))
    rounds = toy.config.rounds
    assert [(one.player, said(one, chat)) for one in three] == [
        (p, ["take", "<|im_end|>"] * rounds) for p in range(3)
    ]


@pytest.mark.parametrize("thought", ["", "<think> life1 </think> "])
@pytest.mark.parametrize("memory", ["turn", 3])
def test_with_a_window_each_turn_is_a_sample_of_which_the_last_reply_is_learned(
    memory: object, thought: str
) -> None:
    setup = Setup(HANABI, LAPTOP.model_copy(update={"memory": memory}))
    [(episode, _)] = taught_games(num=1)
    served = served_game(
        [thought + turn.reply for turn in episode.turns], seed=episode.seed, setup=setup
    )
    thoughts = set(TOKENIZER.encode(thought, add_special_tokens=False)) - set(
        TOKENIZER.encode("life1")
    )
    assert all(
        thoughts.isdisjoint(turn.prompt_ids) and thoughts <= {*turn.reply_ids}
        for turn in served.turns
    )
    found = samples_of(served, made=(made := encoder(setup, max_completion_length=9)))
    assert made.counts["recorded"] == len(served.turns), "no reply is encoded from its text"
    turns = [turn for player in (0, 1) for turn in served.trajectory(player)]
    assert [list(one.ids) for one in found] == [
        [*turn.prompt_ids, *turn.reply_ids] for turn in turns
    ]
    assert [marked(one) for one in found] == [list(turn.reply_ids) for turn in turns]


def test_recorded_ids_are_used_where_the_tokenizer_is_the_same() -> None:
    # The engine closed its replies; a text that is encoded has the same ids, so a cut one tells the
    # two apart.
    episode = served_game(["Play 0", "Hint R"] * 20)
    [whole, *_] = samples_of(episode, made=(made := encoder()))
    assert (made.counts["recorded"], made.counts["encoded"]) == (len(episode.turns), 0)
    play = TOKENIZER.encode("Play 0", add_special_tokens=False)
    turn = episode.turns[0]
    for ids, expected in ((turn.reply_ids[:-1], play), ((*turn.reply_ids[:-1], 99999), [*play, 2])):
        changed = dataclasses.replace(turn, reply_ids=ids, logprobs=(-0.5,) * len(ids))
        [first, *_] = samples_of(dataclasses.replace(episode, turns=(changed, *episode.turns[1:])))
        assert marked(first)[: len(expected)] == expected, (
            "an id that the model does not have is never used"
        )
    other = ChatFormat.from_tokenizer(build_tokenizer(compact_vocabulary(LAPTOP.spec())[::-1]))
    [first, *_] = samples_of(episode, made=(made := encoder(chat=other)))
    assert (made.counts["recorded"], made.counts["encoded"]) == (0, len(episode.turns))
    assert other.tokenizer.decode(list(first.ids)) == TOKENIZER.decode(list(whole.ids))


def test_illegal_replies_are_read_and_not_learned() -> None:
    # The first task whose game is long enough for both players to be right and wrong.
    games = (
        served_game(["Hint R", "Hint 1", "nonsense", "Play 7"] * 10, seed=seed)
        for seed in range(200)
    )
    episode = next(
        game
        for game in games
        if all(len({turn.kind for turn in game.trajectory(p)}) > 1 for p in (0, 1))
    )
    taught = Sources(lineups=("iggi",), num_tasks=1, noise=0).taught(episode, "score")
    assert taught == tuple(turn.kind is ReplyKind.LEGAL for turn in episode.turns)
    for strict, whole in zip(samples_of(episode, taught), samples_of(episode), strict=True):
        assert list(whole.ids) == rollout_ids(episode, whole.player)
        assert strict.ids == whole.ids[: len(strict.ids)], "the conversation is the same"
        assert len(marked(strict)) < len(marked(whole))


def test_the_score_of_a_game_that_is_learned_is_the_environments_and_a_return_is_the_players_own() -> (
    None
):
    [(episode, _), *_] = taught_games("random", num=1, setup=POKER)
    winner = 0 if episode.reward(0) > 0 else 1
    chosen = Sources(lineups=("random",), num_tasks=1, noise=0, min_score=1)
    assert chosen.taught(episode, "return") == tuple(
        turn.player == winner for turn in episode.turns
    )
    game = made_episode(score=3)
    assert (chosen.taught(game, "score"), any(chosen.taught(game, "score"))) == ((), False)
    [(episode, _)] = taught_games(num=1)
    best = episode.result["score"]
    for least, expected in ((best, True), (best + 1, False)):
        chosen = Sources(lineups=("random",), num_tasks=1, noise=0, min_score=least)
        assert set(chosen.taught(episode, "score")) == {expected}


def test_a_conversation_is_cut_where_the_rollout_would_cut_it_and_a_reply_that_none_could_say_is_refused() -> (
    None
):
    [(episode, _), *_] = taught_games(num=1)
    limit = len(samples_of(episode)[0].ids) - 5
    served = served_game(
        [turn.reply for turn in episode.turns], seed=episode.seed, max_model_len=limit
    )
    [first, *_] = samples_of(episode, made=(made := encoder(max_model_len=limit)))
    assert list(first.ids) == rollout_ids(served, 0)
    assert made.counts["cut"] >= 1
    with pytest.raises(SettingsError, match="MAX_COMPLETION_LENGTH=2"):
        samples_of(episode, made=encoder(max_completion_length=2))


def test_recorded_games_are_read_back_as_they_were_played_and_one_seat_of_them_can_be_chosen(
    tmp_path: Path,
) -> None:
    write_recordings(
        tmp_path / "games.jsonl", [Recording(episode=one) for one, _ in taught_games(num=5)]
    )
    assert data_digest(read(tmp_path)) == data_digest(read(lineups=("hint-bot",)))
    mixed = tmp_path / "mixed.jsonl"
    write_recordings(mixed, [Recording(episode=one) for one, _ in taught_games("iggi,hint-bot")])
    assert {one.player for one in read(mixed, who="hint-bot")} == {1}
    assert {one.player for one in read(mixed)} == {0, 1}
    assert read(mixed, who="piers") == []


def test_held_out_suites_are_warned_of(tmp_path: Path) -> None:
    [(episode, _)] = taught_games(num=1)
    spoiled = dataclasses.replace(episode, suite="eval", turns=())
    write_recordings(tmp_path / "games.jsonl", [Recording(episode=spoiled)])
    notes: list[str] = []
    assert (read(tmp_path, say=notes.append), "suite eval is held out" in notes[0]) == ([], True)


def test_games_of_another_board_or_other_prompts_and_records_that_the_rules_forbid_are_refused(
    tmp_path: Path,
) -> None:
    [(episode, _)] = taught_games(num=1)
    mini = Setup(HANABI, LAPTOP.model_copy(update={"preset": "mini"}))
    write_recordings(tmp_path / "games.jsonl", [Recording(episode=episode)])
    for setup in (mini, POKER):
        with pytest.raises(
            SettingsError, match=r"a game of laptop .* with 2 players, wanted (mini|kuhn)"
        ):
            read(tmp_path, setup=setup)
    listed = Setup(HANABI, LAPTOP.model_copy(update={"legal_moves": True}))
    with pytest.raises(SettingsError, match="HANABI_LEGAL_MOVES"):
        samples_of(served_game(["Play 0"] * 20), made=encoder(listed))
    for change in ({"action": "Discard 0"}, {"action": "dance"}, {"player": 1}):
        turns = (dataclasses.replace(episode.turns[0], **change), *episode.turns[1:])
        with pytest.raises(SettingsError, match="turn 0"):
            samples_of(dataclasses.replace(episode, turns=turns))


def test_a_deck_is_on_one_side_whatever_its_seed() -> None:
    samples = [one for episode, _ in taught_games(num=40) for one in samples_of(episode)]
    twins = [dataclasses.replace(one, player=1 - one.player) for one in samples]
    taught, held_out = split_held_out([*samples, *twins])
    assert not {one.start for one in taught} & {one.start for one in held_out}
    assert len({one.start for one in held_out}) == round(len({one.start for one in samples}) / 10)
    with pytest.raises(SettingsError, match="at least 2"):
        split_held_out(samples[:2])


GAME = samples_of(taught_games(num=1)[0][0])


@pytest.mark.parametrize(("num", "size"), [(1, 9), (60, 1), (59, 7), (300, 3)])
def test_each_pass_holds_every_sample_once(num: int, size: int) -> None:
    batches = length_batches(
        [dataclasses.replace(GAME[0], start=number) for number in range(num)], 0, size
    )
    for _ in range(2):
        seen: list[int] = []
        while len(seen) < num:
            seen += [one.start for one in next(batches)]
        assert sorted(seen) == list(range(num))
