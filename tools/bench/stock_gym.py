"""ms-swift's own multi-turn path with this package's games: `GYMScheduler` on `GRPOVllmEngine`.

The classes are ms-swift's (4.6.0). Three things are patched so that they run here; their work per
turn is unchanged:

- The engine object takes over vLLM's running `AsyncLLM` instead of starting one, because ms-swift's
  own server refuses a machine without a GPU.
- Each seat of a game is a separate environment, and the seats of one game wait for each other,
  because an environment has one conversation and a Hanabi player must not read the other's.
- The sampled reply is replaced by the recorded one, so that both arms play the same moves.
"""

import asyncio
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from swift.infer_engine import GRPOVllmEngine
from swift.infer_engine.protocol import RequestConfig, RolloutInferRequest, random_uuid
from swift.model import get_processor
from swift.rollout.gym_env import Env, envs
from swift.rollout.multi_turn import GYMScheduler
from swift.template import get_template

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.errors import ServerError

ENV_NAME = "hanabi_grpo_bench"
Script = tuple[str, tuple[int, ...]]
"""Text and ids of one reply."""


class SharedGame:
    """One game that its seats play together, with the scripted replies of each seat."""

    def __init__(
        self,
        config: EnvConfig,
        scripts: Sequence[Sequence[Script]],
        *,
        suite: str,
        seed: int,
        game: int,
    ) -> None:
        """Deal the cards.

        Args:
            config: The board.
            scripts: The replies of each seat, oldest first.
            suite: The suite of tasks.
            seed: Number of the task within the suite.
            game: Number of the game within its group.
        """
        self.config = config
        self._scripts = [iter(script) for script in scripts]
        self._referee = Referee(Setup(HANABI, config).task(suite, seed), number=game)
        self._moved = asyncio.Condition()

    def __deepcopy__(self, memo: dict[int, Any]) -> "SharedGame":
        # ms-swift copies a request whenever it encodes one.
        return self

    def next_reply(self, seat: int) -> Script:
        """Return the seat's next reply; empty if the game ended before its first turn."""
        return next(self._scripts[seat], ("", (0,)))

    @property
    def is_over(self) -> bool:
        """Whether the game has ended."""
        return self._referee.status is not None

    def check_followed(self) -> None:
        """Reject a game that differs from the recorded one.

        Raises:
            ServerError: It is not over, or a seat has replies left.
        """
        num_left = sum(len(list(script)) for script in self._scripts)
        if not self.is_over or num_left:
            raise ServerError(
                "a game of ms-swift's scheduler did not follow the recording; the arms cannot be "
                "compared."
            )

    async def wait_for_turn(self, seat: int) -> str:
        """Return what the seat is shown on its turn; "" if the game ends first."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.is_over or seat in self._referee.to_act())
            return "" if self.is_over else self._referee.see(seat).message()

    async def move(self, reply: str) -> float:
        """Apply the reply of the seat whose turn it is, and return the reward."""
        async with self._moved:
            [player] = self._referee.to_act()
            [turn] = self._referee.step({player: reply})
            self._moved.notify_all()
            return turn.reward(player)


class SeatEnv(Env):
    """One seat as ms-swift's environment.

    `env_config` holds the shared game and the seat's number.
    """

    def __init__(self, env_config: Mapping[str, Any]) -> None:
        """Take a seat."""
        super().__init__(env_config)
        self._game: SharedGame = env_config["game"]
        self._seat: int = env_config["seat"]

    async def reset(self, config: RolloutInferRequest) -> tuple[str, dict[str, Any], str]:
        """Wait for the first turn."""
        shown = await self._game.wait_for_turn(self._seat)
        system = HANABI.system(self._game.config, self._seat)
        # The scheduler samples once before it checks whether the game is over, so it needs a
        # prompt.
        return shown or "over", {}, system

    async def step(self, action: list[dict[str, Any]]) -> tuple[str, float, bool, dict[str, Any]]:
        """Move and wait for the next turn."""
        if self._game.is_over:
            return "", 0.0, True, {}
        reward = await self._game.move(str(action[-1]["content"]))
        shown = await self._game.wait_for_turn(self._seat)
        return shown, reward, self._game.is_over, {}

    async def close(self) -> None:
        """Leave."""


class ReplayingEngine(GRPOVllmEngine):
    """ms-swift's engine object around a running `AsyncLLM`; it returns the recorded replies."""

    def __init__(self, model: Path, llm: Any, *, max_model_len: int, max_lora_rank: int) -> None:
        """Wrap `llm`, which serves `model`."""
        self._llm = llm
        # A model folder does not name its ms-swift model type; the tiny model is a Qwen3.
        processor = get_processor(str(model), model_type="qwen3")
        template = get_template(processor, template_type="qwen3_nothinking")
        self.num_tokens = 0
        self.num_requests = 0
        super().__init__(
            str(model),
            template=template,
            use_async_engine=True,
            max_model_len=max_model_len,
            enable_lora=True,
            max_loras=1,
            max_lora_rank=max_lora_rank,
            enable_prefix_caching=True,
        )

    def _prepare_engine(self) -> None:
        self.engine = self._llm

    async def infer_async(
        self, infer_request: RolloutInferRequest, request_config: Any = None, **kwargs: Any
    ) -> Any:
        """Sample as ms-swift does, then return the recorded reply."""
        env_config = infer_request.data_dict["env_config"]
        text, ids = env_config["game"].next_reply(env_config["seat"])
        config = copy(request_config)
        config.max_tokens = len(ids)
        response = await super().infer_async(infer_request, config, **kwargs)
        choice = response.choices[0]
        self.num_requests += 1
        self.num_tokens += len(choice.token_ids)
        choice.message.content = text
        choice.token_ids = list(ids)
        choice.finish_reason = "stop"
        choice.logprobs = {"content": [{"logprob": 0.0} for _ in ids]}
        return response


def scheduler_of(engine: ReplayingEngine) -> Any:
    """Return ms-swift's scheduler on this engine."""
    envs[ENV_NAME] = SeatEnv
    return GYMScheduler(infer_engine=engine, gym_env=ENV_NAME)


def seat_requests(game: SharedGame) -> list[RolloutInferRequest]:
    """Return one request per seat of a game that has not begun."""
    requests = []
    for seat in range(game.config.players):
        env_config = {"name": ENV_NAME, "game": game, "seat": seat}
        # ms-swift's trainer sets the uuid by which the scheduler finds the environments.
        request = RolloutInferRequest(
            messages=[], uuid=random_uuid(), data_dict={"env_config": env_config}
        )
        requests.append(request)
    return requests


async def play_stock(
    scheduler: Any, requests: list[RolloutInferRequest], temperature: float
) -> list[Any]:
    """Let ms-swift play.

    Args:
        scheduler: See `scheduler_of`.
        requests: See `seat_requests`.
        temperature: Sampling temperature.

    Returns:
        ms-swift's outputs, one per seat and game.
    """
    config = RequestConfig(
        n=1, temperature=temperature, logprobs=True, return_details=True, stream=False
    )
    outputs: list[Any] = await scheduler.async_infer(requests, config, use_tqdm=False)
    return outputs
