"""Calls of tools as tokens: the engine's prompts, training rows, masks, memory and the record."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from fake_engine import StubSampler
from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.agents.memory import past_turn, remembered_requests
from hanabi_grpo.agents.served_model import Model, ServedPlayer
from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.tools.figures import tool_figures
from hanabi_grpo.evaluation.evaluate import lineup_key, summarise, task_figures
from hanabi_grpo.rollout.chat import ChatFormat, Exchange
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.rollout.messages import EarlierTurn, ReplyRequest
from hanabi_grpo.rollout.sampler import AdapterHandle, Sample, SamplingConfig
from hanabi_grpo.rollout.vocabulary import game_words
from hanabi_grpo.rollout.wire import episode_from_json, episode_to_json
from hanabi_grpo.server.scheduler import _rebuild
from hanabi_grpo.settings import Settings
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer
from hanabi_grpo.training.batching import build_micro_batches, token_rows
from hanabi_grpo.training.check_sample import check_rows
from hanabi_grpo.training.estimators import make_estimator
from hanabi_grpo.training.estimators.arithmetic import lambda_advantages
from hanabi_grpo.training.estimators.returns import returns_to_go
from hanabi_grpo.training.loss import PolicyLoss
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.rewards import add_rewards
from hanabi_grpo.types import KL_PART, CallError, Episode, EpisodeStatus, Reply, ReplyKind
from made_batches import made_cut

MEMORIES = ("turn", 2, "game")
OWN = ("player_0@0",)
SUM = "2 + 0 - 3"
"""The sum of the first start in the split "train" of `chain_sum`, which is -1."""


def calculator_setup(memory: Any = "turn", **fields: Any) -> Setup[Any]:
    """One seat that answers a sum twice, with a calculator."""
    config = {
        "preset": "revise",
        "tools": "calculator",
        "style": "compact",
        "memory": memory,
        **fields,
    }
    return registry.setup("revise", config)


CHAT = ChatFormat.from_tokenizer(build_tokenizer(game_words(calculator_setup())))


class SayingEngine(StubSampler):
    """Says given texts in turn, each id with another logprob, and notes its prompts."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.prompts: list[list[int]] = []
        self.seeds: list[int | None] = []
        self.said: list[tuple[int, ...]] = []

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        ids = CHAT.said(self.texts[len(self.prompts)])
        self.prompts.append(list(prompt_ids))
        self.seeds.append(sampling.seed)
        self.said.append(ids)
        logprobs = tuple(-0.1 * (len(self.prompts) + place) for place in range(len(ids)))
        return Sample(ids=ids, logprobs=logprobs, finish_reason="stop", num_cached_tokens=0)


def play(
    engine: SayingEngine, memory: Any = "turn", *, max_model_len: int = 512, **fields: Any
) -> Episode:
    setup = calculator_setup(memory, **fields)
    player = ServedPlayer(
        model=Model(sampler=engine, chat=CHAT, max_model_len=max_model_len),
        sampling=SamplingConfig(max_tokens=8, seed=7),
        version=0,
    )
    task = setup.task("train", 0)
    return asyncio.run(play_episode(task, [player], names=OWN, instance_id="here"))


def two_turns() -> SayingEngine:
    """A call and an answer, then two calls and an answer."""
    return SayingEngine(f"calculator {SUM}", "1", f"calculator {SUM}", "calculator 2 + 2", "-1")


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_call_is_a_turn_without_reward_in_the_step_of_the_action(memory: Any) -> None:
    episode = play(two_turns(), memory)
    assert [turn.is_call for turn in episode.turns] == [True, False, True, True, False]
    assert [turn.follows_call for turn in episode.turns] == [False, True, False, True, True]
    assert [turn.step for turn in episode.turns] == [0, 0, 1, 1, 1]
    assert [turn.action for turn in episode.moves] == ["1", "-1"]
    assert [turn.prompt for turn in episode.turns if turn.follows_call] == [
        "result -1",
        "result -1",
        "result 4",
    ]
    assert [dict(turn.rewards[0]) for turn in episode.turns] == [{}, {}, {}, {}, {"team": 1.0}]
    assert episode.result["final"] == 1.0


@pytest.mark.parametrize("memory", MEMORIES)
def test_what_is_trained_is_what_was_sampled_and_results_are_masked(memory: Any) -> None:
    engine = two_turns()
    episode = play(engine, memory)
    rows = token_rows([[episode]], 0, make_estimator("return_to_go"), OWN)
    trained: list[int] = []
    for row in rows:
        for place, is_reply in enumerate(row.mask):
            if is_reply:
                trained.append(row.ids[place])
            else:
                assert row.advantages[place] == 0.0
                assert row.logprobs[place] == 0.0
    assert trained == [token for ids in engine.said for token in ids]
    # Each prompt of the engine is a row up to the reply that it led to.
    sequences = [tuple(row.ids) for row in rows]
    for prompt, said in zip(engine.prompts, engine.said, strict=True):
        whole = (*prompt, *said)
        assert any(sequence[: len(whole)] == whole for sequence in sequences)
    # A turn with its calls is one sequence; with the whole game in mind, so is the game.
    assert len(rows) == (1 if memory == "game" else 2)
    result = CHAT.tokenizer.encode("result", add_special_tokens=False)[0]
    for row in rows:
        for place, token in enumerate(row.ids):
            if token == result:
                assert not row.mask[place]
    checked = check_rows([episode], 0, OWN, first=0, rank=0, world_size=1)
    assert [(row.ids, row.mask, row.logprobs) for row in checked] == [
        (row.ids, row.mask, row.logprobs) for row in rows
    ]


def test_a_remembered_turn_is_remembered_with_its_calls() -> None:
    engine = two_turns()
    play(engine, 2)
    last_prompt = CHAT.tokenizer.decode(engine.prompts[2])
    assert f"calculator {SUM} <|im_end|> <|im_start|> tool result -1 <|im_end|>" in last_prompt
    engine = two_turns()
    play(engine, "turn")
    assert "tool" not in CHAT.tokenizer.decode(engine.prompts[2])


def test_calls_have_the_advantage_of_their_turn() -> None:
    right = play(two_turns())
    wrong = play(SayingEngine("1", "calculator 1", "calculator 1", "2"))
    discounted = returns_to_go([right], 0, gamma=0.5)
    assert discounted == [[0.5, 0.5, 1.0, 1.0, 1.0]]
    # Also with a critic, whatever it says of the states between them.
    chain = {number: 0.1 * number for number in range(5)}
    advantages = lambda_advantages(right, 0, chain, decay=0.9, gamma=0.9)
    assert advantages[0] == advantages[1] != advantages[2]
    assert advantages[2] == advantages[3] == advantages[4]
    unparsable = play(SayingEngine("1", "calculator 1", "none ="))
    assert unparsable.turns[-1].kind is ReplyKind.UNPARSABLE
    [[*first, call, action], *_] = make_estimator("turn").advantages([unparsable, right, wrong], 0)
    assert call == action != first[0]


def test_a_call_is_charged_its_own_distance_from_the_reference_too() -> None:
    # Two turns, of a call and an answer, and of two calls and an answer.
    costly = add_rewards(play(two_turns()), 0, KL_PART, [-1.0, -2.0, -4.0, -8.0, -16.0])
    free = play(two_turns())
    expected = [-3.0, -2.0, -28.0, -24.0, -16.0]
    estimator = make_estimator("turn", scale="none")
    # Both games earn the same, and nothing in the other one costs anything.
    assert estimator.advantages([costly, free], 0)[0] == pytest.approx(expected)
    assert returns_to_go([costly], 0)[0] == pytest.approx([-30.0, -29.0, -27.0, -23.0, -15.0])


def _batch(episodes: Sequence[Episode]) -> MicroBatch:
    [batch] = build_micro_batches(
        [episodes],
        trained_seats=OWN,
        players=("player_0",),
        estimator=make_estimator("return_to_go"),
        cut=made_cut(),
        pad_id=0,
        device=torch.device("cpu"),
    )
    return batch


@pytest.mark.parametrize("memory", MEMORIES)
def test_tool_tokens_have_no_gradient_bit_for_bit(memory: Any) -> None:
    wrong = SayingEngine(f"calculator {SUM}", "3", f"calculator {SUM}", "3")
    batch = _batch([play(two_turns(), memory), play(wrong, memory)])
    ids = batch.ids[:, 1:]
    result = CHAT.tokenizer.encode("result", add_special_tokens=False)[0]
    is_result = ids == result
    # With a memory of two turns the first one is read again in the second.
    assert int(is_result.sum()) == (7 if memory == 2 else 5)
    # Also its role and its number, one token before the word and one after it.
    tool_tokens = is_result.clone()
    tool_tokens[:, 1:] |= is_result[:, :-1]
    tool_tokens[:, :-1] |= is_result[:, 1:]
    assert not (tool_tokens & batch.reply_mask).any()
    settings = Settings(
        beta=0.1, dual_clip=3.0, sampler_correction="token_truncate", clip_low=0.1, clip_high=0.1
    )
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(ids.shape, generator=generator)
    batch.old_logprobs = -noise
    batch.reference_logprobs = -noise.flip(1)

    def gradient(logprobs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = logprobs.clone().requires_grad_()
        loss, _ = PolicyLoss(settings)(logprobs, batch)
        loss.backward()
        assert logprobs.grad is not None
        return loss.detach(), logprobs.grad

    logprobs = -2 * torch.rand(ids.shape, generator=generator)
    loss, grad = gradient(logprobs)
    assert (grad[tool_tokens] == 0).all()
    assert (grad[batch.reply_mask] != 0).any()
    # Whatever stands at these tokens, in any column, is nothing to the loss.
    for column in (batch.advantages, batch.sampler_logprobs, batch.old_logprobs):
        column[tool_tokens] = -7.0
    other_logprobs = logprobs.clone()
    other_logprobs[tool_tokens] = -5.0
    other_loss, other_grad = gradient(other_logprobs)
    assert torch.equal(loss, other_loss)
    assert torch.equal(grad, other_grad)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_reply_request_has_the_prompt_of_the_game(memory: Any) -> None:
    engine = two_turns()
    episode = play(engine, memory)
    window = episode.turns[0].fresh
    past: list[EarlierTurn] = []
    for number, turn in enumerate(episode.turns):
        request = ReplyRequest(
            seat="base",
            system="",
            turns=remembered_requests(
                past, {"turn": 1, 2: 2, "game": None}[memory], is_continued=turn.follows_call
            ),
            fresh=window,
            prompt=turn.prompt,
            follows_call=turn.follows_call,
            max_tokens=8,
            temperature=1.0,
        )
        conversation = Conversation(CHAT, "", len(request.turns) + 1 if window else None)
        assert _rebuild(conversation, request, 512)
        conversation.ask(request.prompt, follows_call=request.follows_call)
        assert conversation.ids == engine.prompts[number]
        past.append(past_turn(request, Reply(text="", reply_ids=turn.reply_ids)))


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_recorded_game_with_calls_teaches_the_same_sequences(memory: Any) -> None:
    episode = play(two_turns(), memory)
    assert episode_from_json(json.loads(json.dumps(episode_to_json(episode)))) == episode
    encoder = Encoder(
        setup=calculator_setup(memory), chat=CHAT, max_model_len=512, max_completion_length=8
    )
    rows = token_rows([[episode]], 0, make_estimator("return_to_go"), OWN)
    expected = [(row.ids, list(map(int, row.mask))) for row in rows]
    for recorded in (True, False):
        # A script's game has texts alone.
        turns = tuple(
            turn if recorded else replace(turn, prompt_ids=(), reply_ids=(), logprobs=())
            for turn in episode.turns
        )
        game = Recording(episode=replace(episode, turns=turns))
        samples = encoder.samples(game, [True] * len(turns))
        found = [(list(sample.ids), list(sample.is_reply)) for sample in samples]
        assert found == expected


def test_a_game_with_calls_is_the_same_game_again() -> None:
    first = two_turns()
    again = two_turns()
    assert play(first) == play(again)
    assert first.seeds == again.seeds
    assert len(set(first.seeds)) == len(first.seeds)


def test_calls_beyond_the_limit_are_bad_replies_that_are_counted() -> None:
    call = f"calculator {SUM}"
    episode = play(SayingEngine(call, call, call, "-1"), tool_calls=2)
    kinds = [(turn.is_call, turn.kind) for turn in episode.turns]
    assert kinds == [
        (True, ReplyKind.LEGAL),
        (True, ReplyKind.LEGAL),
        (False, ReplyKind.UNPARSABLE),
        (False, ReplyKind.LEGAL),
    ]
    over = episode.turns[2]
    assert over.call is not None and over.call.error is CallError.OVER_LIMIT
    assert over.rewards[0]["unparsable"] == -0.5
    assert tool_figures([episode]) == {
        "tools/calls_per_turn": 1.0,
        "tools/turn_share": 0.5,
        "tools/over_limit_per_turn": 0.5,
        "tools/error_share": 0.0,
        "tools/timeout_share": 0.0,
    }


def with_errors(episode: Episode, error: CallError | None, seed: int) -> Episode:
    """Return a game of another task, all of whose calls had this error."""
    turns = []
    for turn in episode.turns:
        call = turn.call
        turns.append(turn if call is None else replace(turn, call=replace(call, error=error)))
    return replace(episode, turns=tuple(turns), seed=seed)


def test_shares_of_calls_are_absent_without_calls_and_count_every_call_of_an_evaluation() -> None:
    setup = calculator_setup()
    lineup = parse_lineup("solver", 1, env="revise")
    call = f"calculator {SUM}"
    without_call = play(SayingEngine("1", "-1"))
    one_call = play(SayingEngine(call, "1", "-1"))
    three_calls = play(two_turns())
    games = [
        with_errors(without_call, None, 0),
        with_errors(one_call, CallError.TIMEOUT, 1),
        with_errors(three_calls, CallError.BAD_CALL, 2),
        with_errors(one_call, None, 3),
        with_errors(without_call, None, 4),
    ]
    assert tool_figures(games[:1]) == {
        "tools/calls_per_turn": 0.0,
        "tools/turn_share": 0.0,
        "tools/over_limit_per_turn": 0.0,
    }

    def evaluated(*kept: Episode) -> dict[str, float]:
        tasks = [task_figures(setup, [game]) for game in kept]
        return summarise(lineup, setup, tasks, key=lineup_key(lineup, setup)).figures

    figures = evaluated(*games)
    # Of five calls one timed out and three were bad.
    errors = []
    for game in games:
        errors += [turn.call.error for turn in game.turns if turn.call is not None]
    assert len(errors) == 5
    assert figures["tools/error_share"] == pytest.approx(4 / 5)
    assert figures["tools/timeout_share"] == pytest.approx(1 / 5)
    assert figures["tools/calls_per_turn"] == pytest.approx(5 / 10)
    # A step of training has the same figures.
    step = tool_figures(games)
    for name in ("tools/error_share", "tools/timeout_share"):
        assert figures[name] == pytest.approx(step[name])
    # Three of four tasks without a call, and every call is late.
    late = evaluated(games[0], games[1], games[4], with_errors(without_call, None, 5))
    assert late["tools/error_share"] == late["tools/timeout_share"] == 1.0
    # Finished tasks of an earlier version have shares of 0 where there are no calls.
    tasks = [task_figures(setup, [game]) for game in games]
    for task in (tasks[0], tasks[4]):
        task.figures |= {"tools/error_share": 0.0, "tools/timeout_share": 0.0}
    mixed = summarise(lineup, setup, tasks, key=lineup_key(lineup, setup)).figures
    assert mixed["tools/error_share"] == pytest.approx(4 / 5)
    none = evaluated(games[0], games[4])
    assert "tools/calls_per_turn" in none and "tools/error_share" not in none


def test_figures_of_tools_are_over_all_turns_of_an_evaluation_however_long_its_games_are() -> None:
    setup = calculator_setup()
    lineup = parse_lineup("solver", 1, env="revise")
    call = f"calculator {SUM}"
    two_answers = play(SayingEngine("1", "-1"))
    over_the_limit = play(SayingEngine(call, call, "-1"), tool_calls=1)
    one_answer = replace(two_answers, turns=two_answers.turns[:1])
    a_call_and_an_answer = replace(play(two_turns()), turns=play(two_turns()).turns[:2])
    games = [
        replace(game, seed=seed)
        for seed, game in enumerate((two_answers, over_the_limit, one_answer, a_call_and_an_answer))
    ]
    tasks = [task_figures(setup, [game]) for game in games]
    figures = summarise(lineup, setup, tasks, key=lineup_key(lineup, setup)).figures
    # Of six turns two follow a call, and one has a call beyond the limit.
    assert figures["tools/calls_per_turn"] == pytest.approx(2 / 6)
    assert figures["tools/turn_share"] == pytest.approx(2 / 6)
    assert figures["tools/over_limit_per_turn"] == pytest.approx(1 / 6)
    # Training counts the same.
    of_step = tool_figures(games)
    assert {name: figures[name] for name in of_step} == pytest.approx(of_step)


def test_a_call_whose_result_does_not_fit_is_the_last_reply_of_its_turn() -> None:
    setup = calculator_setup()
    first = len(
        CHAT.open("", setup.environment.reset(setup.config, split="train", seed=0).state_message(0))
    )
    call = f"calculator {SUM}"
    room = first + 8 + 2
    episode = play(SayingEngine(call, call), max_model_len=room)
    assert episode.status is EpisodeStatus.FINISHED
    assert [turn.kind for turn in episode.turns] == [ReplyKind.UNPARSABLE] * 2
    assert [turn.is_call for turn in episode.turns] == [False, False]
    assert [turn.rewards[0]["unparsable"] for turn in episode.turns] == [-0.5, -0.5]


def test_templates_with_a_role_for_results_use_it_and_others_get_a_user_message() -> None:
    tokenizer = build_tokenizer(("result", "7", "?", "8", "<tool_response>", "</tool_response>"))
    with_role = tokenizer.chat_template
    wrapped = with_role.replace(
        "message['content']",
        "('<tool_response>\\n' + message['content'] + '\\n</tool_response>' "
        "if message['role'] == 'tool' else message['content'])",
    ).replace("message['role'] +", "('user' if message['role'] == 'tool' else message['role']) +")
    refusing = (
        "{%- if messages[-1]['role'] == 'tool' -%}{{ raise_exception('no tools') }}{%- endif -%}"
        + with_role
    )
    expected = {
        with_role: "<|im_start|> <unk> 7 <|im_end|> <|im_start|> assistant",
        wrapped: "<|im_start|> user <tool_response> 7 </tool_response> <|im_end|> "
        "<|im_start|> assistant",
        refusing: "<|im_start|> user 7 <|im_end|> <|im_start|> assistant",
    }
    for template, text in expected.items():
        tokenizer.chat_template = template
        chat = ChatFormat.from_tokenizer(tokenizer)
        ids = chat.follow(chat.eos_id, "7", is_result=True)
        assert tokenizer.decode(ids) == text
        # A remembered result is rendered alike.
        rendered = chat.open("", "?", [Exchange("?", "8"), Exchange("7", "8", True)])
        assert text in tokenizer.decode(rendered)
