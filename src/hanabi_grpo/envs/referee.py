"""One episode from replies to rewards. Whoever plays, plays through a `Referee`, so that bad replies mean one thing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hanabi_grpo.envs.base import FORFEIT, SKIP, EnvSpec, Game, Observation, Policy, Task, draw
from hanabi_grpo.envs.episodes import Move, PlayedEpisode, Step
from hanabi_grpo.errors import IllegalActionError, SettingsError
from hanabi_grpo.types import EpisodeStatus, ReplyKind


class Referee:
    """An episode in progress.

    A bad reply is data: it costs its player `reward_illegal` or `reward_unparsable`, and what `EnvSpec.bad_reply` says
    takes its place.

    Example:
        referee = Referee(Task(environment=KUHN, config=KUHN.presets["kuhn"], split="eval", seed=17))
        while referee.status is None:
            referee.step({player: ask(referee.see(player).message()) for player in referee.to_act()})

    Attributes:
        task: What is played.
        number: Number of the episode within the group of its task; feeds the randomness of replacing actions.
        spec: Of the environment.
        game: Knows everything; for records and tests, never for players.
        status: How the episode ended; None while it goes on.
    """

    def __init__(self, task: Task[Any], *, number: int = 0) -> None:
        """Start the task's game."""
        self.task = task
        self.number = number
        self.spec: EnvSpec = task.environment.spec(task.config)
        self.game: Game = task.environment.reset(task.config, split=task.split, seed=task.seed)
        self.status: EpisodeStatus | None = None if self.game.to_act() else EpisodeStatus.FINISHED
        self._steps: list[Step] = []
        self._num_moves = 0

    def to_act(self) -> tuple[int, ...]:
        """Return the players who answer now; () once the episode is over or truncated."""
        return () if self.status is not None else self.game.to_act()

    def see(self, player: int) -> Observation:
        """Return what a player may look at."""
        return Observation(self.game, player)

    def step(self, replies: Mapping[int, str]) -> Step:
        """Take one reply of each player in `to_act()`.

        Args:
            replies: Any text at all per player.

        Raises:
            IllegalActionError: The episode is over, or the replies are not those of the players to act.
        """
        players = self.to_act()
        if self.status is not None:
            raise IllegalActionError(f"The episode is over ({self.status}): start another one.")
        if set(replies) != set(players):
            raise IllegalActionError(f"replies of players {sorted(replies)}: give one of each of {sorted(players)}.")
        moves = tuple(self._read(player, replies[player], place) for place, player in enumerate(players))
        parts = [dict(part) for part in self.game.step({move.player: move.action for move in moves})]
        config = self.task.config
        for move in moves:
            if move.kind is ReplyKind.ILLEGAL:
                parts[move.player]["illegal"] = config.reward_illegal
            if move.kind is ReplyKind.UNPARSABLE:
                parts[move.player]["unparsable"] = config.reward_unparsable
        self._steps.append(Step(moves=moves, rewards=tuple(parts)))
        self._num_moves += len(moves)
        if not self.game.to_act():
            self.status = EpisodeStatus.FINISHED
        elif len(self._steps) >= self.spec.max_turns:
            self.status = EpisodeStatus.TRUNCATED_TURNS
        return self._steps[-1]

    def out_of_tokens(self, player: int) -> None:
        """End the episode because the next reply of a player might not fit its conversation.

        The others keep what they have earned. Without a price, talking until the context is full would be a safe way
        out of a game that may still be lost: the part "out_of_tokens" stands in the player's last step, whose reply
        took the room. A player without a step has none.
        """
        self.status = EpisodeStatus.TRUNCATED_TOKENS
        for place in reversed(range(len(self._steps))):
            step = self._steps[place]
            if any(move.player == player for move in step.moves):
                price = {"out_of_tokens": self.task.config.reward_out_of_tokens}
                rewards = [{**one, **price} if who == player else one for who, one in enumerate(step.rewards)]
                self._steps[place] = replace(step, rewards=tuple(rewards))
                return

    def played(self) -> PlayedEpisode:
        """Return the episode as data.

        Raises:
            IllegalActionError: It goes on.
        """
        if self.status is None:
            raise IllegalActionError("The episode goes on: play it to its end first.")
        task, steps = self.task, tuple(self._steps)
        return PlayedEpisode(
            split=task.split,
            seed=task.seed,
            game=self.number,
            steps=steps,
            result=self.game.result(),
            status=self.status,
        )

    def _read(self, player: int, reply: str, place: int) -> Move:
        legal = self.game.legal(player)
        action = self.game.parse(player, reply)
        if action is not None and (legal is None or action in legal):
            return Move(player=player, reply=reply, action=action, kind=ReplyKind.LEGAL)
        kind = ReplyKind.UNPARSABLE if action is None else ReplyKind.ILLEGAL
        if self.spec.bad_reply != "random_legal":
            return Move(
                player=player, reply=reply, action=FORFEIT if self.spec.bad_reply == "forfeit" else SKIP, kind=kind
            )
        if not legal:
            raise SettingsError(
                f"environment {self.spec.env!r}: bad_reply='random_legal' needs legal actions, and player {player} to "
                "act has none listed; give bad_reply='skip' or 'forfeit'."
            )
        key = (self.task.split, self.task.seed, self.number, self._num_moves + place)
        return Move(player=player, reply=reply, action=legal[draw(*key, below=len(legal))], kind=kind)


def play_scripts(task: Task[Any], policies: Mapping[int, Policy], *, number: int = 0) -> PlayedEpisode:
    """Play one episode of scripts alone.

    Args:
        task: What is played.
        policies: One per player.
        number: Of the episode within the group of its task.
    """
    referee = Referee(task, number=number)
    seats = {player: policy.seat(player, task=task, game=number) for player, policy in policies.items()}
    while referee.status is None:
        referee.step({player: seats[player].act(referee.see(player)) for player in referee.to_act()})
    return referee.played()
