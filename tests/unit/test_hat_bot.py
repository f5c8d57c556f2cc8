"""The hat bot: each player reads its own advice out of a hint, and nothing that it may not know."""

import random
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

import pytest

from boards import random_game, scripted_game
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.policies import hat
from hanabi_grpo.envs.hanabi.prompts.deductions import Counted
from hanabi_grpo.envs.hanabi.rules import Card, Game, PlayerView, make_spec, shuffled_deck
from hanabi_grpo.envs.hanabi.rules.actions import discard, play
from hanabi_grpo.envs.hanabi.rules.history import last_hint_since, table_before
from hanabi_grpo.envs.hanabi.rules.view import Event
from hanabi_grpo.envs.rewards import with_rewards
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.lineups import parse_lineups
from hanabi_grpo.rollout.messages import playable_scripts

BOARDS = [
    ("full", 3),
    ("full", 4),
    ("full", 5),
    ("mini", 3),
    ("mini", 5),
    ("small", 4),
    # Less than three classes for a target, no ranks to tell apart, no colours, one card, no hints.
    ("2x5-hand2-info4-life2", 3),
    ("5x1-hand4-info5-life3", 3),
    ("1x5-hand2-info8-life3", 4),
    ("4x4-hand1-info6-life1", 3),
    ("3x3-hand2-info0-life3", 4),
    ("5x5-hand8-info8-life3", 3),
]


def played_games(preset: str, players: int, num_games: int, *, bot: str = "hat-bot") -> list[Game]:
    """Return games of hat bots at their end."""
    config = EnvConfig(preset=preset, players=players)
    return [scripted_game(config, [bot] * players, seed=seed) for seed in range(num_games)]


def moments(game: Game) -> list[Game]:
    """Return a game before its first move, before its second, ..., and at its end."""
    table = Game(game.spec, game.deck)
    tables = [table.copy()]
    for event in game.events:
        table.apply(event.action)
        tables.append(table.copy())
    return tables


@pytest.mark.parametrize(("preset", "players"), BOARDS)
def test_a_hint_tells_each_player_what_one_who_sees_its_hand_would_advise(
    preset: str, players: int
) -> None:
    num_read = 0
    for game in played_games(preset, players, 12):
        tables = moments(game)
        for index, event in enumerate(game.events):
            is_last = index + 1 == len(game.events)
            if event.card is not None or is_last:
                continue
            sizes = [len(hand) for hand in tables[index].hands]
            code = hat._code(hat.Convention(game.spec), sizes, event.player)
            giver = Counted(tables[index].view(event.player))
            for seat in range(players):
                if seat == event.player:
                    continue
                hand = tables[index].hands[seat]
                advised = code.advised(code.advice(giver, hand))
                # At once, and at the reader's turn.
                for at in (index + 1, next_turn(game, index, seat)):
                    decoded = hat._decoded(hat.Convention(game.spec), tables[at].view(seat), index)
                    assert decoded is not None
                    assert decoded.move == advised
                    num_read += 1
    assert num_read > 20 or "info0" in preset


def next_turn(game: Game, index: int, seat: int) -> int:
    """Return the number of a player's first move after another, of the next where it has none."""
    for number in range(index + 1, len(game.events)):
        if game.events[number].player == seat:
            return number
    return index + 1


@pytest.mark.parametrize(("preset", "players"), [("full", 3), ("mini", 5), ("small", 4)])
def test_the_table_of_an_earlier_time_is_found_from_what_a_player_sees_now(
    preset: str, players: int
) -> None:
    rng = random.Random(players)
    num_compared = 0
    for _ in range(30):
        game = random_game(make_spec(preset, players), rng)
        tables = moments(game)
        if game.is_over:  # then nobody asks, and the turns left are not counted
            tables.pop()
        now = tables[-1].view(rng.randrange(players))
        for index in range(len(tables) - 1):
            then = table_before(now, index)
            expected = tables[index].view(now.player)
            assert then.view.fireworks == expected.fireworks
            assert then.view.discards == expected.discards
            assert then.view.hands == expected.hands
            assert then.sizes == tuple(len(hand) for hand in tables[index].hands)
            num_compared += 1
    assert num_compared > 100


@pytest.mark.parametrize("players", [3, 4, 5])
def test_a_move_depends_on_the_view_and_on_the_moves_since_the_players_own_last_one(
    players: int,
) -> None:
    num_shortened = 0
    for game in played_games("full", players, 6):
        for table, event in zip(moments(game), game.events, strict=False):
            view = table.view(event.player)
            short = since_own_move(view)
            num_shortened += len(short.events) < len(view.events)
            rng = random.Random(0)
            assert hat.decide(hat.Convention(game.spec), short, rng).move == event.action
    assert num_shortened > 100


def since_own_move(view: PlayerView) -> PlayerView:
    """Return a view whose events are the player's own last move and what came after it."""
    start = 0
    for index, event in enumerate(view.events):
        if event.player == view.player:
            start = index
    return view._replace(events=view.events[start:])


def test_the_classes_are_as_many_as_the_docs_say() -> None:
    for players, hand, expected in ((3, 5, 6), (4, 4, 9), (5, 4, 12)):
        spec = make_spec("full", players)
        assert len(hat._code(hat.Convention(spec), [hand] * players, giver=1).classes) == expected
    three = hat._code(hat.Convention(make_spec("full", 3)), [5, 5, 5], giver=0)
    assert (three.num_plays, three.num_discards) == (5, 1)
    five = hat._code(hat.Convention(make_spec("full", 5)), [4] * 5, giver=0)
    assert (five.num_plays, five.num_discards) == (4, 4)


def adviser(*, is_plain: bool) -> Callable[..., str]:
    """Return what is advised for a hand of (colour, printed rank) with five players."""
    spec = make_spec("full", 5)
    code = hat._code(hat.Convention(spec, is_plain=is_plain), [4] * 5, giver=0)
    view = Game(spec, shuffled_deck(spec, "train", 0)).view(0)
    # Red stands at 4, the others at 0; a yellow 2 is the last of its kind.
    counted = Counted(view._replace(fireworks=(4, 0, 0, 0, 0), discards=(Card(1, 1),)))

    def advised(*hand: tuple[int, int]) -> str:
        cards = [Card(color, rank - 1) for color, rank in hand]
        move = code.advised(code.advice(counted, cards))
        return f"{move.kind} {move.slot}"

    return advised


def test_what_is_advised_is_what_the_paper_advises() -> None:
    advised = adviser(is_plain=False)
    assert advised((1, 1), (0, 5), (2, 1), (2, 2)) == "play 1"
    assert advised((1, 3), (2, 2), (2, 1), (3, 1)) == "play 2"
    assert advised((2, 4), (0, 2), (0, 1), (1, 2)) == "discard 1"
    assert advised((2, 2), (2, 4), (3, 4), (1, 5)) == "discard 1"
    assert advised((1, 5), (2, 5), (3, 5), (1, 2)) == "discard 0"


def test_the_plain_convention_ignores_ranks() -> None:
    advised = adviser(is_plain=True)
    assert advised((1, 1), (0, 5), (2, 1), (2, 2)) == "play 0"
    assert advised((1, 3), (2, 2), (2, 1), (3, 1)) == "play 2"
    assert advised((2, 4), (0, 2), (0, 1), (1, 2)) == "discard 1"
    assert advised((1, 2), (2, 2), (2, 4), (1, 5)) == "discard 1"
    assert advised((1, 5), (2, 5), (3, 5), (1, 2)) == "discard 0"


@pytest.mark.parametrize(("players", "least"), [(3, 23.0), (4, 23.5), (5, 22.4)])
def test_the_plain_convention_is_nearly_as_good(players: int, least: float) -> None:
    games = played_games("full", players, 60, bot="plain-hat-bot")
    assert fmean(game.score for game in games) > least
    assert not any(game.is_bombed for game in games)


def test_only_in_the_last_round_does_the_plain_convention_risk_a_life() -> None:
    risks = {"hat-bot": 0, "plain-hat-bot": 0}
    for bot in risks:
        for game in played_games("full", 5, 30, bot=bot):
            for state, event in zip(moments(game), game.events, strict=False):
                is_misplay = event.action.kind == "play" and not event.scored
                is_last_round = state.view(event.player).turns_left is not None
                risks[bot] += is_misplay and not is_last_round
    assert risks["plain-hat-bot"] == 0
    assert risks["hat-bot"] > 0


def test_an_advised_card_may_be_a_copy_of_one_played_since_unless_hints_exclude_it() -> None:
    convention = hat.Convention(make_spec("1x5-hand2-info3-life3", 3), is_plain=True)
    ranks = (3, 4, 1, 3, 4, 1, 5, 2, 2, 1)
    table = Game(convention.spec, tuple(Card(0, rank - 1) for rank in ranks))
    for seat in (0, 1):
        table.apply(hat.decide(convention, table.view(seat), random.Random(0)).move)
    # player_0's hint told both others to play a 1, and player_1 has done so; three 1s exist.
    view = table.view(2)

    advice = hat.last_hint(convention, view)
    assert advice is not None
    assert advice.move == play(1)
    one = view.events[-1]
    assert one.card == Card(0, 0)
    assert hat.scored_since(advice, view) == [hat.Scored(one, may_be_advised=True)]
    assert hat.decide(convention, view, random.Random(0)).move != play(1)

    # A hint says that the advised card is no 1.
    other, advised = view.own_hand
    no_one = replace(advised, ranks=(1, 2, 3, 4))
    hinted = view._replace(own_hand=(other, no_one))
    assert hat.scored_since(advice, hinted) == [hat.Scored(one, may_be_advised=False)]

    # There is one 5, and it has been played.
    five = Event(0, play(0), card=Card(0, 4), scored=True)
    later = view._replace(events=(*view.events, five))
    [_, second] = hat.scored_since(advice, later)
    assert second == hat.Scored(five, may_be_advised=False)

    # Nothing is listed for advice to discard.
    to_discard = replace(advice, number=(advice.number + 2) % advice.code.modulus)
    assert to_discard.move.kind == "discard"
    assert hat.scored_since(to_discard, view) == []


def test_a_card_that_another_has_played_meanwhile_is_discarded_and_not_played() -> None:
    spec = make_spec("1x5-hand2-info3-life3", 3)
    convention = hat.Convention(spec)
    ranks = (3, 4, 1, 3, 4, 1, 5, 2, 2, 1)
    table = Game(spec, tuple(Card(0, rank - 1) for rank in ranks))
    rng = random.Random(0)
    # Both others hold a 1.
    table.apply(hat.decide(convention, table.view(0), rng).move)
    assert hat.last_hint(convention, table.view(2)).move == play(1)  # type: ignore[union-attr]
    assert hat.decide(convention, table.view(2)._replace(legal_actions=()), rng).move == play(1)
    table.apply(hat.decide(convention, table.view(1), rng).move)
    assert table.fireworks == (1,)
    assert hat.decide(convention, table.view(2), rng).move == discard(1)


def test_after_a_misplay_no_hint_before_it_advises_anybody() -> None:
    num_trusted = 0
    num_refuted = 0
    for seed in range(10):
        table = scripted_game(config(4), ["random", *["hat-bot"] * 3], seed=seed)
        convention = hat.Convention(table.spec)
        for state, event in zip(moments(table), table.events, strict=False):
            view = state.view(event.player)
            hint = last_hint_since(view, view.player)
            if hint is None:
                continue
            decoded = hat.last_hint(convention, view)
            giver = state.view(view.events[hint].player)
            told = hat._last_advice_to(convention, giver, view.player)
            if is_misplayed_since(view, hint):
                assert decoded is None
                assert told is None
                num_refuted += 1
            elif decoded is not None:  # it may stand for no number
                assert told is not None
                num_trusted += 1
    assert num_trusted > 100
    assert num_refuted > 10


def is_misplayed_since(view: PlayerView, index: int) -> bool:
    """Return whether a card was misplayed after a move."""
    later = view.events[index:]
    return any(event.action.kind == "play" and not event.scored for event in later)


def test_that_rule_is_worth_a_point_where_one_hint_in_twelve_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_the_rule = mean_score_with_wrong_hints(3)
    monkeypatch.setattr(hat, "_trusted_hint", last_hint_since)
    assert with_the_rule > mean_score_with_wrong_hints(3) + 1


def mean_score_with_wrong_hints(players: int) -> float:
    """Return the mean score of 200 games in which one hint in twelve is any other."""
    convention = hat.Convention(make_spec("full", players))
    scores = []
    for seed in range(200):
        rng = random.Random(seed)
        table = Game(convention.spec, shuffled_deck(convention.spec, "eval", seed))
        while not table.is_over:
            view = table.view(table.current_player)
            move = hat.decide(convention, view, rng).move
            if move.target >= 0 and rng.random() < 1 / 12:
                move = rng.choice([other for other in view.legal_actions if other.target >= 0])
            table.apply(move)
        scores.append(0 if table.is_bombed else table.score)
    return fmean(scores)


REWARDS = {"nothing": lambda episode: [0.0] * episode.num_players}


def config(players: int, **other: object) -> EnvConfig:
    return EnvConfig.model_validate({"preset": "full", "players": players, **other})


@pytest.mark.parametrize(("players", "least"), [(3, 23.2), (4, 24.0), (5, 23.7)])
def test_three_and_more_score_far_above_every_other_bot(players: int, least: float) -> None:
    games = played_games("full", players, 60)
    assert fmean(game.score for game in games) > least
    assert not any(game.is_bombed for game in games)


@pytest.mark.parametrize(("preset", "players"), BOARDS)
def test_every_move_is_legal_on_every_board(preset: str, players: int) -> None:
    only = Setup(HANABI, EnvConfig(preset=preset, players=players))
    policy = make_script(only, "hat-bot").policy
    for seed in range(10):
        game = scripted_game(only.config, [policy] * players, suite="train", seed=seed)
        assert game.is_over


def test_beside_strangers_it_plays_to_the_end() -> None:
    for seed in range(20):
        for team in (["hat-bot", "random", "iggi"], ["random", "hat-bot", "hat-bot", "blind"]):
            assert scripted_game(config(len(team)), team, seed=seed).is_over


def test_two_players_are_refused_before_anything_is_played() -> None:
    message = "hat-bot on full with 2 players: .* HANABI_PLAYERS=3 or more, or use focus-bot"
    two = Setup(HANABI, config(2))
    paid = with_rewards(HANABI, name="paid", rewards=REWARDS, reward_range=(0, 0))
    for refused in (
        lambda: make_script(two, "hat-bot"),
        lambda: parse_lineups(["iggi", "hat-bot,iggi"], two),
        lambda: scripted_game(config(2), ["hat-bot", "hat-bot"]),
        lambda: make_script(Setup(paid, config(2)), "hat-bot"),
    ):
        with pytest.raises(SettingsError, match=message):
            refused()
    with pytest.raises(SettingsError, match="plain-hat-bot-aloud on full with 2 players"):
        make_script(two, "plain-hat-bot-aloud")
    make_script(Setup(HANABI, config(3)), "hat-bot")


def test_pages_offer_the_scripts_that_play_the_game() -> None:
    everything = [*HANABI.policies]
    hat_bots = {"hat-bot", "hat-bot-aloud", "plain-hat-bot", "plain-hat-bot-aloud"}
    assert set(everything) - {*playable_scripts(Setup(HANABI, config(2)))} == {
        *hat_bots,
        "best-response",
        "best-messages",
    }
    laptop = EnvConfig(preset="laptop")
    assert set(everything) - {*playable_scripts(Setup(HANABI, laptop))} == hat_bots
    assert hat_bots < set(playable_scripts(Setup(HANABI, config(3))))
