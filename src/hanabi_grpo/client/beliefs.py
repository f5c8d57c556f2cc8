"""Measures beliefs in recorded games: the exact ones, and those that served players state.

At each of its turns, a served player is asked about what it cannot see, e.g. each of its own cards.
The question is appended to that turn's message, in a conversation that is discarded afterwards.
Nothing is sampled: the server scores every answer, and the probabilities are normalized over the
answers. `envs.posterior` computes what the player should have said.

Surprise is in bits: log loss −log2 q(truth), entropy, KL(exact ‖ q) = Σ p log2(p / q). Brier's
score is Σ (q − [answer is true])², 0 at best and 2 at worst (Brier 1950).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from hanabi_grpo.client.profiles import reply_chances
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Observation, Setup
from hanabi_grpo.envs.posterior import (
    Chances,
    Marginal,
    Shift,
    Tracker,
    check_setup,
    marginals,
)
from hanabi_grpo.envs.questions import Question
from hanabi_grpo.envs.texts import has_thought
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.messages import ScoredPrompt
from hanabi_grpo.runs.task_statistics import clustered_error
from hanabi_grpo.token_filter import ALL_TOKENS
from hanabi_grpo.types import Episode, player_name

_NUM_TASKS = 20
"""Tasks of one measurement during training."""
_LEAST_CHANCE = 1e-12
"""Smallest probability, which limits a surprise to 39.9 bits."""


class AskedPlayer(Protocol):
    """A policy that gives the probability of each of its replies, and possibly its beliefs."""

    def chances(self, seen: Sequence[Observation]) -> Sequence[Mapping[str, float]]:
        """Return the probability of every action for each observation."""
        ...

    def beliefs(self, asked: Sequence["Asked"]) -> Sequence["Stated | None"]:
        """Return the player's probability of each answer; None: it cannot be asked."""
        ...


class Asked(NamedTuple):
    """A question, and the message that it is appended to."""

    message: str
    question: Question


class Stated(NamedTuple):
    """The belief that a player states."""

    marginal: Marginal
    """Its probability of each answer; they sum to 1."""
    answered: float
    """The probability that its reply is one of the answers."""


@dataclass(frozen=True, slots=True)
class ScriptPlayer:
    """A script, which cannot be asked."""

    chances: Chances

    def beliefs(self, asked: Sequence[Asked]) -> list[Stated | None]:
        """Return None for each."""
        return [None] * len(asked)


@dataclass(slots=True, kw_only=True)
class ServedPlayer:
    """A player that a server holds, see the module docstring."""

    setup: Setup[Any]
    player: int
    """Its seat in the game."""
    seat: str
    """The policy as requests name it, e.g. "player_0@7"."""
    client: RolloutClient
    _system: str = field(init=False)
    _known: dict[tuple[str, tuple[str, ...]], tuple[float, ...]] = field(default_factory=dict)
    """Logprobs of the replies, by message and replies."""

    def __post_init__(self) -> None:
        """Refuse a player that remembers more than the current turn, by a SettingsError."""
        check_memory(self.setup)
        self._system = self.setup.environment.system_message(self.setup.config, self.player)

    def chances(self, seen: Sequence[Observation]) -> list[dict[str, float]]:
        """Return the probability of each legal action, at temperature 1.

        If a random legal action replaces a bad reply, the probability of bad replies is spread
        evenly.
        """
        prompts = []
        for observation in seen:
            prompts.append((observation.message(), tuple(observation.legal() or ())))
        spreads_evenly = self.setup.spec.bad_reply == "random_legal"
        by_world = []
        for (_, replies), logprobs in zip(prompts, self._scores(prompts), strict=True):
            by_reply, _ = reply_chances(logprobs, spreads_evenly=spreads_evenly)
            by_world.append(dict(zip(replies, by_reply, strict=True)))
        return by_world

    def beliefs(self, asked: Sequence[Asked]) -> list[Stated | None]:
        """Return the player's probability of each answer."""
        prompts = []
        for message, question in asked:
            prompts.append((message + question.text, question.answers))
        stated: list[Stated | None] = []
        for (_, answers), logprobs in zip(prompts, self._scores(prompts), strict=True):
            highest = max(logprobs)
            weights = [math.exp(logprob - highest) for logprob in logprobs]
            total = math.fsum(weights)
            marginal = {}
            for answer, weight in zip(answers, weights, strict=True):
                marginal[answer] = weight / total
            stated.append(Stated(marginal=marginal, answered=total * math.exp(highest)))
        return stated

    def _scores(self, prompts: Sequence[tuple[str, tuple[str, ...]]]) -> list[tuple[float, ...]]:
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._known]
        scored = []
        for message, replies in new:
            scored.append(ScoredPrompt(system=self._system, prompt=message, replies=replies))
        if scored:
            self._known.update(zip(new, self.client.score(self.seat, scored), strict=True))
        return [self._known[prompt] for prompt in prompts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """One question at one turn of a game: the truth, and the probabilities of the answers."""

    game: int
    """Number of the game among the measured ones."""
    player: int
    turn: int
    """The player's turns before this one."""
    truth: str
    by_rules: Marginal
    """From the rules alone."""
    exact: Marginal
    """Also given the probabilities of the other players' actions."""
    stated: Stated | None
    """Stated by the player itself; None: it cannot be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a player should expect another player to believe, at one of its own turns."""

    game: int
    player: int
    surprise: float
    """KL(what the other should believe ‖ what the player should expect of it), mean over the
    other's questions, in bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a move told another player."""

    game: int
    player: int
    """The player that learned from it."""
    kind: str
    """First word of the move, e.g. "hint"."""
    shift: Shift


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All beliefs in a set of games of the same players."""

    guesses: tuple[Guess, ...]
    expectations: tuple[Expectation, ...]
    messages: tuple[Message, ...]


class Mean(NamedTuple):
    """A mean over events in a set of games, with its standard error over games."""

    value: float
    error: float
    num_values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeliefFigures:
    """A player's beliefs: means over its questions, in bits except for Brier scores."""

    log_loss_rules: Mean
    log_loss_exact: Mean
    brier_rules: Mean
    brier_exact: Mean
    kl_rules: Mean
    """KL(exact ‖ from the rules alone): the information in the others' conventions."""
    kl_others: Mean
    """See `Expectation.surprise`."""
    log_loss: Mean | None = None
    """For the player's own statements, like the next fields; None: it cannot be asked."""
    brier: Mean | None = None
    kl: Mean | None = None
    """KL(exact ‖ what the player says)."""
    answered: Mean | None = None
    """See `Stated.answered`."""


def check_memory(setup: Setup[Any]) -> None:
    """Refuse models that remember more than the current turn.

    Raises:
        SettingsError: They do.
    """
    config = setup.config
    if config.window != 1:
        raise SettingsError(
            f"beliefs of {setup.spec.preset}: HANABI_MEMORY={config.memory}: beliefs are computed "
            "for players whose reply depends only on this turn's message; train and measure with "
            "HANABI_MEMORY=turn."
        )


def _check_thoughts(setup: Setup[Any], episodes: Sequence[Episode], player: int) -> None:
    """Refuse a model that mostly thinks: the probability of a move is a sum over its thoughts."""
    num_turns = 0
    num_thoughts = 0
    for episode in episodes:
        for turn in episode.turns:
            if turn.player == player:
                num_turns += 1
                num_thoughts += has_thought(turn.reply)
    if 2 * num_thoughts > num_turns:
        raise SettingsError(
            f"beliefs of {setup.spec.preset}: {player_name(player)} wrote a thought on "
            f"{num_thoughts} of its {num_turns} turns, and a move after a thought has no "
            "probability of its own; measure players that do not think, or scripts."
        )


def measure_beliefs(
    setup: Setup[Any],
    episodes: Sequence[Episode],
    players: Sequence[AskedPlayer],
) -> Measured:
    """Return the beliefs of all players at every turn of a set of games.

    Args:
        setup: The environment that was played.
        episodes: The games, played by these players at temperature 1.
        players: The player of each seat.

    Raises:
        SettingsError: The game is too large, or its players did not play these games, see
            `envs.posterior`; or a model thinks before it moves.
        ServerError: The server failed.
    """
    for player, asked in enumerate(players):
        if isinstance(asked, ServedPlayer):
            _check_thoughts(setup, episodes, player)
    trackers = []
    for episode in episodes:
        start = setup.environment.reset(setup.config, split=episode.suite, seed=episode.seed)
        trackers.append(Tracker(setup, start))
    guesses: list[Guess] = []
    expectations: list[Expectation] = []
    messages: list[Message] = []
    num_turns: dict[tuple[int, int], int] = defaultdict(int)
    longest = max((len(episode.turns) for episode in episodes), default=0)
    for step in range(longest):
        # All games at once, so that the server scores many prompts together.
        by_player: dict[int, list[int]] = defaultdict(list)
        for number, episode in enumerate(episodes):
            if step < len(episode.turns):
                mover = trackers[number].mover()
                assert mover == episode.turns[step].player
                by_player[mover].append(number)
        for player, numbers in by_player.items():
            turns = []
            for number in numbers:
                turns.append(num_turns[number, player])
                num_turns[number, player] += 1
                expectations += _expectations(trackers[number], number, player)
            own = [trackers[number] for number in numbers]
            guesses += _guesses(own, numbers, turns, player, players[player])
            for number, chances in zip(
                numbers, _chances(own, player, players[player]), strict=True
            ):
                action = episodes[number].turns[step].action
                for other, shift in trackers[number].advance(action, chances).items():
                    kind = action.split()[0].lower()
                    messages.append(Message(game=number, player=other, kind=kind, shift=shift))
    return Measured(
        guesses=tuple(guesses), expectations=tuple(expectations), messages=tuple(messages)
    )


def believed(
    setup: Setup[Any],
    seats: Sequence[str],
    client: RolloutClient,
    *,
    max_tokens: int,
    sampling_seed: int,
) -> dict[str, float]:
    """Play games and return the players' beliefs in them as metrics (HANABI_BELIEFS_EVERY).

    Args:
        setup: The environment to play.
        seats: Policy of each seat as requests name it, e.g. ("player_0@7", "player_1@7").
        client: Client of the server that holds the players.
        max_tokens: Maximum tokens of a reply.
        sampling_seed: Decides the replies.

    Returns:
        Per player `belief_kl`, `belief_bits` (log loss of its own statements), `belief_bits_exact`,
        `belief_bits_rules` and `belief_answered`, see `BeliefFigures`; per kind of move
        `belief/hint_by_convention` and so on, see `message_figures`.

    Raises:
        SettingsError: As `measure_beliefs`; or a player remembers more than the current turn.
        ServerError: The server failed.
    """
    players = []
    for player, seat in enumerate(seats):
        players.append(ServedPlayer(setup=setup, player=player, seat=seat, client=client))
    check_setup(setup)
    tasks = []
    for number in range(_NUM_TASKS):
        tasks.append({**setup.row(), "suite": "eval", "seed": number, "seats": list(seats)})
    result = client.play(
        tasks,
        num_games=1,
        max_tokens=max_tokens,
        temperature=1.0,
        token_filter=ALL_TOKENS,
        sampling_seed=sampling_seed,
    )
    episodes = [episode for group in result.groups for episode in group]
    measured = measure_beliefs(setup, episodes, players)
    metrics: dict[str, float] = {}
    for player in range(len(seats)):
        figures = belief_figures(measured, player)
        if figures is None:
            continue
        columns = {
            "belief_kl": figures.kl,
            "belief_bits": figures.log_loss,
            "belief_bits_exact": figures.log_loss_exact,
            "belief_bits_rules": figures.log_loss_rules,
            "belief_answered": figures.answered,
        }
        for name, column in columns.items():
            if column is not None:
                metrics[f"{player_name(player)}/{name}"] = column.value
    for kind, means in message_figures(measured).items():
        for name, column in means.items():
            metrics[f"belief/{kind}_{name}"] = column.value
    return metrics


def belief_figures(measured: Measured, player: int) -> BeliefFigures | None:
    """Return the figures of one player; None if it never had a turn."""
    guesses = [guess for guess in measured.guesses if guess.player == player]
    if not guesses:
        return None

    def over(value: Callable[[Guess], float]) -> Mean:
        return mean((guess.game, value(guess)) for guess in guesses)

    surprises = []
    for expectation in measured.expectations:
        if expectation.player == player:
            surprises.append((expectation.game, expectation.surprise))
    figures: dict[str, Mean] = {
        "log_loss_rules": over(lambda guess: log_loss(guess.by_rules, guess.truth)),
        "log_loss_exact": over(lambda guess: log_loss(guess.exact, guess.truth)),
        "brier_rules": over(lambda guess: brier(guess.by_rules, guess.truth)),
        "brier_exact": over(lambda guess: brier(guess.exact, guess.truth)),
        "kl_rules": over(lambda guess: divergence(guess.exact, guess.by_rules)),
        "kl_others": mean(surprises),
    }
    if all(guess.stated is not None for guess in guesses):
        figures["log_loss"] = over(lambda guess: log_loss(_said(guess), guess.truth))
        figures["brier"] = over(lambda guess: brier(_said(guess), guess.truth))
        figures["kl"] = over(lambda guess: divergence(guess.exact, _said(guess)))
        figures["answered"] = over(lambda guess: guess.stated.answered if guess.stated else 0.0)
    return BeliefFigures(**figures)


def message_figures(measured: Measured) -> dict[str, dict[str, Mean]]:
    """Return what each kind of move told the other player, in bits.

    `by_rules` is the information that the move shows to everybody, `by_convention` what its choice
    reveals in addition; together they are the reduction in entropy.
    """
    kinds = sorted({message.kind for message in measured.messages})
    figures = {}
    for kind in kinds:
        by_rules = []
        by_convention = []
        for game, shift in ((m.game, m.shift) for m in measured.messages if m.kind == kind):
            by_rules.append((game, shift.before - shift.by_rules))
            by_convention.append((game, shift.by_rules - shift.after))
        figures[kind] = {"by_rules": mean(by_rules), "by_convention": mean(by_convention)}
    return figures


def belief_document(measured: Measured, num_players: int) -> dict[str, Any]:
    """Return all figures of a set of games as JSON."""
    players: dict[str, Any] = {}
    for player in range(num_players):
        figures = belief_figures(measured, player)
        if figures is None:
            continue
        row: dict[str, Any] = {}
        for name, value in asdict(figures).items():
            if value is not None:
                row[name] = _mean_row(Mean(*value))
        row["by_turn"] = _by_turn(measured, player)
        players[player_name(player)] = row
    messages = {}
    for kind, means in message_figures(measured).items():
        messages[kind] = {name: _mean_row(value) for name, value in means.items()}
    return {"players": players, "messages": messages}


def mean(values: Iterable[tuple[int, float]]) -> Mean:
    """Return the mean of some values, with its standard error.

    Values of the same game form a cluster, see `task_statistics.estimate`.

    Args:
        values: Each value, after the number of its game.
    """
    by_game = list(values)
    if not by_game:
        return Mean(math.nan, math.nan, 0)
    games, of_values = zip(*by_game, strict=True)
    _, clusters = np.unique(games, return_inverse=True)
    center, error, _ = clustered_error(np.asarray(of_values, dtype=np.float64), clusters)
    return Mean(center, error, len(by_game))


def log_loss(marginal: Marginal, truth: str) -> float:
    """Return −log2 of the probability of the truth, in bits."""
    return -math.log2(max(marginal.get(truth, 0.0), _LEAST_CHANCE))


def brier(marginal: Marginal, truth: str) -> float:
    """Return the Brier score, Σ over answers (probability − [the answer is true])²."""
    answers = {truth, *marginal}
    return math.fsum((marginal.get(answer, 0.0) - (answer == truth)) ** 2 for answer in answers)


def divergence(exact: Marginal, other: Marginal) -> float:
    """Return KL(exact ‖ other) = Σ p log2(p / q), in bits."""
    parts = []
    for answer, chance in exact.items():
        if chance > 0:
            parts.append(chance * math.log2(chance / max(other.get(answer, 0.0), _LEAST_CHANCE)))
    return max(0.0, math.fsum(parts))


def _guesses(
    trackers: Sequence[Tracker],
    numbers: Sequence[int],
    turns: Sequence[int],
    player: int,
    asked_player: AskedPlayer,
) -> list[Guess]:
    """Return the questions to the mover in a set of games, and all answers to them."""
    asked = []
    for tracker in trackers:
        message = Observation(tracker.game, player, window=1).message()
        asked += [Asked(message, question) for question in tracker.game.questions(player)]
    stated = iter(asked_player.beliefs(asked))
    guesses = []
    for tracker, number, turn in zip(trackers, numbers, turns, strict=True):
        exact = marginals(tracker.belief(player))
        by_rules = marginals(tracker.belief(player, by_rules=True))
        for slot, truth in enumerate(tracker.game.truths(player)):
            guess = Guess(
                game=number,
                player=player,
                turn=turn,
                truth=truth,
                by_rules=by_rules[slot],
                exact=exact[slot],
                stated=next(stated),
            )
            guesses.append(guess)
    return guesses


def _expectations(tracker: Tracker, number: int, player: int) -> list[Expectation]:
    expectations = []
    for other in range(tracker.num_players):
        if other == player:
            continue
        believed = marginals(tracker.belief(other))
        expected = tracker.others_marginals(player, other)
        surprises = [divergence(*pair) for pair in zip(believed, expected, strict=True)]
        if surprises:
            surprise = math.fsum(surprises) / len(surprises)
            expectations.append(Expectation(game=number, player=player, surprise=surprise))
    return expectations


def _chances(
    trackers: Sequence[Tracker], player: int, asked_player: AskedPlayer
) -> list[dict[int, Mapping[str, float]]]:
    """Return the probabilities of the mover's moves per game, by key of `Tracker.observations`."""
    observations = [tracker.observations(player) for tracker in trackers]
    flat = [seen for of_game in observations for seen in of_game.values()]
    chances = iter(asked_player.chances(flat))
    return [{view: next(chances) for view in of_game} for of_game in observations]


def _said(guess: Guess) -> Marginal:
    assert guess.stated is not None
    return guess.stated.marginal


def _by_turn(measured: Measured, player: int) -> list[dict[str, float]]:
    """Return log losses by the player's own turns, in ascending order."""
    by_turn: dict[int, list[Guess]] = defaultdict(list)
    for guess in measured.guesses:
        if guess.player == player:
            by_turn[guess.turn].append(guess)
    rows = []
    for turn, guesses in sorted(by_turn.items()):
        row = {"turn": float(turn), "questions": float(len(guesses))}
        columns: dict[str, list[float]] = defaultdict(list)
        for guess in guesses:
            columns["log_loss_rules"].append(log_loss(guess.by_rules, guess.truth))
            columns["log_loss_exact"].append(log_loss(guess.exact, guess.truth))
            if guess.stated is not None:
                columns["log_loss"].append(log_loss(guess.stated.marginal, guess.truth))
                columns["kl"].append(divergence(guess.exact, guess.stated.marginal))
        for name, values in columns.items():
            row[name] = math.fsum(values) / len(values)
        rows.append(row)
    return rows


def _mean_row(value: Mean) -> dict[str, float | int | None]:
    """Return a mean as JSON, which cannot represent NaN."""
    error = value.error if math.isfinite(value.error) else None
    return {"mean": value.value, "standard_error": error, "count": value.num_values}
