"""No policy that is handed text is told of the cards that it cannot see: what each really hears is compared.

Models on the server, models asked reply by reply, and people: over whole games, on every board, with other cards in the
listener's hand and in the deck.
"""

import asyncio
import io
import random
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from hanabi_grpo.envs.hanabi.human.seat import HumanPolicy
from rich.console import Console
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from boards import ALL_BOARDS, random_game
from hanabi_grpo.client.remote_seat import RemotePolicy
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies import Policy
from hanabi_grpo.envs.hanabi.prompts import turn_prompt
from hanabi_grpo.envs.hanabi.rules import Card, Game, make_spec
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.server.engine import Sample, SamplingConfig
from hanabi_grpo.server.seats import Model, ServedPlayer
from hanabi_grpo.sft.tiny_model.tokenizer import CHAT_TEMPLATE, END, START
from hanabi_grpo.types import Reply
from hidden_cards import swap_own_cards

STYLES = ("full", "compact")
REPLY = "I shall see."
COMPARED = 5
"""Pairs of whole games of each board, style and listener."""
Listener = Callable[[EnvConfig, list[str]], Policy]


@cache
def chat() -> ChatFormat:
    """A tokenizer of bytes: whatever a prompt says comes back out of its ids."""
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(letters, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(word, special=True) for word in (START, END)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END, clean_up_tokenization_spaces=False)
    tokenizer.chat_template = CHAT_TEMPLATE
    return ChatFormat.from_tokenizer(tokenizer)


class Ear:
    """An engine and a client that write down what they are given."""

    is_dead = False

    def __init__(self, heard: list[str]) -> None:
        self._heard = heard

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, lora: Any | None) -> Sample:
        self._heard.append(chat().tokenizer.decode(prompt_ids))
        ids = (*chat().tokenizer.encode(REPLY), chat().eos_id)
        return Sample(ids=ids, logprobs=(0.0,) * len(ids), finish_reason="stop", num_cached_tokens=0)

    def reply(self, **given: object) -> Reply:
        self._heard.append(repr(given))
        return Reply(text=REPLY, reply_ids=(1, 2, 3))


def served(config: EnvConfig, heard: list[str]) -> Policy:
    model = Model(sampler=Ear(heard), chat=chat(), max_model_len=10**9)
    return ServedPlayer(model=model, sampling=SamplingConfig(max_tokens=4))


def remote(config: EnvConfig, heard: list[str]) -> Policy:
    return RemotePolicy(client=Ear(heard), seat_word="base", config=config, max_tokens=4, temperature=1.0)


def person(config: EnvConfig, heard: list[str]) -> Policy:
    """Looks at everything there is to look at, tries a move that is none, then makes a legal one."""
    screen = io.StringIO()
    lines: Iterator[str] = iter(())

    def ask(question: str) -> str:
        nonlocal lines
        line = next(lines, None)
        if line is None:
            lines = iter(["?", "k", "l", "t", "p99", *(f"p{slot}" for slot in range(8))])
            line = next(lines)
        heard.append(screen.getvalue() + question)
        screen.truncate(0)
        screen.seek(0)
        return line

    console = Console(file=screen, width=100, color_system=None)
    return HumanPolicy(console=console, ask=ask, labels=[f"seat {seat}" for seat in range(config.players)])


LISTENERS: Mapping[str, Listener] = {"served": served, "remote": remote, "person": person}


def listen(listener: Listener, game: Game, player: int, config: EnvConfig) -> list[str]:
    """Return all that a player hears while the moves of a game are made."""
    heard: list[str] = []
    policy = listener(config, heard)
    seat = policy.seat(player, spec=game.spec, suite="train", seed=0, game=0)
    table = Game(game.spec, game.deck)
    moves = [event.action for event in game.events]
    for move in [*moves, None]:
        if not table.is_over and table.current_player == player:
            view = table.view(player)

            def prompt(view: Any = view) -> str:
                return turn_prompt(view, style=config.observation, legal_moves=config.legal_moves)

            asyncio.run(seat.reply(view, prompt))
        if move is not None:
            table.apply(move)
    return heard


@pytest.mark.parametrize("name", LISTENERS)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_what_is_heard_over_a_game_is_the_same_with_other_hidden_cards(
    preset: str, num_players: int, style: str, name: str
) -> None:
    config = EnvConfig.parse({"preset": preset, "players": num_players, "observation": style})
    rng = random.Random(f"{preset} {num_players} {style} {name}")
    compared = 0
    while compared < COMPARED:
        game = random_game(make_spec(preset, num_players), rng)
        for player in rng.sample(range(num_players), num_players):
            other = swap_own_cards(game, player, rng)
            if other is None:
                continue
            ours = listen(LISTENERS[name], game, player, config)
            assert ours == listen(LISTENERS[name], other, player, config)
            compared += bool(ours)


@pytest.mark.parametrize("name", LISTENERS)
@pytest.mark.parametrize("style", STYLES)
def test_the_same_swap_is_heard_by_the_partner(name: str, style: str) -> None:
    config = EnvConfig.parse({"preset": "laptop", "observation": style})
    reds, yellows = (Card(0, 0), Card(0, 0), Card(0, 1)), (Card(1, 0), Card(1, 0), Card(1, 1))
    game = Game(make_spec("laptop"), (*reds, *yellows, Card(0, 0), Card(1, 0)))
    game.apply(next(action for action in game.legal_actions() if action.kind.startswith("hint")))
    other = swap_own_cards(game, 0, random.Random(1))
    assert other is not None
    ours, theirs = (listen(LISTENERS[name], one, 1, config) for one in (game, other))
    assert ours and theirs and ours != theirs


def test_a_conversation_says_all_that_its_prompts_say() -> None:
    """The negative control of the ids: a byte tokenizer loses nothing."""
    config = EnvConfig(preset="laptop", observation="full")
    game = random_game(make_spec("laptop"), random.Random(3))
    [first, *_] = listen(served, game, 0, config)
    view = Game(game.spec, game.deck).view(0)
    assert turn_prompt(view, style="full", legal_moves=True) in first
