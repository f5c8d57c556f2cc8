"""The interface of environments.

Every environment conforms, broken ones are found, and bad replies mean one thing.
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from boards import ALL_BOARDS
from hanabi_grpo.envs import base, registry
from hanabi_grpo.envs.base import FORFEIT, SKIP, Environment, Setup, Task
from hanabi_grpo.envs.conformance import (
    ConformanceError,
    check,
    check_another_process,
    check_games,
    check_replies,
    check_starts,
)
from hanabi_grpo.envs.hanabi.environment import HANABI, Hanabi, HanabiGame
from hanabi_grpo.envs.hanabi.policies import PLANNERS
from hanabi_grpo.envs.people import Scene
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.referee import Referee, parts_of, play_scripts
from hanabi_grpo.envs.replies import answer_lines, last_choice
from hanabi_grpo.errors import IllegalActionError, SettingsError
from hanabi_grpo.types import EpisodeStatus, ReplyKind
from toy_environments import DILEMMA, GUESS, Guess, GuessGame, ToyConfig
from toy_kuhn import KUHN, Kuhn, KuhnConfig, KuhnGame

# --- Conformance


@pytest.mark.parametrize("environment", [KUHN, GUESS, DILEMMA], ids=["kuhn", "guess", "dilemma"])
def test_small_environments_pass_every_check(environment: Environment[Any]) -> None:
    [config] = environment.presets.values()
    hidden: dict[str, set[str]] = {
        "kuhn": {"opponent's card"},
        "guess": {"number"},
        "dilemma": set(),
    }
    report = check(environment, config)
    assert report.num_steps >= 60
    assert report.num_copies == report.num_steps
    assert set(report.secrets) == hidden[environment.name]


@pytest.mark.parametrize(("preset", "players"), [("laptop", 2), ("mini", 5), ("full", 3)])
def test_hanabi_passes_every_check(
    preset: str, players: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Those that take their time are in `test_planners`.
    quick = {name: make for name, make in HANABI.policies.items() if name not in PLANNERS}
    monkeypatch.setattr(HANABI, "policies", quick, raising=False)
    report = check(HANABI, HANABI.Config(preset=preset, players=players), num_episodes=5)
    assert set(report.secrets) == {"own cards", "deck"}


@pytest.mark.parametrize(("preset", "players"), ALL_BOARDS)
def test_no_board_of_hanabi_tells_a_player_its_own_cards_or_the_deck(
    preset: str, players: int
) -> None:
    for style in ("full", "compact"):
        config = HANABI.Config(preset=preset, players=players, observation=style)
        report = check_games(HANABI, config, num_episodes=3)
        board = config.spec()
        is_all_dealt = board.deck_size == board.num_players * board.hand_size
        assert set(report.secrets) == ({"own cards"} if is_all_dealt else {"own cards", "deck"})
        # Five players with one card each on 2x2, fewest of all: about 1 of 6 positions.
        assert report.secrets["own cards"] >= 0.1 * report.num_steps * players


class Leaky(KuhnGame):
    def message(self, player: int) -> str:
        message = super().message(player)
        is_opponents_card_high = self.cards[1 - player] == "K"
        return f"{message}!" if is_opponents_card_high else message


class LeakyScene(KuhnGame):
    def scene(self, player: int) -> Scene:
        return replace(super().scene(player), legend=f"The other has {self.cards[1 - player]}.")


class Stuck(KuhnGame):
    def resampled(self, player: int, rng: random.Random) -> KuhnGame:
        return self.copy()


class Silent(KuhnGame):
    def hidden(self, player: int) -> Mapping[str, Any]:
        return {}


class Shallow(KuhnGame):
    def copy(self) -> KuhnGame:
        return self


class Unpaid(KuhnGame):
    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        first, _ = super().step(actions)
        return first, {}


class Rich(KuhnGame):
    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        doubled = []
        for parts in super().step(actions):
            doubled.append({part: 2 * value for part, value in parts.items()})
        return doubled


class Fussy(KuhnGame):
    def parse(self, player: int, reply: str) -> str | None:
        return {"check": "check", "bet": "bet", "fold": "fold", "call": "call"}[reply]


class Deaf(KuhnGame):
    def parse(self, player: int, reply: str) -> str | None:
        return None


class Counting(KuhnGame):
    times = 0

    def message(self, player: int) -> str:
        self.times += 1
        return f"{super().message(player)} {self.times}"


class Tongue(KuhnGame):
    def legal(self, player: int) -> tuple[str, ...]:
        return ("check", "bet")


BROKEN_GAMES = [
    (Leaky, check_games, r"message\(\) of player \d not to depend on \"opponent's card\""),
    (LeakyScene, check_games, r"scene\(\) of player \d not to depend on \"opponent's card\""),
    (Stuck, check_games, 'the hidden value "opponent\'s card" to be exchanged in some positions'),
    (
        Silent,
        check_starts,
        r"equal starts if both what player \d is shown and its hidden\(\) are equal",
    ),
    (Shallow, check_games, "a move in a copy to leave the game unchanged"),
    (Unpaid, check_games, r"zero-sum parts from step\(\) that add up to 0"),
    (Rich, check_games, r"player 0's return in \(-2.0, 2.0\); found -?4.0"),
    (Fussy, check_replies, "every text to be accepted as a reply; found KeyError"),
    (Deaf, check_games, "parse to read the legal action"),
    (Counting, check_games, "messages, views and legal actions to change nothing"),
    (Tongue, check_games, r"legal\(\) == \(\) for player 1, who is not to act"),
]


@pytest.mark.parametrize(
    ("broken", "check_one", "message"), BROKEN_GAMES, ids=lambda one: getattr(one, "__name__", "")
)
def test_a_broken_game_is_found_and_the_message_says_what_is_wrong(
    broken: type[KuhnGame], check_one: Callable[..., object], message: str
) -> None:
    class Broken(Kuhn):
        def reset(self, config: KuhnConfig, *, split: str, seed: int) -> KuhnGame:
            return broken(super().reset(config, split=split, seed=seed).cards)

    with pytest.raises(ConformanceError, match=message):
        check_one(Broken(), KuhnConfig())


def test_a_hanabi_view_that_tells_an_own_card_is_found() -> None:
    class Telling(HanabiGame):
        def message(self, player: int) -> str:
            return f"{super().message(player)} {self.table.hands[player][0]}"

        def copy(self) -> HanabiGame:
            return Telling(self.config, self.table.copy())

        def resampled(self, player: int, rng: random.Random) -> HanabiGame:
            return Telling(self.config, super().resampled(player, rng).table)

    class Broken(Hanabi):
        def reset(self, config: Any, *, split: str, seed: int) -> HanabiGame:
            return Telling(config, super().reset(config, split=split, seed=seed).table)

    with pytest.raises(
        ConformanceError, match=r"message\(\) of player \d not to depend on 'own cards'"
    ):
        check_games(Broken(), HANABI.presets["laptop"])


HASHED = """
from toy_environments import Guess, GuessGame

class Hashed(Guess):
    def reset(self, config, *, split, seed):
        return Opened(config, 2 * (hash((split, seed)) % 5) + split.startswith("eval"))

class Opened(GuessGame):
    def state_message(self, player):
        return f"Below {self.number + 2}. " + super().state_message(player)

HASHED = Hashed()
"""


def test_starts_that_differ_between_processes_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hashed_starts.py").write_text(HASHED)
    register(tmp_path, {"guess": "hashed_starts:HASHED"})
    monkeypatch.syspath_prepend(str(tmp_path))
    hashed = registry.get("guess")
    with pytest.raises(ConformanceError, match=r"to start the same game in another process"):
        check_another_process(hashed, ToyConfig())


def test_starts_of_a_sound_environment_are_the_same_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not check_another_process(GUESS, ToyConfig())
    assert "not checked: whether another process" in str(check(GUESS, ToyConfig()))
    register(tmp_path, {"guess": "toy_environments:GUESS"})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert check_another_process(GUESS, ToyConfig())


@pytest.mark.parametrize(
    "name", [name for name, place in registry.OWN.items() if place.startswith("hanabi_grpo.")]
)
def test_the_starts_of_every_environment_here_are_the_same_in_another_process(name: str) -> None:
    environment = registry.get(name)
    assert check_another_process(environment, next(iter(environment.presets.values())))


def test_the_report_names_the_steps_at_which_a_leak_would_not_be_noticed() -> None:
    class Timid(KuhnGame):
        """Tells the other card after the first move; its `resampled` then changes nothing."""

        def message(self, player: int) -> str:
            told = f" {self.cards[1 - player]}" if self.actions else ""
            return super().message(player) + told

        def resampled(self, player: int, rng: random.Random) -> KuhnGame:
            return self.copy() if self.actions else super().resampled(player, rng)

    class Broken(Kuhn):
        def reset(self, config: KuhnConfig, *, split: str, seed: int) -> KuhnGame:
            return Timid(super().reset(config, split=split, seed=seed).cards)

    report = str(check_games(Broken(), KuhnConfig()))
    assert re.search(r"exchanged in \d+ of \d+ positions; never at step 1, 2, where", report)


def test_a_draw_is_the_same_for_ever() -> None:
    draws = [base.draw("train", seed, below=6) for seed in range(12)]
    assert draws == [2, 1, 0, 2, 3, 5, 4, 0, 1, 0, 2, 4]


def test_starts_that_change_or_are_shared_against_the_spec_are_found() -> None:
    class Shared(Guess):
        def reset(self, config: ToyConfig, *, split: str, seed: int) -> GuessGame:
            return super().reset(config, split="train", seed=seed)

    class Changing(Guess):
        calls = 0

        def reset(self, config: ToyConfig, *, split: str, seed: int) -> GuessGame:
            self.calls += 1
            return super().reset(config, split=split, seed=seed + self.calls)

    class OneName(Guess):
        def start_id(self, config: ToyConfig, *, split: str, seed: int) -> str:
            return split

    for environment, message in (
        (Shared(), "no start in both a training split and a held-out split"),
        (Changing(), "to start the same game each time"),
        (OneName(), "equal starts for the equal start_id 'train'"),
    ):
        with pytest.raises(ConformanceError, match=message):
            check_starts(environment, ToyConfig())


def test_a_spec_that_contradicts_itself_is_refused() -> None:
    right = {field: getattr(KUHN.spec(KuhnConfig()), field) for field in base.EnvSpec.__slots__}
    for field, value, message in (
        ("num_players", 9, "num_players=9: an environment has 1 to 8 players"),
        ("roles", ("only",), "give one role for each of 2 players"),
        ("max_turns", 0, "max_turns=0: give at least 1"),
        ("return_range", (1.0, 0.0), "give the minimum return first"),
    ):
        with pytest.raises(SettingsError, match=message):
            base.EnvSpec(**{**right, field: value})


# --- The referee


def task(environment: Environment[Any], seed: int = 0, **config: Any) -> Task[Any]:
    [preset] = environment.presets
    chosen = environment.Config(**{"preset": preset, **config})
    return Task(environment=environment, config=chosen, split="eval", seed=seed)


def test_a_bad_reply_costs_its_player_and_a_random_legal_action_takes_its_place() -> None:
    referee = Referee(task(KUHN, reward_illegal=-0.25))
    [illegal] = referee.step({0: "call"})
    [unparsable] = referee.step({1: "hm"})
    assert illegal.kind is ReplyKind.ILLEGAL
    assert illegal.rewards[0] == {"illegal": -0.25}
    assert illegal.action in ("check", "bet")
    assert unparsable.kind is ReplyKind.UNPARSABLE
    assert unparsable.rewards[1]["unparsable"] == -0.5
    assert "unparsable" not in unparsable.rewards[0]


def test_a_bad_reply_forfeits_where_the_spec_says_so() -> None:
    referee = Referee(task(DILEMMA))
    turns = referee.step({0: "share", 1: "steal", 2: "take"})
    assert [turn.action for turn in turns] == ["share", FORFEIT, "take"]
    assert [turn.step for turn in turns] == [0, 0, 0]
    assert [parts_of(turns, player) for player in range(3)] == [
        {},
        {"lost": -1.0, "illegal": -0.5},
        {},
    ]
    assert turns[1].rewards == ({}, {"lost": -1.0, "illegal": -0.5}, {})
    assert referee.status is EpisodeStatus.FINISHED


def test_a_bad_reply_loses_the_turn_where_the_spec_says_so_and_the_last_turn_truncates() -> None:
    referee = Referee(task(GUESS))
    assert referee.step({0: "what?"})[0].action == SKIP
    assert referee.see(0).message() == "No number."
    for _ in range(3):
        assert referee.status is None
        referee.step({0: "99"})
    assert referee.status is EpisodeStatus.TRUNCATED_TURNS
    assert referee.to_act() == ()
    assert referee.episode().reward(0) == -0.5
    with pytest.raises(IllegalActionError, match=r"The episode is over \(truncated_turns\)"):
        referee.step({0: "1"})


def test_the_words_for_a_bad_reply_are_bad_replies() -> None:
    class Echo(GuessGame):
        def parse(self, player: int, reply: str) -> str | None:
            return reply.strip() or None

    class Forgiving(Guess):
        def reset(self, config: ToyConfig, *, split: str, seed: int) -> GuessGame:
            return Echo(config, 3)

    for reply in (FORFEIT, SKIP):
        [turn] = Referee(task(Forgiving())).step({0: reply})
        assert turn.kind is ReplyKind.UNPARSABLE
        assert turn.rewards == ({"unparsable": -0.5},)
    # An action is sent and written as UTF-8.
    [turn] = Referee(task(Forgiving())).step({0: "3"})
    assert turn.kind is ReplyKind.LEGAL


def test_what_is_paid_late_is_added_to_what_the_step_paid() -> None:
    class Late(GuessGame):
        num_late = 2

        def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
            super().step(actions)
            return [{"score": 1.0}]

        def late(self) -> Sequence[Sequence[Mapping[str, float]]]:
            return [[{"score": 2.0}]] * self.num_late

    class Paying(Guess):
        def reset(self, config: ToyConfig, *, split: str, seed: int) -> GuessGame:
            return Late(config, 3)

    referee = Referee(task(Paying()))
    paid = referee.paid(referee.step({0: "5"}), 0)
    last = referee.step({0: "3"})
    assert paid == {"score": 1.0}
    assert referee.paid(last, 0) == {"score": 5.0}
    assert [turn.rewards for turn in referee.episode().turns] == [({"score": 3.0},)] * 2
    Late.num_late = 3
    referee = Referee(task(Paying()))
    with pytest.raises(SettingsError, match=r"late\(\) pays for 3 steps, but the game had 1"):
        referee.step({0: "3"})


def test_players_who_act_at_the_same_time_answer_together() -> None:
    referee = Referee(task(DILEMMA))
    assert referee.to_act() == (0, 1, 2)
    with pytest.raises(
        IllegalActionError,
        match=r"replies from players \[0, 1\]: give one reply for each of \[0, 1, 2\]",
    ):
        referee.step({0: "share", 1: "share"})
    referee.step({0: "share", 1: "take", 2: "share"})
    assert referee.see(0).message().endswith("The others chose ['take', 'share'].")
    assert referee.see(1).message().endswith("The others chose ['share', 'share'].")


def test_a_full_conversation_ends_the_episode_and_costs_its_player_in_its_last_step() -> None:
    referee = Referee(task(KUHN))
    referee.step({0: "check"})
    referee.step({1: "bet"})
    with pytest.raises(IllegalActionError, match="play it to its end"):
        referee.episode()
    referee.out_of_tokens(0)
    played = referee.episode()
    assert played.status is EpisodeStatus.TRUNCATED_TOKENS
    assert [turn.rewards for turn in played.turns] == [({"out_of_tokens": -0.5}, {}), ({}, {})]
    early = Referee(task(KUHN))
    early.out_of_tokens(0)
    assert early.episode().turns == ()


def test_an_observation_is_the_only_door_to_a_game_and_shows_one_player() -> None:
    seen = Referee(task(KUHN)).see(1)
    shown = {"legal", "message", "parse", "player", "scene", "state_message", "view", "window"}
    # Of the player's own tools.
    shown |= {"call_of", "calls", "follows_call", "is_call", "tools"}
    assert {name for name in dir(seen) if not name.startswith("_")} == shown
    assert seen.view().player == 1
    assert seen.legal() == ()


def test_by_default_figures_are_means_of_results_and_a_replay_shows_messages_and_actions() -> None:
    policies = {player: DILEMMA.policies["taker"]() for player in range(3)}
    played = play_scripts(task(DILEMMA), policies)
    assert DILEMMA.metrics(ToyConfig(), [played, played]) == {"rounds": 3.0}
    frames = list(DILEMMA.render(ToyConfig(), played))
    assert [frame.title for frame in frames] == ["turn 1", "turn 2", "turn 3", "end"]
    assert "player_2 reads:\nThe prize is" in frames[0].text
    assert frames[0].text.endswith("player_0: take\nplayer_1: take\nplayer_2: take")
    assert frames[-1].text == "rounds 3"


# --- Settings and replies


def test_a_bad_row_of_settings_is_refused() -> None:
    for row, message in (
        ({}, "env_config: key 'preset' is missing."),
        ({"preset": "laptpo"}, "preset='laptpo': no such board; did you mean 'laptop'?"),
        ({"preset": "laptop", "players": 3}, "players=3: preset 'laptop' is for 2 players"),
        ({"preset": "laptop", "players": "2"}, "players='2': Input should be a valid integer"),
        (
            {"preset": "laptop", "max_turn": 9},
            "unknown key 'max_turn'; did you mean 'max_turns'? allowed: preset,",
        ),
    ):
        with pytest.raises(SettingsError, match=re.escape(message)):
            HANABI.Config.parse(row)


def test_answers_are_the_last_lines_outside_thinking_without_decoration() -> None:
    reply = "<think>bet?</think>\nI am strong.\n\n**My final answer: Bet!**"
    assert list(answer_lines(reply)) == ["Bet", "I am strong"]
    assert last_choice(reply, ("check", "bet")) == "bet"
    assert last_choice("bet\nI said it", ("check", "bet")) == "bet"
    assert last_choice("I bet", ("check", "bet")) is None
    assert last_choice("<think>bet", ("check", "bet")) is None
    assert last_choice("bet " * 100, ("bet",)) is None


@pytest.mark.parametrize(
    ("reply", "choices", "choice"),
    [
        # Marks with which a choice begins or ends are no decoration.
        ("```\n+\n```", ("+", "-", "*", "/"), "+"),
        ("Options: x\n```\nx\n```", ("*", "x"), "x"),
        ("bB1 wS1", ("bB1 wS1-", "wQ"), None),
        ("bB1 wS1-", ("bB1 wS1-", "wQ"), "bB1 wS1-"),
        # The sign of a number neither; a dash before a space is that of a list.
        ("1", ("-1", "0"), None),
        ("-1", ("1", "2"), None),
        ("- 1", ("1", "2"), "1"),
        ("**-1**", ("-1", "1"), "-1"),
        # In chess a bishop is no pawn, and a check need not be announced.
        ("Bxa5", ("bxa5", "Nf3+"), None),
        ("o-o", ("O-O", "e4"), None),
        ("Move: Nf3.", ("bxa5", "Nf3+"), "Nf3+"),
        ("Nf3#", ("bxa5", "Nf3+"), "Nf3+"),
        ("FOLD!", ("Fold", "Call"), "Fold"),
        ("0,1", ("(0,1)", "(1,1)"), "(0,1)"),
    ],
)
def test_a_line_is_read_as_no_other_choice(
    reply: str, choices: tuple[str, ...], choice: str | None
) -> None:
    assert last_choice(reply, choices) == choice


# --- The registry


def register(folder: Path, entries: Mapping[str, str], distribution: str = "my-games") -> None:
    """Write what an installed package leaves behind."""
    info = folder / f"{distribution.replace('-', '_')}-2.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.5\n")
    lines = [f"[{registry.GROUP}]"]
    for name, value in entries.items():
        lines.append(f"{name} = {value}")
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture(autouse=True)
def fresh_registry() -> Any:
    registry._load.cache_clear()
    yield
    registry._load.cache_clear()


def test_a_row_that_names_a_preset_plays_it() -> None:
    for name in registry.OWN:
        environment = registry.get(name)
        for preset, config in environment.presets.items():
            setup = registry.setup(name, {"preset": preset})
            assert setup.spec == Setup(environment, config).spec
    slippery = registry.setup("frozen_lake", {"preset": "frozen_lake-slippery", "size": 6})
    assert (slippery.config.slippery, slippery.config.size) == (True, 6)


def test_an_installed_package_registers_an_environment_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path, {"guess": "toy_environments:GUESS", "broken": "no_such_module:GAME"})
    register(tmp_path, {"other": "toy_environments:GUESS"}, "other-games")
    monkeypatch.syspath_prepend(str(tmp_path))
    num_own = len(registry.OWN)
    own_names = registry.names()[:num_own]
    foreign_names = registry.names()[num_own:]
    assert own_names == tuple(registry.OWN)
    # Another package may be installed in the same virtual environment.
    assert set(foreign_names) >= {"broken", "guess", "other"}
    assert list(foreign_names) == sorted(foreign_names)
    assert registry.get("guess") is GUESS
    assert registry.origin("guess") == registry.Origin(
        env="guess", distribution="my-games", version="2.5"
    )
    with pytest.raises(
        SettingsError, match=r"my-games 2.5 registers no_such_module:GAME, which cannot be loaded"
    ):
        registry.get("broken")
    with pytest.raises(
        SettingsError,
        match="whose name is 'guess'; the entry point and the environment need the same",
    ):
        registry.get("other")


def test_a_name_that_two_packages_register_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path, {"kuhn": "toy_environments:GUESS", "guess": "toy_environments:GUESS"})
    register(tmp_path, {"guess": "toy_environments:GUESS"}, "other-games")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        SettingsError,
        match=r"env='kuhn' is registered by hanabi-grpo and my-games 2.5: uninstall all",
    ):
        registry.get("kuhn")
    with pytest.raises(
        SettingsError, match=r"env='guess' is registered by my-games 2.5 and other-games 2.5"
    ):
        registry.get("guess")


def test_an_unknown_name_or_a_path_is_refused_with_the_known_names() -> None:
    names: dict[Any, str] = {
        "khun": "env='khun': no such environment; did you mean 'kuhn'",
        "hanabi_grpo.envs.kuhn:KUHN": "an environment name consists of lower-case letters, digits, "
        "'_' and '-', and is never a path",
        "../kuhn.py": "never a path; known: hanabi, tic_tac_toe",
        "": "never a path",
        7: "env=7: an environment name consists of lower-case letters",
    }
    for name, message in names.items():
        with pytest.raises(SettingsError, match=message):
            registry.get(name)


# --- The hash of the rules

HASHES = {
    "hanabi marshal-mini": "bac93c439849",
    "hanabi marshal-simple": "d8a738a8469e",
    "hanabi marshal-full": "379f5287671e",
    "hanabi laptop": "6d2c920b5b32",
    "hanabi mini": "bac93c439849",
    "hanabi simple": "c72c725b49f6",
    "hanabi small": "eb895c1a49a7",
    "hanabi hle-small": "f1c898ea6d13",
    "hanabi hle-very-small": "d18497f28124",
    "hanabi full": "10743f8424a0",
    "tic_tac_toe tic_tac_toe": "c289a2148701",
    "connect_four connect_four": "7382066227e4",
    "connect_four connect_four-4x5": "23ffcd7ac211",
    "kuhn_poker kuhn_poker": "831650adcc4e",
    "leduc_poker leduc_poker": "e47ef9396daa",
    "frozen_lake frozen_lake": "699eca9348f3",
    "frozen_lake frozen_lake-slippery": "e5343c7be0be",
    "sokoban sokoban": "16bf5674ecf4",
    "sokoban sokoban-2": "453c686ba1f9",
    "vote vote": "e8b937835402",
    "vote vote-calculator": "0a1f34412808-ed0d9c8b0222",
    "debate debate": "f9a8311f5b1d",
    "debate debate-calculator": "6b3dcac301d8-ed0d9c8b0222",
    "summary summary": "f6bc314a7a4e",
    "summary summary-calculator": "954713a4b35f-ed0d9c8b0222",
    "pioneer_observer pioneer_observer": "59ad6e809f51",
    "pioneer_observer pioneer_observer-calculator": "1d4181cbcfcf-ed0d9c8b0222",
    "revise revise": "3457e0eab261",
    "revise revise-calculator": "6378f22ee51a-ed0d9c8b0222",
    "split_sum split_sum": "c9c9baa401c2",
    "split_sum split_sum-2": "62064a6f6c0d",
    "hat_line hat_line": "cfba468bace0",
    "hat_line hat_line-4": "bb3df55d26c7",
    "levers levers": "0792d9e7d756",
    "openspiel:breakthrough breakthrough": "ddfd7622fb70",
}
"""Hashes of the rules by environment and preset, as records and results name them."""


def setups_of_presets() -> Iterator[Setup[Any]]:
    for name in dict.fromkeys(key.split()[0] for key in HASHES):
        environment = registry.get(name)
        for config in environment.presets.values():
            yield Setup(environment, config)


def rewards_of(setup: Setup[Any]) -> list[str]:
    return [name for name in type(setup.config).model_fields if name.startswith("reward_")]


def changed(setup: Setup[Any], **fields: Any) -> Setup[Any]:
    return registry.setup(setup.env, {**setup.config.model_dump(), **fields})


def test_the_rules_of_presets_have_the_hashes_that_records_name() -> None:
    found = {f"{setup.env} {setup.spec.preset}": setup.spec.hash for setup in setups_of_presets()}
    assert found == HASHES


def test_a_game_with_other_rewards_or_another_memory_is_the_same_game() -> None:
    num_compared = 0
    for setup in setups_of_presets():
        for memory in ("game", "turn", 3):
            assert changed(setup, memory=memory).spec.hash == setup.spec.hash
        if setup.spec.score == "return":
            continue
        for name in rewards_of(setup):
            weight = getattr(setup.config, name) + 0.25
            assert changed(setup, **{name: weight}).spec.hash == setup.spec.hash, (setup.env, name)
            num_compared += 1
    assert num_compared > 60


def test_rewards_are_part_of_a_game_whose_score_is_the_return() -> None:
    for setup in setups_of_presets():
        if setup.spec.score != "return":
            continue
        for name in rewards_of(setup):
            weight = getattr(setup.config, name) + 0.25
            assert changed(setup, **{name: weight}).spec.hash != setup.spec.hash, (setup.env, name)


@pytest.mark.parametrize("env", ["split_sum", "sokoban", "vote"])
def test_a_game_recorded_with_other_rewards_can_be_learned_from(env: str) -> None:
    setup = registry.setup(env, {"preset": env})
    played = changed(setup, reward_illegal=-3.0, memory="game")
    script = next(iter(setup.environment.policies.values()))()
    seats = dict.fromkeys(range(setup.spec.num_players), script)
    episode = play_scripts(played.task("train", 4), seats)
    game, start = setup.environment.recorded(setup.config, Recording(episode=episode))
    assert start == setup.environment.start_id(setup.config, split="train", seed=4)
    assert game.to_act() == played.environment.reset(played.config, split="train", seed=4).to_act()
