"""The belief loss (HANABI_BELIEF_WEIGHT): rows in which a player names a card that it cannot see.

    L_belief = w / M · Σ_t (−log π(a_t | s, question))

over the M tokens t of the right answers, one answer for each of the player's own turns. A row is
the conversation up to that turn, with one question of `Game.questions` after the turn's message,
then the answer of `Game.truths`. The question is determined by the game's task, number, step and
seat. The loss is the cross-entropy on the actual hidden cards, so its minimum is the mean entropy
of the posterior: a player that reaches it reads its partner's moves as well as possible.

The term is added to the player's loss (`loss`), as a mean over the tokens of the player's own
answers in the step over all processes. It does not affect any other player. Labels are free: the
trainer replays the task with the same moves. Neither question nor answer is in a conversation that
a player sees: they exist only in these rows, which are discarded after the step.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from hanabi_grpo.agents.memory import remembered_turns
from hanabi_grpo.envs.base import Setup, draw, has_questions
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat, Exchange
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.groups import flatten_groups
from hanabi_grpo.training.micro_batch import MicroBatch, TokenRow
from hanabi_grpo.types import Episode, Turn, is_trained, player_names

VARIABLE = "HANABI_BELIEF_WEIGHT"


@dataclass(frozen=True, slots=True, kw_only=True)
class BeliefLabels:
    """Makes the rows of the belief loss from games."""

    chats: Mapping[str, ChatFormat]
    """The chat format of each player's model."""
    weights: Mapping[str, float]
    """Each player's HANABI_BELIEF_WEIGHT."""

    def rows(
        self,
        groups: Sequence[Sequence[Episode]],
        setups: Sequence[Setup[Any]],
        seat: int,
        player: str,
        trained_seats: Sequence[str],
        *,
        has_weights: bool,
        trains_all: bool,
        with_steps: bool,
        with_teacher: bool = False,
    ) -> list[TokenRow]:
        """Return a row for each turn of one seat's player; no rows if its weight is 0.

        The last four arguments are the columns of the rows of replies, because all rows of a
        micro-batch have the same columns.

        Args:
            groups: Per task, the games to train on.
            setups: Per task, its game. The hash in an episode identifies the rules, but not the
                prompts and the memory that the players had.
            seat: Number of the seat.
            player: The run's player who holds it.
            trained_seats: Per seat, the adapter that is trained there, see `batching.token_rows`.
            has_weights: Whether rows have weights.
            trains_all: Whether all tokens of a reply carry loss.
            with_steps: Whether rows record the step of the game of each reply token.
            with_teacher: Whether rows have the column of a model that teaches.
        """
        if not self.weights.get(player):
            return []
        setups_of_games: list[Setup[Any]] = []
        for setup, group in zip(setups, groups, strict=True):
            setups_of_games += [setup] * len(group)
        rows = []
        for number, episode in enumerate(flatten_groups(groups)):
            if not is_trained(episode, seat, trained_seats):
                continue
            setup = setups_of_games[number]
            for prompt, answer in _labels(setup, episode, seat, self.chats[player]):
                row = TokenRow.unsampled(
                    prompt,
                    answer,
                    game=number,
                    has_weights=has_weights,
                    trains_all=trains_all,
                    with_steps=with_steps,
                    with_teacher=with_teacher,
                    belief=[False] * len(prompt) + [True] * len(answer),
                )
                rows.append(row)
        return rows


class AskedTokens:
    """How surprising hidden cards were to each player in the step in progress."""

    def __init__(self) -> None:
        """Start empty."""
        self._surprise: dict[str, tuple[float, int]] = {}
        """By player with questions, the sum in nats over this process's answers and their number.

        The players are the same on every process."""

    def add(self, batch: MicroBatch, logprobs: torch.Tensor) -> None:
        """Count a micro-batch; call it once for each.

        Args:
            batch: The micro-batch.
            logprobs: [rows, tokens] logprobs of the player before it learns from the micro-batch.
        """
        if not batch.num_belief_tokens:
            return
        surprise, count = self._surprise.get(batch.player, (0.0, 0))
        if batch.belief_mask is not None:
            surprise -= float(logprobs.detach().double()[batch.belief_mask].sum())
            count += int(batch.belief_mask.any(dim=1).sum())
        self._surprise[batch.player] = (surprise, count)

    def take(self, gather: Callable[[list[Any]], list[Any]]) -> dict[str, float]:
        """Return `belief_loss` of each player, in nats per answer, and reset.

        Args:
            gather: (this process's list) -> the lists of all processes as one list.
        """
        if not self._surprise:
            return {}
        totals: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        for player, (surprise, count) in gather(list(self._surprise.items())):
            totals[player] += surprise
            counts[player] += count
        self._surprise = {}
        return {f"{player}/belief_loss": totals[player] / counts[player] for player in totals}


def belief_labels(
    settings: Settings, setups: Mapping[str, Setup[Any]], tokenizers: Mapping[str, Any]
) -> BeliefLabels | None:
    """Return what makes a run's rows of the belief loss; None if every weight is 0.

    Args:
        settings: The run's settings.
        setups: The environments that are played, by the hash of their rules.
        tokenizers: Per player, the tokenizer of its base model.

    Raises:
        SettingsError: One of the environments has no questions.
    """
    weights = {}
    for player in player_names(settings.players):
        weights[player] = settings.belief_weight_of(player)
    if not any(weights.values()):
        return None
    for setup in setups.values():
        if not has_questions(setup):
            raise SettingsError(
                f"{VARIABLE}={settings.belief_weight}: {setup.env} {setup.spec.preset} has no "
                "questions about hidden cards; unset it, or play hanabi, kuhn_poker or leduc_poker."
            )
    chats = {}
    for player in weights:
        chats[player] = ChatFormat.from_tokenizer(tokenizers[player], thinking=settings.thinking)
    return BeliefLabels(chats=chats, weights=weights)


def num_belief_tokens(rows: Sequence[TokenRow]) -> int:
    """Return how many tokens of the rows belong to an answer."""
    return sum(sum(row.belief) for row in rows if row.belief is not None)


def _labels(
    setup: Setup[Any], episode: Episode, seat: int, chat: ChatFormat
) -> list[tuple[list[int], tuple[int, ...]]]:
    """Return, for each turn of a seat, the ids before the answer and the ids of the answer."""
    game = setup.environment.reset(setup.config, split=episode.suite, seed=episode.seed)
    system = setup.environment.system_message(setup.config, seat)
    conversation = _Conversation(chat, system, setup.config.window)
    labels = []
    for step, turns_of_step in groupby(episode.turns, key=lambda turn: turn.step):
        actions = {}
        for turn in turns_of_step:
            if not turn.is_call:
                actions[turn.player] = turn.action
            if turn.player != seat:
                continue
            questions = game.questions(seat)
            # After a tool call the message is the tool's result, and no question can follow it.
            if questions and not turn.follows_call:
                key = (episode.suite, episode.seed, episode.game, step, seat)
                chosen = draw("belief question", *key, below=len(questions))
                question = questions[chosen]
                prompt = conversation.ids_before_answer(turn.prompt + question.text)
                labels.append((prompt, chat.said(game.truths(seat)[chosen])))
            conversation.append(turn)
        game.step(actions)
    return labels


class _Conversation:
    """A player's conversation in a game, rebuilt as `agents.conversation` made it."""

    def __init__(self, chat: ChatFormat, system: str, memory: int | None) -> None:
        self._chat = chat
        self._system = system
        self._memory = memory
        self._ids: list[int] = []
        """Prompts and replies since the last turn that began a new conversation."""
        self._past: list[Exchange] = []

    def ids_before_answer(self, message: str) -> list[int]:
        """Return all ids before a reply to a message, without adding the message."""
        if self._memory is None and self._ids:
            return [*self._ids, *self._chat.follow(self._ids[-1], message)]
        earlier = () if self._memory is None else remembered_turns(self._past, self._memory)
        return self._chat.open(self._system, message, earlier)

    def append(self, turn: Turn) -> None:
        """Add a turn as it was played."""
        before = [] if turn.fresh else self._ids
        self._ids = [*before, *turn.prompt_ids, *turn.reply_ids]
        if self._memory is not None and self._memory > 1:
            # A teacher's reply that was played ends the prompt.
            said = turn.reply_ids
            if turn.lesson is not None and turn.lesson.plays:
                said = turn.lesson.reply_ids
            reply = self._chat.spoken([*said])
            self._past.append(Exchange(turn.prompt, reply, turn.follows_call))
