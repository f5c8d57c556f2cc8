"""Tokens of conversations by memory: which memory fits a context, and what each costs."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from doctor_machines import find, make_model, only
from fake_engine import CHAT, LAPTOP
from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.commands.doctor import games
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.rollout.budget import Budget, measure_budget

MESSAGE = "life1 life1"
REPLY_TOKENS = 4
TURNS = 6


def conversation_lengths(memory: int | None) -> list[int]:
    """Tokens of the sequence of each turn in a game where all messages are the same."""
    reply_ids = CHAT.tokenizer.encode("info3 " * (REPLY_TOKENS - 1), add_special_tokens=False)
    reply_ids.append(CHAT.eos_id)
    conversation = Conversation(CHAT, "", memory)
    lengths = []
    for _ in range(TURNS):
        conversation.ask(MESSAGE)
        conversation.answer(reply_ids)
        lengths.append(len(conversation.ids))
    return lengths


def test_a_budget_is_the_size_of_the_conversations_and_a_game_that_of_all_its_sequences() -> None:
    opening = len(CHAT.open("", MESSAGE))
    each_more = len(CHAT.follow(CHAT.eos_id, MESSAGE))
    budget = Budget(
        preset="",
        players=2,
        memory="game",
        turns=TURNS,
        reply=REPLY_TOKENS,
        opening=opening,
        later=each_more,
        alone=opening,
        earlier=each_more,
    )
    whole_game = conversation_lengths(None)
    assert budget.longest("game") == whole_game[-1]
    assert budget.of_game("game") == 2 * whole_game[-1]
    for memory, turns in (("turn", 1), (1, 1), (3, 3), (99, 99)):
        lengths = conversation_lengths(turns)
        assert budget.longest(memory) == lengths[-1]
        assert budget.of_game(memory) == 2 * sum(lengths)


@dataclass
class WordChat:
    """A chat format of one token per word."""

    eos_id: int = 0

    def open(self, system: str, user: str) -> list[int]:
        return self.follow(0, f"{system} {user}")

    def follow(self, last_id: int, user: str) -> list[int]:
        return [1] * (len(user.split()) + 4)


@pytest.mark.parametrize("name", ["debate", "summary"])
def test_replies_that_others_read_are_counted_at_their_greatest_length(name: str) -> None:
    chat = WordChat()
    setup = registry.setup(name, {"preset": name, "players": 4, "style": "full"})
    budget = measure_budget([setup], chat, 500)  # type: ignore[arg-type]
    referee = Referee(setup.task("train", 0))
    referee.step({player: "word " * 498 + "\nAnswer: 1" for player in referee.to_act()})
    player = referee.to_act()[-1]
    system = setup.environment.system_message(setup.config, player)
    needed = len(chat.open(system, referee.see(player).state_message()))
    assert needed > 3 * 500
    assert needed <= budget.prompts("turn") <= 1.05 * needed
    assert "may need" in budget.warning(1024)


def test_the_longest_memory_that_fits_is_named_with_what_a_game_costs_under_each(
    tmp_path: Path,
) -> None:
    budget = measure_budget([Setup(HANABI, LAPTOP)], CHAT, REPLY_TOKENS)
    longest = [budget.longest(memory) for memory in ("turn", 2, 3, 4, 5, "game")]
    assert longest == sorted(set(longest))
    assert [budget.fitting(tokens) for tokens in longest] == ["turn", 2, 3, 4, 5, "game"]
    assert [budget.fitting(tokens - 1) for tokens in longest] == [None, "turn", 2, 3, 4, 5]
    assert budget.warning(longest[-1]) == ""
    warning = budget.warning(longest[2])
    assert "HANABI_MEMORY=3 is the longest that fits. hanabi-grpo doctor" in warning
    given = {"MODEL": make_model(tmp_path / "model"), "HANABI_MAX_MODEL_LEN": longest[2]}
    history = only(find(games.history_checks, HANABI_MEMORY="4", **given))
    costs = history.finding.partition(" with ")[2].split("; ")
    assert [line.partition(":")[0] for line in costs] == ["game", "4", "3", "turn"]
    assert [line.endswith("(fits)") for line in costs] == [False, False, True, True]
    context = only(find(games.context_checks, HANABI_MEMORY="4", **given))
    assert context.status == "warn"
    assert context.remedy.splitlines()[-2:] == [
        "export HANABI_MEMORY=3",
        "export HANABI_MEMORY=turn",
    ]
