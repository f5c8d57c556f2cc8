"""A person at the table: what is typed, what is shown, and that nothing hidden is."""

import asyncio
import io
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from boards import ALL_BOARDS, random_game
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.human.moves import read_move, short_form
from hanabi_grpo.envs.hanabi.human.screens import beliefs_screen, help_screen, sentence
from hanabi_grpo.envs.hanabi.human.seat import HumanPolicy, PlayerLeftError
from hanabi_grpo.envs.hanabi.policies import make_policy
from hanabi_grpo.envs.hanabi.rules import Action, Card, Event, Game, PlayerView, make_spec, shuffled_deck
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.types import ReplyKind, player_names

REDS, YELLOWS = (Card(0, 0), Card(0, 0), Card(0, 1)), (Card(1, 0), Card(1, 0), Card(1, 1))


def laptop() -> Game:
    """Player 0 holds R1 R1 R2, player 1 Y1 Y1 Y2."""
    return Game(make_spec("laptop"), (*REDS, *YELLOWS, Card(0, 0), Card(1, 0)))


def small_three() -> Game:
    spec = make_spec("simple", 3)
    return Game(spec, shuffled_deck(spec, "train", 1))


def answers(lines: Sequence[str]) -> Callable[[str], str]:
    left = iter(lines)

    def ask(prompt: str) -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return ask


def captured(view: PlayerView, lines: Sequence[str], *, width: int = 80, colors: bool = False) -> tuple[str, str]:
    """Return the screen after these lines and the move that was made; "" when the person left."""
    screen = io.StringIO()
    console = Console(file=screen, width=width, highlight=False, emoji=False, force_terminal=colors)
    policy = HumanPolicy(console=console, ask=answers(lines), labels=player_names(view.num_players))
    seat = policy.seat(view.player, spec=make_spec("full"), suite="human", seed=0, game=0)
    try:
        move = asyncio.run(seat.reply(view, lambda: "")).text
    except PlayerLeftError:
        move = ""
    return screen.getvalue(), move


@pytest.mark.parametrize(
    ("text", "move"),
    [
        *[(text, Action("play", slot=0)) for text in ("p0", "P 0", "play 0", "Play0", " play\t0 ", "Action: Play 0")],
        *[(text, Action("hint_color", target=1, value=1)) for text in ("hy", "h y", "H Yellow", "hint y", "h1y")],
        *[(text, Action("hint_color", target=1, value=1)) for text in ("hint player_1 yellow", "h p1 y", "hint 1 Y")],
        *[(text, Action("hint_rank", target=1, value=1)) for text in ("h2", "h 2", "hint 2", "h12", "h 1 2")],
        ("**Hint player_1 2**", Action("hint_rank", target=1, value=1)),
    ],
)
def test_a_move_may_be_typed_in_many_ways(text: str, move: Action) -> None:
    assert read_move(text, laptop().view(0)) == move


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hr", "A hint must touch a card, and player_1 holds no red one."),
        ("hb", "No card of this board is blue."),
        ("h5", "The ranks of this board are 1 to 2."),
        ("h7", "The ranks of this board are 1 to 2."),
        ("h0r", "A hint goes to another player, not to yourself."),
        ("h3r", "There is no player_3: the players are 0 to 1."),
        ("p3", "There is no slot 3: you hold slots 0 to 2."),
        ("d0", "All 3 hint tokens are there, so nothing may be discarded: play a card or give a hint."),
        ("red", "That is no move. A move is like p0, d2 or h red; ? lists all that you have."),
        ("p٠", "That is no move. A move is like p0, d2 or h red; ? lists all that you have."),
        ("p" + " " * 10**6 + "0", "That is no move. A move is like p0, d2 or h red; ? lists all that you have."),
    ],
)
def test_what_is_no_move_is_told_why(text: str, why: str) -> None:
    assert read_move(text, laptop().view(0)) == why


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_the_help_lists_every_legal_move_in_a_form_that_is_read_as_it(preset: str, num_players: int, seed: int) -> None:
    game = random_game(make_spec(preset, num_players), random.Random(seed))
    if game.is_over:
        return
    view = game.view(game.current_player)
    screen = io.StringIO()
    Console(file=screen, width=200).print(help_screen(view))
    words = screen.getvalue().split()
    for action in view.legal_actions:
        assert read_move(short_form(action, view), view) == action
        assert short_form(action, view) in words


@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=st.text() | st.from_regex(r"[hpd][ 0-9a-z_]{0,12}"), three=st.booleans())
def test_any_line_is_a_legal_move_or_a_reason(text: str, three: bool) -> None:
    view = (small_three() if three else laptop()).view(0)
    found = read_move(text, view)
    assert found in view.legal_actions or (isinstance(found, str) and found.endswith((".", "?")))


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_every_screen_fits_into_eighty_columns(preset: str, num_players: int, seed: int) -> None:
    view = random_game(make_spec(preset, num_players), random.Random(seed)).view(0)
    screen, _ = captured(view, ("?", "k", "l"))
    assert max(map(len, screen.splitlines())) <= 80
    assert "…" not in screen


def test_the_table_shows_partners_cards_and_only_what_is_known_of_the_own() -> None:
    game = laptop()
    game.apply(Action("hint_color", target=1, value=1))
    game.apply(Action("hint_rank", target=0, value=0))
    screen, move = captured(game.view(0), ["p0"])
    assert move == "Play 0"
    assert [" ".join(line.split()) for line in screen.splitlines() if line.strip()] == [
        "turn 3 " + "─" * 73,
        "You hinted player_1 yellow: slots 0 1 2.",
        "player_1 hinted you rank 1: slots 0 1.",
        "Fireworks R0 Y0 0 points of 4",
        "Lives 1 of 1 Hints 1 of 3 Deck 2",
        "Discarded nothing",
        "0 1 2",
        "player_1 Y1 Y1 Y2",
        "knows Y? Y? Y?",
        "player_0 ?1 ?1 ?2",
    ]


def test_moves_are_told_in_words() -> None:
    play = Event(0, Action("play", slot=1), Card(0, 0), True)
    miss = Event(1, Action("play", slot=1), Card(0, 1))
    gone = Event(1, Action("discard", slot=0), Card(4, 4))
    hint = Event(1, Action("hint_rank", target=0, value=2), touched=(1,))
    assert [sentence(event, 0) for event in (play, miss, gone, hint)] == [
        "You played slot 1: R1, it fits.",
        "player_1 played slot 1: R2, it does not fit and costs a life.",
        "player_1 discarded slot 0: B5.",
        "player_1 hinted you rank 3: slot 1.",
    ]


def test_the_counted_cards_are_those_that_the_player_cannot_see() -> None:
    game = laptop()
    game.apply(Action("hint_rank", target=1, value=0))
    game.apply(Action("hint_rank", target=0, value=0))
    screen = io.StringIO()
    Console(file=screen, width=80).print(beliefs_screen(game.view(0)))
    # Player 1 shows Y1 Y1 Y2; unseen are R1 three times, R2 and Y1.
    assert screen.getvalue().splitlines()[1:] == [
        "slots 0 1  ?1",
        "  fits now 100%  R1x3 Y1".ljust(24),
        "slot 2  ?2",
        "  later  R2",
    ]


def test_a_person_is_asked_again_and_never_penalised() -> None:
    lines = ["", "nonsense", "p9", "d0", "?", "hr", "h 1"] * 20
    config = EnvConfig(preset="marshal-mini")
    console = Console(file=io.StringIO(), width=80)
    human = HumanPolicy(console=console, ask=answers([*lines, *["p0"] * 20]), labels=("you", "player_1"))
    episode = asyncio.run(play_episode(config, [human, make_policy("iggi")], suite="human", seed=4))
    own = episode.trajectory(0)
    assert {turn.kind for turn in own} == {ReplyKind.LEGAL}
    assert all(set(turn.rewards) <= {"score", "bomb"} for turn in own)
    assert episode.seats == ("human", "iggi")


@pytest.mark.parametrize("lines", [["q"], [" QUIT "], [], ["?", "exit"]])
def test_leaving_and_the_end_of_the_input_end_the_game_without_a_move(lines: list[str]) -> None:
    assert captured(laptop().view(0), lines)[1] == ""
