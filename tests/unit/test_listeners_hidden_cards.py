"""No player that is handed text learns the cards that it cannot see.

What each really hears is compared, of models on the server and models asked reply by reply: over
whole games, on every board, with other cards in the listener's hand and in the deck.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from boards import ALL_BOARDS, random_game, swap_own_cards
from hanabi_grpo.agents.remote_server import RemotePlayer
from hanabi_grpo.agents.served_model import Model, ServedPlayer
from hanabi_grpo.envs.base import Observation, Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI, HanabiGame
from hanabi_grpo.envs.hanabi.prompts import turn_prompt
from hanabi_grpo.envs.hanabi.rules import Card, Game, make_spec
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.loop import Player
from hanabi_grpo.rollout.sampler import Sample, SamplingConfig
from hanabi_grpo.sft.tiny_model.tokenizer import CHAT_TEMPLATE, END, START
from hanabi_grpo.types import Reply

STYLES = ("full", "compact")
REPLY = "I shall see."
COMPARED = 5
"""Pairs of whole games of each board, style and listener."""
MOST_GAMES = 100
"""In which so many pairs are looked for."""
Listener = Callable[[EnvConfig, list[str]], Player]


@cache
def chat() -> ChatFormat:
    """Return the format of a tokenizer of bytes: a prompt's ids decode to the prompt."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = {letter: number for number, letter in enumerate(alphabet)}
    core = Tokenizer(models.BPE(letters, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(word, special=True) for word in (START, END)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return ChatFormat.from_tokenizer(tokenizer)


class Ear:
    """An engine and a client that write down what they are given."""

    is_dead = False

    def __init__(self, heard: list[str]) -> None:
        self._heard = heard

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingConfig, adapter: Any | None, *game: Any
    ) -> Sample:
        self._heard.append(chat().tokenizer.decode(prompt_ids))
        ids = (*chat().tokenizer.encode(REPLY), chat().eos_id)
        return Sample(
            ids=ids, logprobs=(0.0,) * len(ids), finish_reason="stop", num_cached_tokens=0
        )

    def reply(self, asked: object) -> Reply:
        self._heard.append(repr(asked))
        return Reply(text=REPLY, reply_ids=(1, 2, 3))


def served(config: EnvConfig, heard: list[str]) -> Player:
    model = Model(sampler=Ear(heard), chat=chat(), max_model_len=10**9)
    return ServedPlayer(model=model, sampling=SamplingConfig(max_tokens=4))


def remote(config: EnvConfig, heard: list[str]) -> Player:
    return RemotePlayer(client=Ear(heard), name="base", max_tokens=4, temperature=1.0)


LISTENERS: Mapping[str, Listener] = {"served": served, "remote": remote}


def listen(listener: Listener, game: Game, player: int, config: EnvConfig) -> list[str]:
    """Return all that a player hears while the moves of a game are made.

    Args:
        listener: Makes the player.
        game: The game whose moves are made.
        player: The seat of the listener.
        config: The settings of the game.
    """
    heard: list[str] = []
    seat = listener(config, heard).seat(player, task=Setup(HANABI, config).task("train", 0), game=0)
    table = Game(game.spec, game.deck)

    def listen_now() -> None:
        if table.current_player == player:
            asyncio.run(seat.reply(Observation(HanabiGame(config, table), player)))

    for event in game.events:
        listen_now()
        table.apply(event.action)
    listen_now()
    return heard


@pytest.mark.parametrize("name", LISTENERS)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_a_listener_hears_the_same_over_a_game_with_other_hidden_cards(
    preset: str, num_players: int, style: str, name: str
) -> None:
    config = EnvConfig.parse({"preset": preset, "players": num_players, "observation": style})
    listener = LISTENERS[name]
    rng = random.Random(f"{preset} {num_players} {style} {name}")
    num_compared = 0
    for _ in range(MOST_GAMES):
        if num_compared >= COMPARED:
            break
        game = random_game(make_spec(preset, num_players), rng)
        for player in rng.sample(range(num_players), num_players):
            other = swap_own_cards(game, player, rng)
            if other is not None:
                heard = listen(listener, game, player, config)
                assert heard == listen(listener, other, player, config)
                num_compared += bool(heard)
    assert num_compared >= COMPARED


RED_AND_YELLOW_HANDS = (
    Card(0, 0),
    Card(0, 0),
    Card(0, 1),
    Card(1, 0),
    Card(1, 0),
    Card(1, 1),
    Card(0, 0),
    Card(1, 0),
)
"""A deck of `laptop`: player_0 holds red cards, player_1 yellow ones."""


@pytest.mark.parametrize("name", LISTENERS)
@pytest.mark.parametrize("style", STYLES)
def test_a_conversation_says_all_that_prompts_say(name: str, style: str) -> None:
    config = EnvConfig.parse({"preset": "laptop", "observation": style})
    game = Game(make_spec("laptop"), RED_AND_YELLOW_HANDS)
    prompt = turn_prompt(game.view(0), style=style, legal_moves=True)
    assert prompt in as_text(listen(LISTENERS[name], game, 0, config))


@pytest.mark.parametrize("name", LISTENERS)
@pytest.mark.parametrize("style", STYLES)
def test_the_partner_hears_that_hidden_cards_are_others(name: str, style: str) -> None:
    config = EnvConfig.parse({"preset": "laptop", "observation": style})
    game = Game(make_spec("laptop"), RED_AND_YELLOW_HANDS)
    hint = next(action for action in game.legal_actions() if action.kind.startswith("hint"))
    game.apply(hint)
    other = swap_own_cards(game, 0, random.Random(1))
    assert other is not None
    heard = listen(LISTENERS[name], game, 1, config)
    heard_of_other = listen(LISTENERS[name], other, 1, config)
    assert heard
    assert heard_of_other
    assert heard != heard_of_other


def as_text(heard: list[str]) -> str:
    """Return what was heard with the line breaks of `repr` as they were."""
    return "\n".join(heard).replace("\\n", "\n")
