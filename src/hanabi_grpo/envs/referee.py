"""One episode from replies to rewards. Whoever plays, plays through a `Referee`, so that bad
replies mean one thing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hanabi_grpo.envs.base import FORFEIT, SKIP, EnvSpec, Game, Observation, Policy, Task, draw
from hanabi_grpo.errors import IllegalActionError, SettingsError
from hanabi_grpo.types import Episode, EpisodeStatus, Reply, ReplyKind, Turn


class Referee:
    """An episode in progress.

    A bad reply is data: it costs its player `reward_illegal` or `reward_unparsable`, and what
    `EnvSpec.bad_reply` says takes its place.

    Example: referee = Referee(registry.setup("kuhn_poker", {"preset": "kuhn_poker"}).task("eval",
        17)) while referee.status is None: referee.step({player: ask(referee.see(player).message())
        for player in referee.to_act()})

    `number` is that of the episode within the group of its task; it feeds the randomness of
    replacing actions. `game` knows everything: it is for records and tests, never for players.
    `status` is None while the episode goes on."""

    def __init__(self, task: Task[Any], *, number: int = 0) -> None:
        self.task = task
        self.number = number
        self.spec: EnvSpec = task.setup.spec
        self.game: Game = task.environment.reset(task.config, split=task.split, seed=task.seed)
        self.status: EpisodeStatus | None = None if self.game.to_act() else EpisodeStatus.FINISHED
        self._turns: list[Turn] = []
        self._num_steps = 0
        self._late: tuple[Counter[str], ...] = tuple(
            Counter[str]() for _ in range(self.spec.num_players)
        )
        """What the end paid each player for earlier steps than the last one."""

    def to_act(self) -> tuple[int, ...]:
        """Return the players who answer now; () once the episode is over or truncated."""
        return () if self.status is not None else self.game.to_act()

    def see(self, player: int) -> Observation:
        """Return what a player may look at."""
        return Observation(self.game, player, self.task.config.window)

    def step(self, replies: Mapping[int, Reply | str]) -> tuple[Turn, ...]:
        """Take one reply of each player in `to_act()`, any text or one with tokens; return their
        turns in that order.

        Raises: IllegalActionError: The episode is over, or the replies are not those of the players
            to act.
        """
        players = self.to_act()
        if self.status is not None:
            raise IllegalActionError(f"The episode is over ({self.status}): start another one.")
        if set(replies) != set(players):
            raise IllegalActionError(
                f"replies of players {sorted(replies)}: give one of each of {sorted(players)}."
            )
        given = {
            who: reply if isinstance(reply, Reply) else Reply(text=reply)
            for who, reply in replies.items()
        }
        read = {
            player: self._read(player, given[player].text, place)
            for place, player in enumerate(players)
        }
        paid = self.game.step({player: action for player, (action, _) in read.items()})
        config, turns = self.task.config, []
        prices = {
            ReplyKind.ILLEGAL: config.reward_illegal,
            ReplyKind.UNPARSABLE: config.reward_unparsable,
        }
        for player, (action, kind) in read.items():
            reply = given[player]
            is_last = player == players[-1]
            here = [
                who == player or (is_last and who not in players)
                for who in range(self.spec.num_players)
            ]
            parts = [dict(paid[who]) if is_here else {} for who, is_here in enumerate(here)]
            if kind in prices:
                parts[player][kind.value] = prices[kind]
            turns.append(
                Turn(
                    player=player,
                    step=self._num_steps,
                    prompt=_encodable(reply.prompt),
                    reply=_encodable(reply.text),
                    action=action,
                    kind=kind,
                    rewards=tuple(parts),
                    prompt_ids=reply.prompt_ids,
                    reply_ids=reply.reply_ids,
                    logprobs=reply.logprobs,
                    version=reply.version,
                    fresh=reply.fresh,
                )
            )
        self._turns += turns
        self._num_steps += 1
        if not self.game.to_act():
            self.status = EpisodeStatus.FINISHED
        elif self._num_steps >= self.spec.max_turns:
            self.status = EpisodeStatus.TRUNCATED_TURNS
        self._settle()
        return tuple(self._turns[-len(turns) :])

    def out_of_tokens(self, player: int) -> None:
        """End the episode because the next reply of a player might not fit its conversation.

        The others keep what they have earned. Without a price, talking until the context is full
        would be a safe way out of a game that may still be lost: the part "out_of_tokens" stands in
        the player's last turn, whose reply took the room. A player without a turn has none."""
        self.status = EpisodeStatus.TRUNCATED_TOKENS
        self._settle()
        for place in reversed(range(len(self._turns))):
            turn = self._turns[place]
            if turn.player == player:
                rewards = list(turn.rewards)
                rewards[player] = {
                    **rewards[player],
                    "out_of_tokens": self.task.config.reward_out_of_tokens,
                }
                self._turns[place] = replace(turn, rewards=tuple(rewards))
                return

    def paid(self, turns: Sequence[Turn], player: int) -> dict[str, float]:
        """Return what a step paid a player, by part; the last one with what the end paid for
        earlier steps.
        """
        found = Counter(parts_of(turns, player))
        found.update(self._late[player] if self.status is not None else {})
        return dict(found)

    def _settle(self) -> None:
        """Write into the turns of each step what the game pays for it once the episode is over."""
        for step, paid in enumerate(self.game.late() if self.status is not None else ()):
            places = {
                turn.player: place for place, turn in enumerate(self._turns) if turn.step == step
            }
            for player, parts in enumerate(paid):
                place = places.get(player, max(places.values()))
                rewards = list(self._turns[place].rewards)
                rewards[player] = {**rewards[player], **parts}
                self._turns[place] = replace(self._turns[place], rewards=tuple(rewards))
                if step < self._num_steps - 1:
                    self._late[player].update(parts)

    def episode(self, *, seats: Sequence[str] = (), instance_id: str = "") -> Episode:
        """Return the episode as data, with who sat in each seat and which server process played.

        Raises:
            IllegalActionError: It goes on.
        """
        if self.status is None:
            raise IllegalActionError("The episode goes on: play it to its end first.")
        return Episode(
            env=self.spec.env,
            preset=self.spec.preset,
            spec_hash=self.spec.hash,
            num_players=self.spec.num_players,
            suite=self.task.split,
            seed=self.task.seed,
            game=self.number,
            status=self.status,
            result=dict(self.game.result()),
            turns=tuple(self._turns),
            seats=tuple(seats),
            instance_id=instance_id,
        )

    def _read(self, player: int, reply: str, place: int) -> tuple[str, ReplyKind]:
        legal = self.game.legal(player)
        action = self.game.parse(player, reply)
        if action is not None and (legal is None or action in legal):
            return action, ReplyKind.LEGAL
        kind = ReplyKind.UNPARSABLE if action is None else ReplyKind.ILLEGAL
        if self.spec.bad_reply != "random_legal":
            return (FORFEIT if self.spec.bad_reply == "forfeit" else SKIP), kind
        if not legal:
            raise SettingsError(
                f"environment {self.spec.env!r}: bad_reply='random_legal' needs legal actions, "
                f"and player {player} to "
                "act has none listed; give bad_reply='skip' or 'forfeit'."
            )
        key = (self.task.split, self.task.seed, self.number, len(self._turns) + place)
        return legal[draw(*key, below=len(legal))], kind


def parts_of(turns: Sequence[Turn], player: int) -> dict[str, float]:
    """Return what the turns of one step pay a player, by part."""
    return {part: value for turn in turns for part, value in turn.rewards[player].items()}


def play_scripts(task: Task[Any], policies: Mapping[int, Policy], *, number: int = 0) -> Episode:
    """Play episode `number` of a task's group by scripts alone, one per player."""
    referee = Referee(task, number=number)
    seats = {
        player: policy.seat(player, task=task, game=number) for player, policy in policies.items()
    }
    while referee.status is None:
        referee.step(
            {player: seats[player].act(referee.see(player)) for player in referee.to_act()}
        )
    return referee.episode(
        seats=[policies[player].name for player in range(referee.spec.num_players)]
    )


def _encodable(text: str) -> str:
    # A lone surrogate can be in a `str` but not in UTF-8, so a record that holds one could be
    # neither sent nor written.
    return text.encode("utf-8", "replace").decode("utf-8")
