"""Turns the replies of one episode into actions and rewards.

All play goes through a `Referee`, so that bad replies are always handled the same way.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hanabi_grpo.envs.base import (
    FORFEIT,
    SKIP,
    EnvSpec,
    Game,
    Observation,
    Policy,
    Seat,
    Task,
    draw,
)
from hanabi_grpo.envs.rewards import episode_rewards, with_parts
from hanabi_grpo.envs.tools.calls import WantedCall
from hanabi_grpo.envs.tools.seat import SeatTools
from hanabi_grpo.envs.tools.tool import Outcome
from hanabi_grpo.errors import IllegalActionError, SettingsError
from hanabi_grpo.texts import encodable
from hanabi_grpo.types import (
    CallError,
    Episode,
    EpisodeStatus,
    Reply,
    ReplyKind,
    ToolCall,
    Turn,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MadeCall:
    """A reply that called a tool in the current step."""

    reply: Reply
    call: ToolCall


class Referee:
    """An episode in progress.

    A bad reply is not an error: its player gets `reward_illegal` or `reward_unparsable`, and the
    action that `EnvSpec.bad_reply` specifies replaces it.

    Example:
        setup = registry.setup("kuhn_poker", {"preset": "kuhn_poker"})
        referee = Referee(setup.task("eval", 17))
        while referee.status is None:
            replies = {}
            for player in referee.to_act():
                replies[player] = ask(referee.see(player).message())
            referee.step(replies)
    """

    def __init__(self, task: Task[Any], *, number: int = 0, is_rehearsal: bool = False) -> None:
        """Start an episode.

        Args:
            task: The start.
            number: Index of the episode within the task's group; it seeds the random actions that
                replace bad replies.
            is_rehearsal: Skip `Environment.rewards`, for episodes that are only played to find out
                how long games are or which words occur: reward functions may be slow or cost money.
        """
        self.task = task
        self._is_rehearsal = is_rehearsal
        self.number = number
        self.spec: EnvSpec = task.setup.spec
        self.game: Game = task.environment.reset(task.config, split=task.split, seed=task.seed)
        """The complete game, with all secrets: for records and tests, never for players."""
        self._tools: dict[int, SeatTools] = {}
        """Tools per player; empty in a game without tools."""
        self._made_calls: dict[int, list[_MadeCall]] = {}
        """Each player's calls since its last action."""
        for player in range(self.spec.num_players):
            tools = task.setup.seat_tools()
            if tools is not None:
                self._tools[player] = tools
                self._made_calls[player] = []
        self.status: EpisodeStatus | None = None if self.game.to_act() else EpisodeStatus.FINISHED
        """None while the episode is in progress."""
        self._turns: list[Turn] = []
        self._num_steps = 0
        self._late: tuple[Counter[str], ...] = tuple(
            Counter[str]() for _ in range(self.spec.num_players)
        )
        """Rewards for steps before the last one that each player was paid at the end."""

    def to_act(self) -> tuple[int, ...]:
        """Return the players to act; () once the episode is over or truncated."""
        return () if self.status is not None else self.game.to_act()

    def see(self, player: int) -> Observation:
        """Return what a player may look at."""
        return Observation(self.game, player, self.task.config.window, self._tools.get(player))

    def wanted_call(self, player: int, reply: Reply | str) -> WantedCall | None:
        """Return the tool call in a reply, or None for an action.

        Once a turn has no calls left, a reply that calls a tool is an unparsable action.

        Args:
            player: One of the players to act.
            reply: Its reply.
        """
        tools = self._tools.get(player)
        if tools is None or not tools.calls_left:
            return None
        return tools.read(reply.text if isinstance(reply, Reply) else reply)

    def tools_of(self, player: int) -> SeatTools:
        """Return the tools of a player that has tools, to run a `wanted_call`."""
        return self._tools[player]

    def add_call(
        self, player: int, reply: Reply | str, wanted: WantedCall, outcome: Outcome
    ) -> ToolCall:
        """Record a call with its outcome; the player is then asked again, see `see`."""
        call = self._tools[player].add(wanted, outcome)
        full_reply = reply if isinstance(reply, Reply) else Reply(text=reply)
        self._made_calls[player].append(_MadeCall(reply=full_reply, call=call))
        return call

    def take_back_call(self, player: int) -> Reply | None:
        """Remove the player's last call of this turn and return its reply.

        This is for a player whose conversation has no room for another reply: the reply that used
        up the room then becomes its action, an unparsable one, as if no call had been left. None:
        the turn has no call.
        """
        if not self._made_calls.get(player):
            return None
        self._tools[player].take_back()
        return self._made_calls[player].pop().reply

    def step(self, replies: Mapping[int, Reply | str]) -> tuple[Turn, ...]:
        """Take one reply from each player in `to_act()` and return their turns in that order.

        Args:
            replies: Any text, or a reply with its tokens, per player.

        Raises:
            IllegalActionError: The episode is over, or the replies are not from exactly the players
                to act.
            RewardError: This step ends the episode, and one of the environment's reward functions
                fails.
        """
        players = self.to_act()
        if self.status is not None:
            raise IllegalActionError(f"The episode is over ({self.status}): start a new one.")
        if set(replies) != set(players):
            raise IllegalActionError(
                f"replies from players {sorted(replies)}: give one reply for each of "
                f"{sorted(players)}."
            )
        full_replies: dict[int, Reply] = {}
        for player, reply in replies.items():
            full_replies[player] = reply if isinstance(reply, Reply) else Reply(text=reply)
        actions: dict[int, str] = {}
        kinds: dict[int, ReplyKind] = {}
        for order, player in enumerate(players):
            action, kind = self._read(player, full_replies[player].text, order)
            actions[player] = action
            kinds[player] = kind
        game_rewards = self.game.step(actions)
        turns = []
        for player in players:
            turns += self._call_turns(player)
            rewards = self._turn_rewards(player, players, game_rewards, kinds[player])
            turn = self._turn(player, full_replies[player], actions[player], kinds[player], rewards)
            turns.append(self._marked(turn))
        for player in self._tools:
            self._tools[player].end_turn()
            self._made_calls[player].clear()
        self._turns += turns
        self._num_steps += 1
        if not self.game.to_act():
            self.status = EpisodeStatus.FINISHED
        elif self._num_steps >= self.spec.max_turns:
            self.status = EpisodeStatus.TRUNCATED_TURNS
        self._pay_earlier_steps()
        self._pay_episode()
        return tuple(self._turns[-len(turns) :])

    def out_of_tokens(self, player: int) -> None:
        """End the episode because a player's next reply might not fit into its conversation.

        The others keep what they have earned. The player's last turn gets the reward part
        "out_of_tokens": usually its own replies used up the room, but a message may also quote long
        replies of others. Without this penalty, talking until the context is full would be a safe
        way out of a game that may still be lost. A player without a turn gets no such part.

        Raises:
            RewardError: One of the environment's reward functions fails.
        """
        self.status = EpisodeStatus.TRUNCATED_TOKENS
        self._pay_earlier_steps()
        for index in reversed(range(len(self._turns))):
            if self._turns[index].player == player:
                price = self.task.config.reward_out_of_tokens
                self._add_rewards(index, player, {"out_of_tokens": price})
                break
        self._pay_episode()

    def paid(self, turns: Sequence[Turn], player: int) -> dict[str, float]:
        """Return what a step paid a player, by part.

        For the last step, this includes what was paid at the end for earlier steps.

        Args:
            turns: The turns that `step` returned.
            player: Number of the player.
        """
        rewards = Counter(parts_of(turns, player))
        if self.status is not None:
            rewards.update(self._late[player])
        return dict(rewards)

    def episode(self, *, seats: Sequence[str] = (), instance_id: str = "") -> Episode:
        """Return the episode as data.

        Args:
            seats: The policy in each seat; see `Episode.seats`.
            instance_id: The server process that played the episode.

        Raises:
            IllegalActionError: The episode is still in progress.
        """
        if self.status is None:
            raise IllegalActionError("The episode is not over: play it to its end first.")
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

    def _read(self, player: int, reply: str, order: int) -> tuple[str, ReplyKind]:
        """Return the action that is applied for a reply, and how the reply was classified.

        `order` is the position of the player among those who act in this step.
        """
        legal = self.game.legal(player)
        action = None
        if self._read_call(player, reply) is None:
            action = self.game.parse(player, reply)
        if action in (FORFEIT, SKIP):
            # These are the referee's own words for a reply that cannot be applied.
            action = None
        if action is not None and (legal is None or action in legal):
            return action, ReplyKind.LEGAL
        kind = ReplyKind.UNPARSABLE if action is None else ReplyKind.ILLEGAL
        if self.spec.bad_reply == "forfeit":
            return FORFEIT, kind
        if self.spec.bad_reply == "skip":
            return SKIP, kind
        if not legal:
            raise SettingsError(
                f"environment {self.spec.env!r}: bad_reply='random_legal' needs legal actions, but "
                f"legal() lists none for player {player}; use bad_reply='skip' or 'forfeit'."
            )
        key = (self.task.split, self.task.seed, self.number, len(self._turns) + order)
        return legal[draw(*key, below=len(legal))], kind

    def _read_call(self, player: int, reply: str) -> WantedCall | None:
        """Return the call in a reply, whether or not the turn has a call left."""
        tools = self._tools.get(player)
        return tools.read(reply) if tools is not None else None

    def _call_turns(self, player: int) -> list[Turn]:
        """Return a player's tool calls in this step as turns without rewards."""
        no_rewards: list[Mapping[str, float]] = [{} for _ in range(self.spec.num_players)]
        turns = []
        result = ""
        for made in self._made_calls.get(player, ()):
            reply = made.reply
            if not reply.prompt and result:
                reply = replace(reply, prompt=result)
            action = encodable(reply.text)
            turn = self._turn(player, reply, action, ReplyKind.LEGAL, no_rewards)
            turns.append(replace(turn, call=made.call, follows_call=bool(result)))
            result = made.call.result
        return turns

    def _marked(self, turn: Turn) -> Turn:
        """Return the turn of an action with its fields about tool calls filled in."""
        made_calls = self._made_calls.get(turn.player)
        if made_calls:
            prompt = turn.prompt or encodable(made_calls[-1].call.result)
            turn = replace(turn, prompt=prompt, follows_call=True)
        wanted = self._read_call(turn.player, turn.reply)
        if wanted is None:
            return turn
        call = ToolCall(tool=wanted.name, argument=wanted.argument, error=CallError.OVER_LIMIT)
        return replace(turn, call=call)

    def _turn_rewards(
        self,
        player: int,
        acting: Sequence[int],
        game_rewards: Sequence[Mapping[str, float]],
        kind: ReplyKind,
    ) -> list[dict[str, float]]:
        """Return the reward parts, per player, that one player's turn of a step holds.

        These are the player's own parts, including the penalty for a bad reply. The last turn of
        the step also holds the parts of all players who did not act.
        """
        is_last_turn = player == acting[-1]
        rewards: list[dict[str, float]] = []
        for receiver in range(self.spec.num_players):
            if receiver == player or (is_last_turn and receiver not in acting):
                rewards.append(dict(game_rewards[receiver]))
            else:
                rewards.append({})
        if kind is ReplyKind.ILLEGAL:
            rewards[player][kind.value] = self.task.config.reward_illegal
        elif kind is ReplyKind.UNPARSABLE:
            rewards[player][kind.value] = self.task.config.reward_unparsable
        return rewards

    def _turn(
        self,
        player: int,
        reply: Reply,
        action: str,
        kind: ReplyKind,
        rewards: Sequence[Mapping[str, float]],
    ) -> Turn:
        return Turn(
            player=player,
            step=self._num_steps,
            prompt=encodable(reply.prompt),
            reply=encodable(reply.text),
            action=encodable(action),
            kind=kind,
            rewards=tuple(rewards),
            prompt_ids=reply.prompt_ids,
            reply_ids=reply.reply_ids,
            logprobs=reply.logprobs,
            version=reply.version,
            fresh=reply.fresh,
            lesson=reply.lesson,
        )

    def _pay_earlier_steps(self) -> None:
        """Add to the turns of each step what the game pays for it once the episode is over."""
        if self.status is None:
            return
        late = self.game.late()
        if len(late) > self._num_steps:
            raise SettingsError(
                f"environment {self.spec.env!r}: late() pays for {len(late)} steps, but the game "
                f"had {self._num_steps}; return at most one entry for each step that was played."
            )
        for step, rewards in enumerate(late):
            indices: dict[int, int] = {}
            for index, turn in enumerate(self._turns):
                if turn.step == step:
                    indices[turn.player] = index
            last_index = max(indices.values())
            for player, parts in enumerate(rewards):
                self._add_rewards(indices.get(player, last_index), player, parts)
                if step < self._num_steps - 1:
                    self._late[player].update(parts)

    def _pay_episode(self) -> None:
        """Add to the turns of the last step what the environment's reward functions pay."""
        rewards = {} if self._is_rehearsal else self.task.environment.rewards
        if self.status is None or not rewards or not self._turns:
            return
        episode = self.episode()
        limits = self.task.environment.reward_limits
        paid = episode_rewards(rewards, episode, self.spec, limits)
        self._turns = list(with_parts(episode, paid).turns)

    def _add_rewards(self, index: int, player: int, parts: Mapping[str, float]) -> None:
        """Add a player's reward parts to the turn at an index of `_turns`."""
        turn = self._turns[index]
        rewards = list(turn.rewards)
        total = Counter(rewards[player])
        total.update(parts)
        rewards[player] = dict(total)
        self._turns[index] = replace(turn, rewards=tuple(rewards))


def parts_of(turns: Sequence[Turn], player: int) -> dict[str, float]:
    """Return what the turns of one step pay a player, by part."""
    parts: dict[str, float] = {}
    for turn in turns:
        parts.update(turn.rewards[player])
    return parts


def play_scripts(task: Task[Any], policies: Mapping[int, Policy], *, number: int = 0) -> Episode:
    """Play an episode with scripts in all seats.

    Args:
        task: The start.
        policies: One script per player.
        number: Index of the episode within the task's group.
    """
    referee = Referee(task, number=number)
    seats = {}
    for player, policy in policies.items():
        seats[player] = policy.seat(player, task=task, game=number)
    while referee.status is None:
        replies = {}
        for player in referee.to_act():
            replies[player] = _script_reply(referee, player, seats[player])
        referee.step(replies)
    names = [policies[player].name for player in range(referee.spec.num_players)]
    return referee.episode(seats=names)


def _script_reply(referee: Referee, player: int, seat: Seat) -> str:
    """Return a script's action, after running its tool calls."""
    while True:
        reply = seat.act(referee.see(player))
        wanted = referee.wanted_call(player, reply)
        if wanted is None:
            return reply
        referee.add_call(player, reply, wanted, referee.tools_of(player).run(wanted))
