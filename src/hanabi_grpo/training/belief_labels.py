"""The belief loss (HANABI_BELIEF_WEIGHT): rows in which a player names a card that it cannot see.

    L_belief = w / M · Σ_t (−log π(a_t | s, question))

over the M tokens t of the right answers, one for each of the player's own turns: the conversation
up to that turn, with one question of `Game.questions` behind its message, then the answer of
`Game.truths`. Which question it is follows from the game's task, number, step and seat. It is
cross-entropy on what the hidden cards turned out to be, so its least value is the mean entropy of
the posterior: a player that reaches it reads its partner's moves as well as anybody can.

It is added to the player's loss (`loss`), as a mean over the player's own answers of the step over
all processes, and no other player moves by it. Labels are free: the trainer deals the task again
and makes the same moves. Neither question nor answer is in a conversation that a player sees: they
exist in these rows alone, which are thrown away after the step.
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
    """What makes rows of the belief loss of games."""

    setups: Mapping[str, Setup[Any]]
    """What is played, by the hash of its rules."""
    chats: Mapping[str, ChatFormat]
    """Per player the chat format of its model."""
    weights: Mapping[str, float]
    """Per player its HANABI_BELIEF_WEIGHT."""

    def rows(
        self,
        groups: Sequence[Sequence[Episode]],
        seat: int,
        player: str,
        trained_seats: Sequence[str],
        *,
        has_weights: bool,
        trains_all: bool,
        with_steps: bool,
        with_teacher: bool = False,
    ) -> list[TokenRow]:
        """Return a row for each turn of one seat's player; none where its weight is 0.

        Args:
            groups: Per task the games that are learned from.
            seat: Number of the seat.
            player: The run's player who holds it.
            trained_seats: Per seat the adapter that is trained there, see `batching.token_rows`.
            has_weights: Whether rows of replies have weights, and so on: rows of a micro-batch have
                the same columns.
            trains_all: Whether all tokens of a reply carry loss.
            with_steps: Whether rows say in which step of the game each token was said.
            with_teacher: Whether a model that teaches adds to rows of replies.
        """
        if not self.weights.get(player):
            return []
        rows = []
        for number, episode in enumerate(flatten_groups(groups)):
            if not is_trained(episode, seat, trained_seats):
                continue
            for prompt, answer in self._labels(episode, seat, self.chats[player]):
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

    def _labels(
        self, episode: Episode, seat: int, chat: ChatFormat
    ) -> list[tuple[list[int], tuple[int, ...]]]:
        """Return the ids up to the answer, and those of the answer, of each turn of a seat."""
        setup = self.setups[episode.spec_hash]
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
                # What follows a call is the result of a tool, behind which nothing can stand.
                if questions and not turn.follows_call:
                    key = (episode.suite, episode.seed, episode.game, step, seat)
                    chosen = draw("belief question", *key, below=len(questions))
                    question = questions[chosen]
                    prompt = conversation.ids_before_answer(turn.prompt + question.text)
                    labels.append((prompt, chat.said(game.truths(seat)[chosen])))
                conversation.append(turn)
            game.step(actions)
        return labels


class AskedTokens:
    """How surprising hidden cards were to each player in the step in progress."""

    def __init__(self) -> None:
        """Begin with none."""
        self._surprise: dict[str, tuple[float, int]] = {}
        """By player with questions the sum in nats over this process's answers, and their number.

        The players are the same on every process."""

    def add(self, batch: MicroBatch, logprobs: torch.Tensor) -> None:
        """Count a micro-batch once.

        Args:
            batch: The micro-batch.
            logprobs: [rows, tokens] under the player as it was before it learned from them.
        """
        if not batch.num_belief_tokens:
            return
        surprise, count = self._surprise.get(batch.player, (0.0, 0))
        if batch.belief_mask is not None:
            surprise -= float(logprobs.detach().double()[batch.belief_mask].sum())
            count += int(batch.belief_mask.any(dim=1).sum())
        self._surprise[batch.player] = (surprise, count)

    def take(self, gather: Callable[[list[Any]], list[Any]]) -> dict[str, float]:
        """Return `belief_loss` of each player, in nats an answer, and begin anew.

        Args:
            gather: (this process's list) -> those of all processes as one list.
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
    """Return what makes a run's rows of the belief loss; None where every weight is 0.

    Args:
        settings: The run's.
        setups: What is played, by the hash of its rules.
        tokenizers: Per player that of its base model.

    Raises:
        SettingsError: Players of one of the games can be asked nothing.
    """
    weights = {}
    for player in player_names(settings.players):
        weights[player] = settings.belief_weight_of(player)
    if not any(weights.values()):
        return None
    for setup in setups.values():
        if not has_questions(setup):
            raise SettingsError(
                f"{VARIABLE}={settings.belief_weight}: players of {setup.env} "
                f"{setup.spec.preset} can be asked nothing; unset it, or play hanabi, kuhn_poker "
                "or leduc_poker."
            )
    chats = {}
    for player in weights:
        chats[player] = ChatFormat.from_tokenizer(tokenizers[player], thinking=settings.thinking)
    return BeliefLabels(setups=setups, chats=chats, weights=weights)


def num_belief_tokens(rows: Sequence[TokenRow]) -> int:
    """Return how many tokens of some rows are of an answer."""
    return sum(sum(row.belief) for row in rows if row.belief is not None)


class _Conversation:
    """A player's conversation in a game, as `agents.conversation` has made it."""

    def __init__(self, chat: ChatFormat, system: str, memory: int | None) -> None:
        self._chat = chat
        self._system = system
        self._memory = memory
        self._ids: list[int] = []
        """Prompts and replies since the last turn that is a conversation of its own."""
        self._past: list[Exchange] = []

    def ids_before_answer(self, message: str) -> list[int]:
        """Return all ids before a reply to a message, which is not remembered."""
        if self._memory is None and self._ids:
            return [*self._ids, *self._chat.follow(self._ids[-1], message)]
        earlier = () if self._memory is None else remembered_turns(self._past, self._memory)
        return self._chat.open(self._system, message, earlier)

    def append(self, turn: Turn) -> None:
        """Remember a turn as it was played."""
        before = [] if turn.fresh else self._ids
        self._ids = [*before, *turn.prompt_ids, *turn.reply_ids]
        if self._memory is not None and self._memory > 1:
            # A teacher's reply that was played ends the prompt.
            said = turn.reply_ids
            if turn.lesson is not None and turn.lesson.plays:
                said = turn.lesson.reply_ids
            reply = self._chat.spoken([*said])
            self._past.append(Exchange(turn.prompt, reply, turn.follows_call))
