"""From games to token ids: the same ones as in a rollout, with exactly the replies marked that are to be learned."""

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fake_engine import CHAT, LAPTOP, TOKENIZER, sample
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.rules import is_held_out
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.collect import Collection, collect_games
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.lineups import parse_line_up
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.runs.recordings import write_recordings
from hanabi_grpo.server.engine import SamplingConfig
from hanabi_grpo.server.seats import Model, ServedPlayer
from hanabi_grpo.sft.batches import length_batches, num_exact_replies, padded
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.samples import Sample, data_digest, split_held_out
from hanabi_grpo.sft.sources import GameFilter, Sources
from hanabi_grpo.sft.teachers import SUITE, noisy_turns, teacher_games
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer
from hanabi_grpo.types import Episode, ReplyKind


class Speaker:
    """An engine that says given texts, one per call."""

    is_dead = False

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = list(texts)

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, lora: Any | None) -> Any:
        return sample(self._texts.pop(0))


def encoder(config: EnvConfig = LAPTOP, chat: ChatFormat = CHAT, **limits: int) -> Encoder:
    return Encoder(config=config, chat=chat, **{"max_model_len": 1024, "max_completion_length": 4, **limits})


def taught_games(words: str = "hint-bot", noise: float = 0.0, num: int = 3) -> list[tuple[Episode, tuple[bool, ...]]]:
    return list(teacher_games(parse_line_up(words, 2), LAPTOP, noise=noise, seeds=range(num)))


def served_game(texts: Sequence[str], *, seed: int = 0, max_model_len: int = 1024) -> Episode:
    """A game of a served model that says these texts; its turns carry the rollout's own ids."""
    model = Model(sampler=Speaker(texts), chat=CHAT, max_model_len=max_model_len)
    policy = ServedPlayer(model=model, sampling=SamplingConfig(max_tokens=4))
    return asyncio.run(play_episode(LAPTOP, [policy] * 2, suite=SUITE, seed=seed))


def rollout_ids(episode: Episode, player: int) -> list[int]:
    return [token for turn in episode.trajectory(player) for token in (*turn.prompt_ids, *turn.reply_ids)]


def samples_of(episode: Episode, taught: Sequence[bool] | None = None, **options: Any) -> list[Sample]:
    taught = [True] * len(episode.turns) if taught is None else taught
    return encoder(**options).samples(Recording(episode=episode), taught)


def marked(one: Sample) -> list[int]:
    return [token for token, is_own in zip(one.ids, one.is_reply, strict=True) if is_own]


def sources(*paths: Path, line_ups: tuple[str, ...] = (), **chosen: Any) -> Sources:
    return Sources(line_ups=line_ups, paths=paths, num_deals=5, noise=0.0, chosen=GameFilter(**chosen))


def read(what: Sources, made: Encoder | None = None) -> list[Sample]:
    return what.samples(LAPTOP, made or encoder(), seed=0, notes=[])


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_scripts_game_has_the_ids_that_a_rollout_with_these_replies_has(noise: float) -> None:
    for episode, _ in taught_games(noise=noise):
        served = served_game([turn.reply for turn in episode.turns], seed=episode.seed)
        assert [turn.action for turn in served.turns] == [turn.action for turn in episode.turns]
        for one in samples_of(episode):
            assert list(one.ids) == rollout_ids(served, one.player)
            replies = [token for turn in served.trajectory(one.player) for token in turn.reply_ids]
            assert marked(one) == replies


def test_random_moves_are_read_but_not_learned() -> None:
    drawn = 0
    for episode, taught in taught_games(noise=0.5, num=20):
        assert taught == tuple(not flag for flag in noisy_turns(episode, 0.5))
        drawn += taught.count(False)
        for one in samples_of(episode, taught):
            kept = [
                turn.reply for turn, own in zip(episode.turns, taught, strict=True) if own and turn.player == one.player
            ]
            assert TOKENIZER.decode(marked(one)).replace("<|im_end|>", "").split() == " ".join(kept).split()
            assert one.is_reply[-1] == 1, "nothing follows the last reply that is learned"
    turns = sum(len(episode.turns) for episode, _ in taught_games(noise=0.5, num=20))
    assert 0.3 < drawn / turns < 0.7


def test_no_deal_of_the_teachers_is_held_out_for_evaluation() -> None:
    assert not is_held_out(SUITE)


@pytest.mark.parametrize("noise", [-0.1, 1.0, float("nan")])
def test_noise_is_a_share(noise: float) -> None:
    with pytest.raises(SettingsError, match="--noise"):
        taught_games(noise=noise)


def test_recorded_ids_are_used_where_the_tokenizer_is_the_same() -> None:
    # The engine closed its replies; a text that is encoded has the same ids, so a cut one tells the two apart.
    episode = served_game(["Play 0", "Hint R"] * 20)
    made = encoder()
    made.samples(Recording(episode=episode), [True] * len(episode.turns))
    assert (made.counts.recorded, made.counts.encoded) == (len(episode.turns), 0)
    turns = list(episode.turns)
    turns[0] = dataclasses.replace(turns[0], reply_ids=turns[0].reply_ids[:-1], logprobs=(-0.5,) * 2)
    [first, *_] = samples_of(dataclasses.replace(episode, turns=tuple(turns)))
    assert marked(first)[:2] == TOKENIZER.encode("Play 0", add_special_tokens=False)


def test_games_of_another_tokenizer_are_encoded_anew() -> None:
    words = compact_vocabulary(LAPTOP.spec())
    other = ChatFormat.from_tokenizer(build_tokenizer(words[::-1]))
    episode = served_game(["Play 0", "Hint R"] * 20)
    made = encoder(chat=other)
    [first, *_] = made.samples(Recording(episode=episode), [True] * len(episode.turns))
    assert (made.counts.recorded, made.counts.encoded) == (0, len(episode.turns))
    assert other.tokenizer.decode(list(first.ids)) == TOKENIZER.decode(list(samples_of(episode)[0].ids))


def test_ids_outside_the_vocabulary_are_never_used() -> None:
    episode = served_game(["Play 0", "Hint R"] * 20)
    turns = list(episode.turns)
    turns[0] = dataclasses.replace(turns[0], reply_ids=(*turns[0].reply_ids[:-1], 99999))
    [first, *_] = samples_of(dataclasses.replace(episode, turns=tuple(turns)))
    assert max(first.ids) < len(TOKENIZER)


def test_illegal_replies_are_read_and_learned_only_when_asked() -> None:
    # The first deal whose game is long enough for both players to be right and wrong.
    games = (served_game(["Hint R", "Hint 1", "nonsense", "Play 7"] * 10, seed=seed) for seed in range(200))
    episode = next(game for game in games if all(len({turn.kind for turn in game.trajectory(p)}) > 1 for p in (0, 1)))
    legal, every = GameFilter().taught(episode), GameFilter(only_legal=False).taught(episode)
    assert legal == tuple(turn.kind is ReplyKind.LEGAL for turn in episode.turns)
    assert all(every)
    for player in range(2):
        [strict] = [one for one in samples_of(episode, legal) if one.player == player]
        [loose] = [one for one in samples_of(episode, every) if one.player == player]
        assert list(loose.ids) == rollout_ids(episode, player)
        assert strict.ids == loose.ids[: len(strict.ids)], "the conversation is the same"
        assert len(marked(strict)) < len(marked(loose))


def test_a_conversation_is_cut_where_the_rollout_would_cut_it() -> None:
    [(episode, _), *_] = taught_games(num=1)
    texts = [turn.reply for turn in episode.turns]
    limit = len(samples_of(episode)[0].ids) - 5
    served = served_game(texts, seed=episode.seed, max_model_len=limit)
    made = encoder(max_model_len=limit)
    [first, *_] = made.samples(Recording(episode=episode), [True] * len(texts))
    assert list(first.ids) == rollout_ids(served, 0)
    assert made.counts.cut >= 1


def test_a_reply_that_no_rollout_could_say_is_refused() -> None:
    [(episode, _), *_] = taught_games(num=1)
    with pytest.raises(SettingsError, match="MAX_COMPLETION_LENGTH=2"):
        samples_of(episode, max_completion_length=2)


def test_a_collection_is_read_back_as_the_games_that_were_played(tmp_path: Path) -> None:
    what = Collection(
        line_up=parse_line_up("hint-bot", 2),
        config=LAPTOP,
        suite=SUITE,
        num_deals=5,
        num_games=1,
        rotate=False,
        prompts=True,
    )
    collect_games(what, tmp_path)
    assert data_digest(read(sources(tmp_path))) == data_digest(read(sources(line_ups=("hint-bot",))))


def test_only_one_seats_words_are_learned_from_a_mixed_collection(tmp_path: Path) -> None:
    write_recordings(tmp_path / "games.jsonl", [Recording(episode=one) for one, _ in taught_games("iggi,hint-bot")])
    assert {one.player for one in read(sources(tmp_path, who="hint-bot"))} == {1}
    assert {one.player for one in read(sources(tmp_path))} == {0, 1}
    with pytest.raises(SettingsError, match="nothing is left"):
        read(sources(tmp_path, who="piers"))


def test_held_out_suites_are_warned_of(tmp_path: Path) -> None:
    [(episode, _)] = taught_games(num=1)
    path = tmp_path / "games.jsonl"
    # Its moves were chosen on another deck, so that it is read and then refused.
    write_recordings(path, [Recording(episode=dataclasses.replace(episode, suite="eval", turns=()))])
    notes: list[str] = []
    with pytest.raises(SettingsError, match="nothing is left"):
        sources(tmp_path).samples(LAPTOP, encoder(), seed=0, notes=notes)
    assert "held out" in notes[0]


def test_games_of_another_board_or_other_prompts_are_refused() -> None:
    [(episode, _)] = taught_games(num=1)
    with pytest.raises(SettingsError, match="a game of laptop with 2 players, wanted mini"):
        samples_of(episode, config=EnvConfig(preset="mini", observation="compact", legal_moves=False))
    shown = served_game(["Play 0"] * 20)
    with pytest.raises(SettingsError, match="HANABI_LEGAL_MOVES"):
        samples_of(shown, config=LAPTOP.model_copy(update={"legal_moves": True}))


def test_a_record_that_the_rules_forbid_is_refused() -> None:
    [(episode, _)] = taught_games(num=1)
    for change in ({"action": "Discard 0"}, {"action": "dance"}, {"player": 1}):
        turns = (dataclasses.replace(episode.turns[0], **change), *episode.turns[1:])
        with pytest.raises(SettingsError, match="turn 0"):
            samples_of(dataclasses.replace(episode, turns=turns))


def test_a_deck_is_on_one_side_whatever_its_seed() -> None:
    samples = [one for episode, _ in taught_games(num=40) for one in samples_of(episode)]
    twins = [dataclasses.replace(one, player=1 - one.player) for one in samples]
    taught, held_out = split_held_out([*samples, *twins])
    assert not {one.deck for one in taught} & {one.deck for one in held_out}
    decks = len({one.deck for one in samples})
    assert len({one.deck for one in held_out}) == round(decks / 10)
    with pytest.raises(SettingsError, match="at least 2"):
        split_held_out(samples[:2])


def test_exact_replies_are_counted_as_whole_replies() -> None:
    # Two rows: replies (2 3) and (4) in the first, (5 6 7) in the second.
    marks = torch.tensor([[0, 1, 1, 0, 1, 0], [0, 0, 1, 1, 1, 0]]).bool()
    targets = torch.tensor([2, 3, 4, 5, 6, 7])
    said = torch.nn.functional.one_hot(torch.tensor([2, 3, 4, 5, 0, 7]), 9).float()
    assert num_exact_replies(said, targets, marks) == (2, 3)
    said[1] = said[2]
    assert num_exact_replies(said, targets, marks) == (1, 3)


def test_a_batch_is_padded_on_the_right_and_pads_are_never_marked() -> None:
    [(episode, _)] = taught_games(num=1)
    rows = samples_of(episode)
    ids, marks = padded(rows, 77)
    for row, one in enumerate(rows):
        assert ids[row].tolist() == [*one.ids, *[77] * (ids.shape[1] - len(one.ids))]
        assert marks[row].tolist() == [*map(bool, one.is_reply), *[False] * (ids.shape[1] - len(one.ids))]


@given(num=st.integers(1, 60), size=st.integers(1, 9), seed=st.integers(0, 5))
def test_each_pass_holds_every_sample_once(num: int, size: int, seed: int) -> None:
    [(episode, _)] = EPISODE
    rows = [dataclasses.replace(samples_of(episode)[0], deck=number) for number in range(num)]
    batches = length_batches(rows, seed, size)
    for _ in range(2):
        seen: list[int] = []
        while len(seen) < num:
            seen += [one.deck for one in next(batches)]
        assert sorted(seen) == list(range(num))


EPISODE = taught_games(num=1)


def test_the_digest_of_the_data_follows_every_id_and_mark() -> None:
    samples = [one for episode, _ in EPISODE for one in samples_of(episode)]
    marks = samples[0].is_reply[:]
    marks[-1] = 0
    assert data_digest(samples) == data_digest(list(samples))
    assert data_digest(samples) != data_digest([dataclasses.replace(samples[0], is_reply=marks), *samples[1:]])
