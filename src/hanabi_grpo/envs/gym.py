"""One seat of any environment as a Gymnasium environment; scripts play the others."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Generic

import gymnasium

from hanabi_grpo.envs.aec import MAX_MESSAGE_CHARS, MAX_REPLY_CHARS, AnyText, HoldsEpisode
from hanabi_grpo.envs.base import C, Environment, Policy, Seat, Task
from hanabi_grpo.envs.referee import Referee, parts_of
from hanabi_grpo.errors import IllegalActionError, SettingsError
from hanabi_grpo.types import player_name


class SeatEnv(HoldsEpisode, gymnasium.Env[str, str], Generic[C]):
    """An environment seen from one seat: each step is one reply of it and what the partners do until its next turn.

    ## Action Space
    `Text`: a reply. Any text is one, see `Referee` for bad ones.

    ## Observation Space
    `Text`: what is new for this seat; "" when the episode is over.

    ## Rewards
    The seat's return since its last turn, whose parts are `info["rewards"]`. What it earns before its first turn is
    paid with its first step.

    ## Episode End
    Terminated when the game is over, truncated after the spec's `max_turns` steps. Where partners end the game before
    the seat's first turn, which `reset` cannot say, the first step takes no reply: whatever it is given, it returns the
    end and its reward. Starting again instead would change which starts are played.

    ## Info
    `player`, `system` (the system message), `legal` (of the next turn; None: any text), after a step also `rewards`,
    `action` and `kind` of the seat's own move, and at the end `result`.

    ## Arguments
    `reset(options={"split": "eval", "seed": 17, "game": 3})` chooses the start and the partners' random generators.
    Without options the split is "gymnasium" and the start is drawn from the env's own generator.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium declares it without ClassVar

    def __init__(self, environment: Environment[C], config: C, seat: int, partners: Mapping[int, Policy]) -> None:
        """Make an env without a game; call `reset` first.

        Args:
            environment: What is played.
            config: Its settings.
            seat: The player that the replies are for, from 0.
            partners: The script of every other player, e.g. `{1: HANABI.policies["iggi"]()}`.

        Raises:
            SettingsError: There is no such seat, or the partners are not one for every other seat.
        """
        num_players = environment.spec(config).num_players
        if not 0 <= seat < num_players:
            raise SettingsError(f"seat={seat}: {num_players} players have seats 0 to {num_players - 1}.")
        others = [other for other in range(num_players) if other != seat]
        if sorted(partners) != others:
            raise SettingsError(f"partners for seats {sorted(partners)}: with seat={seat} give one each for {others}.")
        self.environment = environment
        self.config = config
        self.seat = seat
        self.observation_space = AnyText(MAX_MESSAGE_CHARS)
        self.action_space = AnyText(MAX_REPLY_CHARS)
        self._partners = dict(partners)
        self._seats: dict[int, Seat] = {}
        self._owed: Counter[str] = Counter()
        self._is_end_told = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a new episode and let the partners before this seat act; see the class for `options`.

        Raises:
            SettingsError: `options` has an unknown key.
            IllegalActionError: A partner's action was not legal.
        """
        super().reset(seed=seed)
        options = dict(options or {})
        split, number, game = options.pop("split", "gymnasium"), options.pop("seed", None), options.pop("game", 0)
        if options:
            raise SettingsError(f"reset options {sorted(options)}: unknown; allowed: split, seed, game.")
        if number is None:
            number = int(self.np_random.integers(2**31))
        task = Task(environment=self.environment, config=self.config, split=split, seed=number)
        self._referee = Referee(task, number=game)
        self._seats = {player: one.seat(player, task=task, game=game) for player, one in self._partners.items()}
        self._owed = Counter()
        self._is_end_told = False
        while self._goes_on_without_me():
            self._step(None)
        return self._observation(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take this seat's reply, then let the partners act until its next turn or the end.

        Raises:
            IllegalActionError: There is no game, or it is over, or a partner's action was not legal.
        """
        own: dict[str, Any] = {}
        if self.referee.status is None:
            own = self._step(action)
            while self._goes_on_without_me():
                self._step(None)
        elif self._is_end_told:
            raise IllegalActionError(f"The episode is over ({self.referee.status}): call reset() before the next step.")
        rewards, self._owed = dict(self._owed), Counter()
        status = self.referee.status
        self._is_end_told = status is not None
        truncated = status is not None and status.is_truncated
        info = {**self._info(), **own, "rewards": rewards}
        return self._observation(), float(sum(rewards.values())), self._is_end_told and not truncated, truncated, info

    def _goes_on_without_me(self) -> bool:
        return self.referee.status is None and self.seat not in self.referee.to_act()

    def _step(self, reply: str | None) -> dict[str, Any]:
        """Make one step in which this seat gives `reply`; return what became of it."""
        referee, replies = self.referee, {} if reply is None else {self.seat: reply}
        for player in referee.to_act():
            if player != self.seat:
                seen = referee.see(player)
                replies[player] = self._seats[player].act(seen)
                legal = seen.legal()
                if legal is not None and referee.game.parse(player, replies[player]) not in legal:
                    raise IllegalActionError(
                        f"{replies[player]!r}: {self._partners[player].name} as {player_name(player)} may not do that "
                        f"now; a partner has to choose one of {', '.join(legal)}."
                    )
        turns = referee.step(replies)
        self._owed.update(parts_of(turns, self.seat))
        own = next((turn for turn in turns if turn.player == self.seat), None)
        return {} if own is None else {"action": own.action, "kind": own.kind}

    def _observation(self) -> str:
        return "" if self.referee.status is not None else self.referee.see(self.seat).message()

    def _info(self) -> dict[str, Any]:
        over = self.referee.status is not None
        info = {"player": player_name(self.seat), "system": self.environment.system(self.config, self.seat)}
        legal = () if over else self.referee.see(self.seat).legal()
        return {**info, "legal": legal, **({"result": dict(self.referee.game.result())} if over else {})}
