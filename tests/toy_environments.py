"""Small environments of the kinds that this package does not play.

One has a single player, the other several who act at the same time.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hanabi_grpo.envs import base


class ToyConfig(base.EnvConfig):
    preset: str = "toy"
    highest: int = 9
    rounds: int = 3


class GuessGame(base.Game):
    """One player guesses a number within four turns.

    Any whole number is a reply; a bad reply loses a turn.
    """

    def __init__(self, config: ToyConfig, number: int) -> None:
        self.config = config
        self.number = number
        self.guesses: list[str] = []

    def to_act(self) -> tuple[int, ...]:
        is_found = self.guesses[-1:] == [str(self.number)]
        return () if is_found else (0,)

    def message(self, player: int) -> str:
        return self._answer(self.guesses[-1]) if self.guesses else "Guess."

    def state_message(self, player: int) -> str:
        return " ".join(["Guess.", *map(self._answer, self.guesses)])

    def legal(self, player: int) -> None:
        return None

    def parse(self, player: int, reply: str) -> str | None:
        text = reply.strip()
        is_number = text.isascii() and text.isdigit()
        return text if is_number and len(text) < 9 else None

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        self.guesses.append(actions[0])
        return [{"found": 1.0} if not self.to_act() else {}]

    def result(self) -> Mapping[str, float]:
        return {"found": float(not self.to_act()), "guesses": len(self.guesses)}

    def hidden(self, player: int) -> Mapping[str, Any]:
        return {"number": self.number} if self.to_act() else {}

    def resampled(self, player: int, rng: random.Random) -> "GuessGame":
        answers = [self._answer(guess) for guess in self.guesses]
        possible = []
        for number in range(self.config.highest + 1):
            other = GuessGame(self.config, number)
            if [other._answer(guess) for guess in self.guesses] == answers:
                possible.append(number)
        other = self.copy()
        other.number = rng.choice(possible)
        return other

    def _answer(self, guess: str) -> str:
        if guess == base.SKIP:
            return "No number."
        if int(guess) < self.number:
            return f"{guess} is too low."
        if int(guess) > self.number:
            return f"{guess} is too high."
        return f"{guess} is right."


class Guess(base.Environment[ToyConfig]):
    name = "guess"
    Config = ToyConfig
    presets: Mapping[str, ToyConfig] = {"toy": ToyConfig()}
    policies: Mapping[str, Callable[[], base.Policy]] = {
        "random": lambda: base.Script("random", lambda seen, rng: str(rng.randrange(10)))
    }

    def spec(self, config: ToyConfig) -> base.EnvSpec:
        return base.EnvSpec(
            env="guess",
            preset=config.preset,
            hash=base.stable_hash("guess", config.highest),
            num_players=1,
            roles=("guesser",),
            payoff="general",
            max_turns=4,
            return_range=(0.0, 1.0),
            bad_reply="skip",
            disjoint_splits=True,
        )

    def system(self, config: ToyConfig, player: int) -> str:
        return f"Guess a whole number from 0 to {config.highest}."

    def reset(self, config: ToyConfig, *, split: str, seed: int) -> GuessGame:
        # Even numbers are for training, odd ones are held out.
        num_even = (config.highest + 1) // 2
        even = 2 * base.draw("guess", split, seed, below=num_even)
        is_held_out = split.startswith(("eval", "test"))
        return GuessGame(config, even + 1 if is_held_out else even)

    def start_id(self, config: ToyConfig, *, split: str, seed: int) -> str:
        return str(self.reset(config, split=split, seed=seed).number)


class DilemmaGame(base.Game):
    """Three players choose at the same time, round after round; a bad reply ends the game."""

    def __init__(self, config: ToyConfig, prize: int) -> None:
        self.config = config
        self.prize = prize
        self.rounds: list[Mapping[int, str]] = []

    def to_act(self) -> tuple[int, ...]:
        if len(self.rounds) == self.config.rounds:
            return ()
        if self.rounds and base.FORFEIT in self.rounds[-1].values():
            return ()
        return (0, 1, 2)

    def message(self, player: int) -> str:
        last = []
        if self.rounds:
            last = [self.rounds[-1][other] for other in range(3) if other != player]
        return f"The prize is {self.prize}. The others chose {last or 'nothing yet'}."

    def state_message(self, player: int) -> str:
        history = [sorted(actions.items()) for actions in self.rounds]
        return f"The prize is {self.prize}. So far: {history}."

    def legal(self, player: int) -> tuple[str, ...]:
        return ("share", "take") if self.to_act() else ()

    def parse(self, player: int, reply: str) -> str | None:
        return reply if reply in ("share", "take", "steal") else None

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        self.rounds.append(dict(actions))
        if base.FORFEIT in actions.values():
            return [{"lost": -1.0} if actions[who] == base.FORFEIT else {} for who in range(3)]
        takers = [player for player, action in actions.items() if action == "take"]
        if not takers:
            share = {"prize": self.prize / 3}
            return [share, share, share]
        if len(takers) > 1:
            return [{}, {}, {}]
        return [{"prize": float(self.prize)} if player in takers else {} for player in range(3)]

    def result(self) -> Mapping[str, float]:
        return {"rounds": len(self.rounds)}


class Dilemma(base.Environment[ToyConfig]):
    name = "dilemma"
    Config = ToyConfig
    presets: Mapping[str, ToyConfig] = {"toy": ToyConfig()}
    policies: Mapping[str, Callable[[], base.Policy]] = {
        "random": base.random_policy,
        "taker": lambda: base.Script("taker", lambda seen, rng: "take"),
    }

    def spec(self, config: ToyConfig) -> base.EnvSpec:
        return base.EnvSpec(
            env="dilemma",
            preset=config.preset,
            hash=base.stable_hash("dilemma", config.rounds),
            num_players=3,
            roles=("player",) * 3,
            payoff="general",
            max_turns=10,
            return_range=(-1.0, 6.0 * config.rounds),
            bad_reply="forfeit",
        )

    def system(self, config: ToyConfig, player: int) -> str:
        return "Reply share or take. A single taker gets the prize; without a taker it is divided."

    def reset(self, config: ToyConfig, *, split: str, seed: int) -> DilemmaGame:
        return DilemmaGame(config, 3 * (1 + base.draw(split, seed, below=2)))

    def start_id(self, config: ToyConfig, *, split: str, seed: int) -> str:
        return str(self.reset(config, split=split, seed=seed).prize)


GUESS = Guess()
DILEMMA = Dilemma()
