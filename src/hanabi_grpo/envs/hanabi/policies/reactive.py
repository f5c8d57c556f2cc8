"""The best known players that read one message a turn, for a board with few decks.

A reactive player chooses by its present message alone, as a model with HANABI_MEMORY=turn does; the
messages are those of compact observations with HANABI_DEDUCTIONS=counted. The search is coordinate
ascent over messages: from the last turn to the first, every message takes the move that is best
given all other choices, over all decks. A game meets a message at most once, since a message tells
which turn it is, so that messages of one turn do not disturb one another and the mean score never
falls. Where it rests, part of the choices is drawn at random and the ascent begins again from
there; the best team of all is kept. Its mean is exact, up to a collision of 64 bits. How far it is
from the best team is not known.
"""

import functools
import logging
import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies.all_deals import (
    NO_CARD,
    NO_LIMIT,
    Flags,
    Games,
    Hashes,
    Numbers,
    all_games,
    final_scores,
    hands_after,
    hints_of,
    legal,
    mixed,
    step,
    touched_slots,
)
from hanabi_grpo.envs.hanabi.policies.best_response import check_num_decks
from hanabi_grpo.envs.hanabi.policies.rule_bots import move_text, rule_move
from hanabi_grpo.envs.hanabi.prompts.compact import compact_turn
from hanabi_grpo.envs.hanabi.prompts.deductions import Counted
from hanabi_grpo.envs.hanabi.rules.game import load_rules
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Card, Event, Knowledge, PlayerView

logger = logging.getLogger(__name__)

ROUNDS = 24
"""Ascents to a resting point; all but the first begin from the best team with choices redrawn."""
PASSES = 200
"""Most passes of an ascent, which rests after some 5 to 35."""
REDRAWN_SHARES = (0.02, 0.05, 0.1, 0.2)
"""Shares of the choices that are redrawn, in turn."""
START_BOT = "iggi"
"""Moves at first, and wherever the team has never been.

A new move is worth what the partner makes of it, so random moves off the path keep it from being
found: from them the ascent rests at 2.9 on `laptop`, from IGGI's at 3.88.
"""

_NUM_CACHED_TEAMS = 4
_PASSES_OF_REST = 2
"""Passes without a gain after which an ascent rests; equals are drawn anew in each."""
_NO_EVENT = -1
"""In the place of a packed event."""

Values = NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class _Tables:
    """Games in progress, n of them, with all that a message is made of."""

    games: Games
    colors: Numbers
    """(n, players, slots): colours that hints leave possible, bit i for colour i; 0: no card."""
    ranks: Numbers
    """(n, players, slots): ranks that hints leave possible."""
    discards: Numbers
    """(n, kinds): cards discarded or misplayed."""
    events: Numbers
    """(n, players): each seat's last move, packed, or `_NO_EVENT`."""

    def __len__(self) -> int:
        return len(self.games)

    def take(self, rows: Numbers) -> "_Tables":
        """Return copies of these games."""
        return _Tables(
            games=self.games.take(rows),
            colors=self.colors[rows],
            ranks=self.ranks[rows],
            discards=self.discards[rows],
            events=self.events[rows],
        )


class _Move(NamedTuple):
    """A move as everybody saw it."""

    number: int
    """OpenSpiel's number."""
    card: int
    """The card given up, or `NO_CARD`."""
    touched: int
    """Bits of the slots that a hint touched."""
    scored: int
    """1 for a correct play."""


class _Packing(NamedTuple):
    """How `_Move`s are numbers."""

    num_kinds: int
    hand_size: int

    def pack(self, number: Numbers, card: Numbers, touched: Numbers, scored: Flags) -> Numbers:
        packed = number * (self.num_kinds + 1) + card + 1
        packed = (packed << self.hand_size) | touched
        return packed * 2 + scored

    def unpack(self, packed: int) -> _Move:
        packed, scored = divmod(packed, 2)
        touched = packed & ((1 << self.hand_size) - 1)
        number, card = divmod(packed >> self.hand_size, self.num_kinds + 1)
        return _Move(number, card - 1, touched, scored)


class _Choices:
    """The messages that were ever met, and the move of each.

    Attributes:
        spec: The board.
        moves: (messages,), the chosen move of each message, by OpenSpiel's number.
        rng: Draws moves.
    """

    def __init__(self, spec: GameSpec) -> None:
        self.spec = spec
        self.moves = np.zeros(0, int)
        self.rng = np.random.default_rng(0)
        self._bots_rng = random.Random(0)
        self._packing = _packing(spec)
        self._number_of_text: dict[str, int] = {}
        # Building a text takes a hundred times as long as finding it again.
        self._number_of_key: dict[int, int] = {}
        self._options: list[Flags] = []

    @property
    def texts(self) -> list[str]:
        """All messages, in the order of their numbers."""
        return list(self._number_of_text)

    def messages(self, tables: _Tables, mover: int, options: Flags) -> Numbers:
        """Return the number of the message that the mover reads in each game.

        A message that was not met before gets the move of `START_BOT`.

        Args:
            tables: n games.
            mover: The seat whose turn it is.
            options: (n, moves), see `all_deals.legal`.

        Returns:
            (n,), indices of `moves`.
        """
        keys, first_rows, key_of_game = np.unique(
            _message_keys(tables, mover), return_index=True, return_inverse=True
        )
        numbers = np.empty(len(keys), int)
        first_moves: list[int] = []
        for index, key in enumerate(keys.tolist()):
            number = self._number_of_key.get(key)
            if number is None:
                row = int(first_rows[index])
                view = _view(self.spec, self._packing, tables, row, mover)
                number = self._number_of_text.setdefault(message_of(view), len(self._options))
                self._number_of_key[key] = number
                if number == len(self._options):
                    self._options.append(options[row])
                    first_moves.append(self._bots_move(view, options[row]))
            numbers[index] = number
        self.moves = np.concatenate([self.moves, np.array(first_moves, int)])
        return numbers[key_of_game]

    def redraw(self, messages: Numbers) -> None:
        """Give these messages a random legal move."""
        for number in messages.tolist():
            self.moves[number] = self.rng.choice(self._options[number].nonzero()[0])

    def _bots_move(self, view: PlayerView, options: Flags) -> int:
        actions = load_rules(self.spec).actions[view.player]
        legal_actions = tuple(actions[move] for move in options.nonzero()[0])
        view = view._replace(legal_actions=legal_actions)
        return actions.index(rule_move(START_BOT, view, self._bots_rng))


def message_of(view: PlayerView) -> str:
    """Return the message by which a reactive player chooses."""
    return compact_turn(view, legal_moves=False, counted=Counted(view))


def _packing(spec: GameSpec) -> _Packing:
    return _Packing(spec.num_colors * spec.num_ranks, spec.hand_size)


def _deal(spec: GameSpec) -> _Tables:
    games = all_games(spec)
    shape = (len(games), spec.num_players, spec.hand_size)
    return _Tables(
        games=games,
        colors=np.full(shape, (1 << spec.num_colors) - 1),
        ranks=np.full(shape, (1 << spec.num_ranks) - 1),
        discards=np.zeros((len(games), spec.num_colors * spec.num_ranks), int),
        events=np.full((len(games), spec.num_players), _NO_EVENT),
    )


def _step(spec: GameSpec, tables: _Tables, mover: int, moves: Numbers) -> tuple[_Tables, Flags]:
    """Make one legal move in each game; as `all_deals.step`."""
    before = tables.games
    after, is_over = step(spec, before, mover, moves)
    rows = np.arange(len(before))
    hand_size = spec.hand_size
    gives_up_card = moves < 2 * hand_size
    slots = np.where(gives_up_card, moves % hand_size, hand_size)
    given_up = np.where(gives_up_card, before.hands[rows, mover, slots % hand_size], NO_CARD)
    scored = after.heights.sum(axis=1) > before.heights.sum(axis=1)
    touched = touched_slots(spec, before, mover, moves)

    draws = after.num_dealt > before.num_dealt
    colors = tables.colors.copy()
    ranks = tables.ranks.copy()
    for masks, num_values in ((colors, spec.num_colors), (ranks, spec.num_ranks)):
        new_mask = np.where(draws, (1 << num_values) - 1, 0)
        masks[:, mover] = hands_after(masks[:, mover], slots, new_mask)
    slot_bits = 1 << np.arange(hand_size)
    for number, hint in enumerate(hints_of(spec, mover), 2 * hand_size):
        given = (moves == number).nonzero()[0]
        masks, bit = (colors, 1 << hint.value) if hint.is_color else (ranks, 1 << hint.value)
        is_touched = (touched[given, None] & slot_bits) > 0
        held = masks[given, hint.target]
        masks[given, hint.target] = np.where(is_touched, held & bit, held & ~bit)

    discards = tables.discards.copy()
    lost = (gives_up_card & ~scored).nonzero()[0]
    discards[lost, given_up[lost]] += 1
    events = tables.events.copy()
    events[:, mover] = _packing(spec).pack(moves, given_up, touched, scored)
    return (
        _Tables(games=after, colors=colors, ranks=ranks, discards=discards, events=events),
        is_over,
    )


def _message_keys(tables: _Tables, mover: int) -> Hashes:
    """Return 64 bits that are equal where the mover sees the same table and the same last moves."""
    games = tables.games
    num_games = len(games)
    columns = [
        games.lives[:, None],
        games.hints[:, None],
        games.num_dealt[:, None],
        games.turns_left[:, None] + 1,
        games.heights,
        tables.discards,
        np.delete(games.hands, mover, axis=1).reshape(num_games, -1) + 1,
        tables.colors.reshape(num_games, -1),
        tables.ranks.reshape(num_games, -1),
        np.delete(tables.events, mover, axis=1) + 1,
    ]
    keys = np.full(num_games, mover, np.uint64)
    for column in np.concatenate(columns, axis=1).T:
        keys = mixed(keys, column)
    return keys


def _view(spec: GameSpec, packing: _Packing, tables: _Tables, row: int, mover: int) -> PlayerView:
    """Return what a message is made of as a view; its events are the others' last moves alone."""
    games = tables.games
    discards: list[Card] = []
    for kind, count in enumerate(tables.discards[row].tolist()):
        discards += [_card(spec, kind)] * count
    hands = []
    knowledge = []
    for seat in range(spec.num_players):
        cards = [card for card in games.hands[row, seat].tolist() if card != NO_CARD]
        hands.append(() if seat == mover else tuple(_card(spec, card) for card in cards))
        known = [
            Knowledge(_bits(colors), _bits(ranks), False, False)
            for colors, ranks in zip(
                tables.colors[row, seat].tolist(), tables.ranks[row, seat].tolist(), strict=True
            )
        ]
        knowledge.append(tuple(known[: len(cards)]))
    events = []
    for offset in range(1, spec.num_players):
        seat = (mover + offset) % spec.num_players
        packed = int(tables.events[row, seat])
        if packed != _NO_EVENT:
            events.append(_event(spec, seat, packing.unpack(packed)))
    turns_left = int(games.turns_left[row])
    return PlayerView(
        player=mover,
        num_players=spec.num_players,
        num_colors=spec.num_colors,
        num_ranks=spec.num_ranks,
        max_lives=spec.max_lives,
        max_hints=spec.max_hints,
        lives=int(games.lives[row]),
        hints=int(games.hints[row]),
        deck_size=spec.deck_size - int(games.num_dealt[row]),
        turns_left=None if turns_left == NO_LIMIT else turns_left,
        fireworks=tuple(games.heights[row].tolist()),
        discards=tuple(discards),
        own_hand=knowledge[mover],
        hands=tuple(hands),
        knowledge=tuple(knowledge),
        legal_actions=(),
        events=tuple(events),
    )


def _card(spec: GameSpec, number: int) -> Card:
    return Card(*divmod(number, spec.num_ranks))


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def _event(spec: GameSpec, seat: int, move: _Move) -> Event:
    action = load_rules(spec).actions[seat][move.number]
    card = None if move.card == NO_CARD else _card(spec, move.card)
    return Event(seat, action, card, bool(move.scored), _bits(move.touched))


class _Turn(NamedTuple):
    """All games at one turn."""

    mover: int
    tables: _Tables


def _play(choices: _Choices, turn: _Turn, keeps: bool) -> tuple[Values, list[_Turn]]:
    """Play games to their end by the chosen moves.

    Args:
        choices: The moves of all messages.
        turn: n games in progress.
        keeps: Whether the last life, once lost, leaves the points that were made.

    Returns:
        The final score of each game, (n,), and all turns from this one on.
    """
    spec = choices.spec
    mover, tables = turn
    scores = np.zeros(len(tables))
    rows = np.arange(len(tables))
    turns: list[_Turn] = []
    while len(tables) > 0:
        turns.append(_Turn(mover, tables))
        options = legal(spec, tables.games, mover)
        messages = choices.messages(tables, mover, options)
        tables, is_over = _step(spec, tables, mover, choices.moves[messages])
        scores[rows] = final_scores(tables.games, keeps)
        ongoing = (~is_over).nonzero()[0]
        tables = tables.take(ongoing)
        rows = rows[ongoing]
        mover = (mover + 1) % spec.num_players
    return scores, turns


def _improve(choices: _Choices, turn: _Turn, keeps: bool, *, is_random: bool) -> None:
    """Give every message of one turn its best move, all other choices staying as they are.

    Args:
        choices: The moves of all messages; changed.
        turn: The games that the chosen moves lead to at this turn.
        keeps: Whether the last life, once lost, leaves the points that were made.
        is_random: Whether to draw among equally good moves, else the first is taken.
    """
    spec = choices.spec
    mover, tables = turn
    options = legal(spec, tables.games, mover)
    messages, message_of_game = np.unique(
        choices.messages(tables, mover, options), return_inverse=True
    )
    parents, moves = options.nonzero()
    children, is_over = _step(spec, tables.take(parents), mover, moves)
    values = final_scores(children.games, keeps)
    ongoing = (~is_over).nonzero()[0]
    next_turn = _Turn((mover + 1) % spec.num_players, children.take(ongoing))
    values[ongoing], _ = _play(choices, next_turn, keeps)

    totals = np.full((len(messages), options.shape[1]), -1.0)  # below every legal move's total
    sums = np.zeros_like(totals)
    cells = (message_of_game[parents], moves)
    np.add.at(sums, cells, values)
    totals[cells] = sums[cells]
    # Totals are sums of whole numbers, so these decide among equals and nothing else.
    if is_random:
        totals += choices.rng.random(totals.shape) / 2
    else:
        totals -= np.arange(totals.shape[1]) / (2 * totals.shape[1])
    choices.moves[messages] = totals.argmax(axis=1)


def _all_turns(choices: _Choices, keeps: bool) -> tuple[float, list[_Turn]]:
    """Return the mean score over all decks, and all turns of their games."""
    scores, turns = _play(choices, _Turn(0, _deal(choices.spec)), keeps)
    return float(scores.mean()), turns


def _ascend(choices: _Choices, keeps: bool) -> float:
    """Improve turns from the last to the first until the mean score rests.

    Args:
        choices: The moves of all messages; changed.
        keeps: Whether the last life, once lost, leaves the points that were made.

    Returns:
        The mean score over all decks.
    """
    mean, turns = _all_turns(choices, keeps)
    num_resting = 0
    for _ in range(PASSES):
        if num_resting == _PASSES_OF_REST:
            break
        for turn in reversed(turns):
            _improve(choices, turn, keeps, is_random=True)
        new_mean, turns = _all_turns(choices, keeps)
        num_resting = 0 if new_mean > mean else num_resting + 1
        mean = new_mean
    return mean


def _met(choices: _Choices, keeps: bool) -> Numbers:
    """Return the numbers of the messages that the team meets among itself."""
    _, turns = _all_turns(choices, keeps)
    met = []
    for mover, tables in turns:
        options = legal(choices.spec, tables.games, mover)
        met.append(np.unique(choices.messages(tables, mover, options)))
    return np.concatenate(met)


class ReactiveTeam(NamedTuple):
    """Players that choose by one message each; a seat's messages are no other seat's."""

    mean: float
    """Mean score over all decks."""
    num_met: int
    """Messages that the team meets among itself."""
    moves: dict[str, int]
    """OpenSpiel's number of the move of each message, those that were met on the way too."""


@functools.lru_cache(maxsize=_NUM_CACHED_TEAMS)
def best_reactive_team(spec: GameSpec, keeps: bool, rounds: int) -> ReactiveTeam:
    """Search for the best team that reads one message a turn; once per process.

    Args:
        spec: The board.
        keeps: Whether the last life, once lost, leaves the points that were made.
        rounds: Number of ascents.

    Raises:
        SettingsError: The board has more than `best_response.MOST_DECKS` decks.
    """
    check_num_decks(spec, BestReactive.name)
    logger.info(
        "best-reactive: searching for a team for %s, once; about two minutes of one core",
        spec.preset,
    )
    choices = _Choices(spec)
    best_mean = _ascend(choices, keeps)
    best_moves = choices.moves
    for number in range(1, rounds):
        share = REDRAWN_SHARES[number % len(REDRAWN_SHARES)]
        # Messages that were met since stay known, with the moves that they were given.
        choices.moves = np.concatenate([best_moves, choices.moves[len(best_moves) :]])
        met = _met(choices, keeps)
        choices.redraw(met[choices.rng.random(len(met)) < share])
        mean = _ascend(choices, keeps)
        if mean >= best_mean:
            best_mean, best_moves = mean, choices.moves
    choices.moves = np.concatenate([best_moves, choices.moves[len(best_moves) :]])
    # Random choices among equals are hard to imitate: in the end the first is taken.
    _, turns = _all_turns(choices, keeps)
    for turn in reversed(turns):
        _improve(choices, turn, keeps, is_random=False)
    met = _met(choices, keeps)
    moves = dict(zip(choices.texts, choices.moves.tolist(), strict=True))
    return ReactiveTeam(_all_turns(choices, keeps)[0], len(met), moves)


class BestReactive:
    """The players of `best_reactive_team`; where the team never was, a bot moves."""

    name = "best-reactive"

    def seat(self, player: int, *, task: base.Task[EnvConfig], game: int) -> base.ScriptSeat:
        """Return a seat, with the team computed; see `base.Policy.seat`."""
        spec = task.config.spec()
        team = best_reactive_team(spec, task.config.bomb_rule == "keep", ROUNDS)

        def choose(seen: base.Observation, rng: random.Random) -> str:
            view = seen.view()
            move = team.moves.get(message_of(view))
            if move is None:
                action = rule_move(START_BOT, view, rng)
            else:
                action = load_rules(spec).actions[player][move]
            return move_text(seen, action)

        return base.Script(self.name, choose).seat(player, task=task, game=game)
