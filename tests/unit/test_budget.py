"""Tokens of conversations by what players remember: which memory fits a context, and what it
costs.
"""

from pathlib import Path

from doctor_machines import find, make_model, only
from fake_engine import CHAT, LAPTOP
from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.commands.doctor import games
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.rollout.budget import Budget, measure_budget


def test_a_budget_is_the_size_of_the_conversations_and_a_game_that_of_all_its_sequences() -> None:
    chat, reply, turns, text = CHAT, 4, 6, "life1 life1"
    first, more = len(chat.open("", text)), len(chat.follow(chat.eos_id, text))
    sizes = {"reply": reply, "opening": first, "later": more, "alone": first, "earlier": more}
    budget = Budget(preset="", players=2, memory="game", turns=turns, **sizes)
    for memory, window in (("game", None), ("turn", 1), (1, 1), (3, 3), (99, 99)):
        talk, lengths = Conversation(chat, "", window), []
        for _ in range(turns):
            talk.ask(text)
            talk.answer(
                [
                    *chat.tokenizer.encode("info3 " * (reply - 1), add_special_tokens=False),
                    chat.eos_id,
                ]
            )
            lengths.append(len(talk.ids))
        assert budget.longest(memory) == lengths[-1]
        assert budget.of_game(memory) == 2 * (lengths[-1] if window is None else sum(lengths))


def test_the_longest_memory_that_fits_is_named_with_what_a_game_costs_under_each(
    tmp_path: Path,
) -> None:
    budget = measure_budget([Setup(HANABI, LAPTOP)], CHAT, 4)
    longest = [budget.longest(memory) for memory in ("turn", 2, 3, 4, 5, "game")]
    assert longest == sorted(set(longest))
    assert [budget.fitting(one) for one in longest] == ["turn", 2, 3, 4, 5, "game"]
    assert [budget.fitting(one - 1) for one in longest] == [None, "turn", 2, 3, 4, 5]
    assert budget.warning(longest[-1]) == ""
    assert "HANABI_MEMORY=3 is the longest that fits. hanabi-grpo doctor" in budget.warning(
        longest[2]
    )
    given = {"MODEL": make_model(tmp_path / "model"), "HANABI_MAX_MODEL_LEN": longest[2]}
    shown = only(find(games.history_checks, HANABI_MEMORY="4", **given)).finding
    costs = shown.partition(" with ")[2].split("; ")
    assert [line.partition(":")[0] for line in costs] == ["game", "4", "3", "turn"]
    assert [line.endswith("(fits)") for line in costs] == [False, False, True, True]
    cut = only(find(games.context_checks, HANABI_MEMORY="4", **given))
    assert cut.status == "warn" and cut.remedy.splitlines()[-2:] == [
        "export HANABI_MEMORY=3",
        "export HANABI_MEMORY=turn",
    ]
