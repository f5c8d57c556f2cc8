"""Hanabi behind the interface of `envs.base`."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.alarms import ALARMS
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.deal import HanabiGame
from hanabi_grpo.envs.hanabi.metrics import step_metrics
from hanabi_grpo.envs.hanabi.policies import POLICIES
from hanabi_grpo.envs.hanabi.prompts import ObservationStyle, system_prompt
from hanabi_grpo.envs.hanabi.replays.frames import frames
from hanabi_grpo.envs.hanabi.replays.recording import recorded_board, recorded_deck
from hanabi_grpo.envs.hanabi.replays.timeline import make_timeline
from hanabi_grpo.envs.hanabi.rules import Card, attainable
from hanabi_grpo.envs.hanabi.rules.deals import deals_halves, shuffled_deck
from hanabi_grpo.envs.hanabi.rules.game import Game
from hanabi_grpo.envs.hanabi.rules.presets import PRESETS
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.types import Episode


class Hanabi(base.Environment[EnvConfig]):
    """Hanabi: the boards of `rules.presets`, with every number of players that they allow."""

    name = "hanabi"
    Config = EnvConfig
    presets: Mapping[str, EnvConfig] = MappingProxyType(
        {name: EnvConfig(preset=name, players=board.players[0]) for name, board in PRESETS.items()}
    )
    policies = POLICIES

    alarms = ALARMS

    def spec(self, config: EnvConfig) -> base.EnvSpec:
        """Return the board's; its hash names rules and deals, as in every record."""
        board = config.spec()
        best = config.reward_score * board.reachable_max
        return base.EnvSpec(
            env=self.name,
            preset=board.preset,
            hash=board.hash,
            num_players=board.num_players,
            roles=("player",) * board.num_players,
            payoff="team",
            max_turns=config.max_turns or board.max_turns,
            return_range=(min(best, 0.0), max(best, 0.0)),
            score="score",
            max_score=board.reachable_max,
            attainable=attainable(board),
            disjoint_splits=deals_halves(board, "train"),
        )

    def system(self, config: EnvConfig, player: int) -> str:
        """Return the rules of the board; nothing in the compact style."""
        style = ObservationStyle(config.observation)
        return system_prompt(config.spec(), style, player, bomb_rule=config.bomb_rule)

    def reset(self, config: EnvConfig, *, split: str, seed: int) -> HanabiGame:
        """Deal the deck of (split, seed)."""
        board = config.spec()
        return HanabiGame(config, Game(board, shuffled_deck(board, split, seed)))

    def start_id(self, config: EnvConfig, *, split: str, seed: int) -> str:
        """Return a hash of the deck."""
        return _deck_id(shuffled_deck(config.spec(), split, seed))

    def recorded(self, config: EnvConfig, recording: Recording) -> tuple[HanabiGame, str]:
        """Deal the recorded deck; a board of the same rules may have dealt others."""
        if recording.episode.env != self.name or recorded_board(recording).rules_hash != config.spec().rules_hash:
            raise base.other_game(self.spec(config), recording)
        deck = recorded_deck(recording)
        return HanabiGame(config, Game(recorded_board(recording), deck)), _deck_id(deck)

    def metrics(self, config: EnvConfig, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return the figures of a step, over boards of any kind."""
        return step_metrics(episodes)

    def render(self, config: EnvConfig, episode: Episode) -> Iterator[base.Frame]:
        """Yield the table with every hand before each move, and the table at the end."""
        return frames(make_timeline(Recording(episode=episode)))


def _deck_id(deck: Sequence[Card]) -> str:
    return hashlib.sha256(" ".join(map(str, deck)).encode()).hexdigest()[:16]


HANABI = Hanabi()
