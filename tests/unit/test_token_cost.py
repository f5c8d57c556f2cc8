"""What a turn costs the tokenizer: its own message, however long the conversation is."""

import asyncio
from typing import Any

from fake_engine import FakeEngine
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.agents.served_model import Model, ServedPlayer
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.rollout.sampler import Sample, SamplingConfig
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer
from hanabi_grpo.types import Episode

FULL = EnvConfig(preset="full", observation="compact", legal_moves=False)


class Counting:
    """A tokenizer that notes what it is asked for."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.encoded: list[str] = []
        self.decoded: list[int] = []
        """Ids of each call."""
        self.num_rendered = 0

    def encode(self, text: str, **options: Any) -> list[int]:
        self.encoded.append(text)
        return list(self.tokenizer.encode(text, **options))

    def decode(self, ids: list[int], **options: Any) -> str:
        self.decoded.append(len(ids))
        return str(self.tokenizer.decode(ids, **options))

    def apply_chat_template(self, *args: Any, **options: Any) -> Any:
        self.num_rendered += 1
        return self.tokenizer.apply_chat_template(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


def test_every_turn_of_a_long_game_is_tokenised_once_and_alone() -> None:
    counting = Counting(build_tokenizer(compact_vocabulary(FULL.spec())))
    chat = ChatFormat.from_tokenizer(counting)
    task = Setup(HANABI, FULL).task("train", 3)

    async def play() -> Episode:
        bot = make_script(task.setup, "iggi")
        first = await play_episode(task, [bot, bot])
        replies = [(*chat.tokenizer.encode(turn.action), chat.eos_id) for turn in first.turns]
        said = (
            Sample(ids=ids, logprobs=(-1.0,) * len(ids), finish_reason="stop", num_cached_tokens=0)
            for ids in replies
        )
        counting.encoded.clear()
        counting.num_rendered = 0
        model = Model(
            sampler=FakeEngine(fault=lambda game, call: next(said)),
            chat=chat,
            max_model_len=1 << 20,
        )
        served = ServedPlayer(model=model, sampling=SamplingConfig(max_tokens=8))
        return await play_episode(task, [served, served])

    turns = asyncio.run(play()).turns
    assert len(turns) > 50 and counting.num_rendered == 2, "one for each player's first message"
    first_of = [next(turn for turn in turns if turn.player == player) for player in (0, 1)]
    options = {"tokenize": False, "add_generation_prompt": True}
    expected = [
        chat.tokenizer.apply_chat_template([{"role": "user", "content": turn.prompt}], **options)
        if turn in first_of
        else chat.glue + turn.prompt + chat.tail
        for turn in turns
    ]
    assert counting.encoded == expected
    assert counting.decoded == [len(turn.reply_ids) - 1 for turn in turns]
    sizes = [len(counting.tokenizer.encode(text, add_special_tokens=False)) for text in expected]
    assert [len(turn.prompt_ids) for turn in turns] == sizes
    history = sum(len(turn.prompt_ids) for turn in turns if turn.player == turns[-1].player)
    assert history > 20 * len(turns[-1].prompt_ids), "it is long, and was not tokenised again"
