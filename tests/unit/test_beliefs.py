"""Measures of beliefs: what a player says beside the exact posterior, and a planted fault."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.beliefs import (
    Mean,
    ScriptPlayer,
    ServedPlayer,
    belief_figures,
    believed,
    brier,
    divergence,
    log_loss,
    mean,
    measure_beliefs,
    message_figures,
)
from hanabi_grpo.client.lineups import Lineup
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Observation, Setup
from hanabi_grpo.envs.posterior import script_chances
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.messages import ScoredPrompt
from hanabi_grpo.settings.refs import ScriptRef
from hanabi_grpo.types import Episode

COMPACT = {"observation": "compact", "legal_moves": False, "memory": "turn"}
LAPTOP = registry.setup("hanabi", {"preset": "laptop", **COMPACT})
KUHN = registry.setup("kuhn_poker", {"preset": "kuhn_poker", "style": "compact"})
BOT = "outer"
SURE = 0.97
"""How sure a player is of what it believes, in tests."""


def played(setup: Setup[Any], name: str, num_games: int) -> list[Episode]:
    policies = {seat: setup.environment.policies[name]() for seat in range(2)}
    return [play_scripts(setup.task("eval", seed), policies) for seed in range(num_games)]


class Reader:
    """A server whose player moves as a bot, and believes what the hints in its message leave.

    It reads the message's own words, so a fault in the messages is a fault in its beliefs.
    """

    def __init__(self, setup: Setup[Any], bot: str) -> None:
        self.setup = setup
        self.policy = setup.environment.policies[bot]()
        self.by_message: dict[str, dict[str, float]] = {}
        self.num_prompts = 0
        self.asked: set[ScoredPrompt] = set()

    def see(self, observations: list[Observation]) -> None:
        """Remember how the bot moves behind each message."""
        for seen in observations:
            self.by_message[seen.message()] = self.policy.chances(seen)

    def score(self, seat: str, prompts: list[ScoredPrompt]) -> tuple[tuple[float, ...], ...]:
        self.num_prompts += len(prompts)
        self.asked |= set(prompts)
        return tuple(self._scores(prompt) for prompt in prompts)

    def _scores(self, prompt: ScoredPrompt) -> tuple[float, ...]:
        message, _, slot = prompt.prompt.rpartition(" me slot")
        if not slot.isdecimal():
            chances = self.by_message[prompt.prompt]
            return tuple(
                math.log(chances[reply]) if chances[reply] else -60.0 for reply in prompt.replies
            )
        # slot0 cRY r12: the words behind the slot are what hints leave possible.
        words = message.split()
        place = words.index(f"slot{slot}")
        colors, ranks = words[place + 1][1:], words[place + 2][1:]
        possible = [card for card in prompt.replies if card[0] in colors and card[1] in ranks]
        scores = []
        for card in prompt.replies:
            chance = SURE / len(possible) if card in possible else 0.01
            # Half of what it would say is no card at all.
            scores.append(math.log(chance / 2))
        return tuple(scores)


class SeeingPlayer(ServedPlayer):
    """Shows the reader what the bot sees; a real server holds a model that reads the message."""

    def chances(self, seen: Any) -> list[dict[str, float]]:
        self.client.see(list(seen))  # type: ignore[attr-defined]
        return super().chances(seen)


def measured_by_reader(setup: Setup[Any], episodes: list[Episode], bot: str) -> Any:
    reader = Reader(setup, bot)
    players = [
        SeeingPlayer(setup=setup, player=seat, seat=f"player_{seat}@0", client=reader)  # type: ignore[arg-type]
        for seat in range(2)
    ]
    return measure_beliefs(setup, episodes, players), reader


def test_what_a_player_says_is_measured_beside_what_it_should_say() -> None:
    episodes = played(LAPTOP, BOT, 12)
    measured, reader = measured_by_reader(LAPTOP, episodes, BOT)
    assert reader.num_prompts == len(reader.asked), "each prompt is scored once"
    exact = measure_beliefs(
        LAPTOP,
        episodes,
        [ScriptPlayer(script_chances(LAPTOP, BOT, seat)) for seat in range(2)],
    )
    assert len(exact.guesses) == len(measured.guesses)
    for by_script, by_scores in zip(exact.guesses, measured.guesses, strict=True):
        assert by_script.exact == pytest.approx(by_scores.exact, abs=1e-9), (
            "the chances of a model's replies give the same posterior as those of a script"
        )
    figures = belief_figures(measured, 1)
    assert figures is not None
    assert figures.kl is not None and figures.log_loss is not None and figures.answered is not None
    assert figures.log_loss_exact.value <= figures.log_loss_rules.value
    assert figures.log_loss_rules.value < figures.log_loss.value
    assert figures.kl.value > 0
    assert 0.45 < figures.answered.value < 0.55
    script_figures = belief_figures(exact, 1)
    assert script_figures is not None and script_figures.kl is None


def test_hints_that_name_other_cards_in_the_messages_show_as_wrong_beliefs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    episodes = played(LAPTOP, "hint-bot", 12)
    right, _ = measured_by_reader(LAPTOP, episodes, "hint-bot")
    whole_message = type(LAPTOP.environment.reset(LAPTOP.config, split="eval", seed=0))

    def with_swapped_hints(self: Any, player: int) -> str:
        text = original(self, player)
        own, mate, rest = text.partition(" mate ")
        swapped = {"cR": "cY", "cY": "cR", "r1": "r2", "r2": "r1"}
        words = [swapped.get(word, word) for word in own.split()]
        return " ".join(words) + mate + rest

    original = whole_message.state_message
    monkeypatch.setattr(whole_message, "state_message", with_swapped_hints)
    wrong, _ = measured_by_reader(LAPTOP, episodes, "hint-bot")
    losses = []
    for before, after in zip(right.guesses, wrong.guesses, strict=True):
        assert before.stated is not None and after.stated is not None
        assert after.exact == pytest.approx(before.exact), "the exact side reads no messages"
        loss = log_loss(after.stated.marginal, after.truth)
        losses.append((after.game, loss - log_loss(before.stated.marginal, before.truth)))
    worse = mean(losses)
    assert worse.value > 4 * worse.error


def test_in_kuhn_poker_a_card_is_read_from_the_bets() -> None:
    episodes = played(KUHN, "cfr", 40)
    players = [ScriptPlayer(script_chances(KUHN, "cfr", seat)) for seat in range(2)]
    measured = measure_beliefs(KUHN, episodes, players)
    first_turns = [guess for guess in measured.guesses if guess.player == 0 and guess.turn == 0]
    assert len(first_turns) == 40
    for guess in first_turns:
        assert sorted(guess.exact.values()) == [0.5, 0.5], "nothing was said yet"
    figures = belief_figures(measured, 1)
    assert figures is not None
    assert figures.log_loss_rules.value == 1.0
    assert figures.log_loss_exact.value < 0.9
    told = message_figures(measured)
    assert set(told) <= {"bet", "check", "call", "fold"}
    for kind in told.values():
        assert kind["by_rules"].value == 0.0, "a bet shows no card"
    assert told["bet"]["by_convention"].value > 0.2


def test_a_model_that_thinks_before_it_moves_is_refused() -> None:
    """The probability of its move alone is not that of its move after a thought."""
    thinking = []
    for episode in played(LAPTOP, BOT, 2):
        turns = []
        for turn in episode.turns:
            reply = f"<think> hm </think> {turn.reply}" if turn.player == 1 else turn.reply
            turns.append(replace(turn, reply=reply))
        thinking.append(replace(episode, turns=tuple(turns)))
    with pytest.raises(SettingsError, match=r"player_1 wrote a thought on (\d+) of its \1 turns"):
        measured_by_reader(LAPTOP, thinking, BOT)
    scripts = [ScriptPlayer(script_chances(LAPTOP, BOT, seat)) for seat in range(2)]
    assert measure_beliefs(LAPTOP, thinking, scripts).guesses


class PlayingReader(Reader):
    """A server that also plays games, by the bot."""

    def play(self, tasks: list[dict[str, Any]], **options: Any) -> RolloutResult:
        assert options["temperature"] == 1.0
        groups = []
        for task in tasks:
            assert task["seats"] == ["player_0@7", "player_1@7"]
            policies = dict.fromkeys(range(2), self.policy)
            episode = play_scripts(self.setup.task(task["suite"], task["seed"]), policies)
            groups.append([episode])
        return RolloutResult(groups=groups, dropped=())


def test_beliefs_during_training_are_metrics_of_each_player(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hanabi_grpo.client.beliefs.ServedPlayer", SeeingPlayer)
    metrics = believed(
        LAPTOP,
        ("player_0@7", "player_1@7"),
        PlayingReader(LAPTOP, "hint-bot"),  # type: ignore[arg-type]
        max_tokens=4,
        sampling_seed=1,
    )
    for player in ("player_0", "player_1"):
        assert metrics[f"{player}/belief_bits_exact"] <= metrics[f"{player}/belief_bits_rules"]
        assert metrics[f"{player}/belief_bits_exact"] < metrics[f"{player}/belief_bits"]
        assert metrics[f"{player}/belief_kl"] > 0
        assert 0.4 < metrics[f"{player}/belief_answered"] < 0.6
    assert metrics["belief/hint_by_rules"] > metrics["belief/hint_by_convention"] > 0


def test_measures_have_the_values_written_out() -> None:
    even = {"J": 0.5, "K": 0.5}
    assert log_loss(even, "J") == 1.0
    assert log_loss(even, "Q") == pytest.approx(-math.log2(1e-12))
    assert brier(even, "J") == 0.5
    assert brier({"J": 1.0}, "Q") == 2.0
    assert brier({"Q": 1.0}, "Q") == 0.0
    assert divergence({"J": 1.0}, even) == 1.0
    # Games of 1 and 3 values with sums 4 and 0: the mean is 1, the error √(2 (3² + 3²)) / 4.
    assert mean([(0, 4.0), (1, 0.0), (1, 0.0), (1, 0.0)]) == Mean(1.0, 1.5, 4)
    assert mean([(0, 2.0)]).num_values == 1


def test_players_that_remember_more_than_the_turn_are_refused() -> None:
    setup = registry.setup("hanabi", {"preset": "laptop", "memory": "game"})
    with pytest.raises(SettingsError, match="HANABI_MEMORY=game: beliefs are computed for"):
        ServedPlayer(setup=setup, player=0, seat="base", client=None)  # type: ignore[arg-type]


def test_the_command_writes_tables_and_figures_of_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out = tmp_path / "beliefs.json"
    runner = CliRunner()
    arguments = ["beliefs", "hint-bot", "iggi,random", "--preset", "laptop", "--tasks", "4"]
    done = runner.invoke(app, [*arguments, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "what a move tells the other player, bits" in done.output
    document = json.loads(out.read_text())
    assert list(document["beliefs"]) == ["hint-bot", "iggi,random"]
    orders = [order["seats"] for order in document["beliefs"]["iggi,random"]]
    assert orders == [["iggi", "random"], ["random", "iggi"]]
    [order] = document["beliefs"]["hint-bot"]
    row = order["players"]["player_0"]
    assert row["log_loss_exact"]["count"] == sum(turn["questions"] for turn in row["by_turn"])
    assert "log_loss" not in row, "a script cannot be asked"
    refused = runner.invoke(app, ["beliefs", "iggi", "--preset", "full", "--tasks", "4"])
    assert refused.exit_code == 2


def test_a_suite_with_half_of_the_decks_is_refused_before_anything_is_played() -> None:
    arguments = ["beliefs", "hint-bot", "--preset", "laptop", "--tasks", "4"]
    refused = CliRunner().invoke(app, [*arguments, "--suite", "split-eval"])
    assert refused.exit_code == 2
    assert refused.stderr == (
        "error: --suite split-eval: contains half of the starts, and beliefs are computed over all "
        "of them; choose eval or test.\n"
    )


def test_lineups_whose_short_names_are_equal_have_a_row_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripts = {"a/run/checkpoint-5": "hint-bot", "b/run/checkpoint-5": "iggi"}

    def parse(spec: str, **options: Any) -> Lineup:
        return Lineup(text=spec, refs=(ScriptRef(name=scripts[spec]),) * 2)

    monkeypatch.setattr("hanabi_grpo.commands.beliefs.parse_lineup", parse)
    monkeypatch.setenv("COLUMNS", "120")
    done = CliRunner().invoke(app, ["beliefs", *scripts, "--preset", "laptop", "--tasks", "2"])
    assert done.exit_code == 0, done.output
    for spec in scripts:
        assert spec in done.output
