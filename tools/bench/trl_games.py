"""TRL's GRPOTrainer (0.29) on a team's games.

It uses `rollout_func`, transformers' generation, and one adapter for all seats.

A row of its dataset is a task and a seat, so a group is one seat's conversations in the games of a
task. It supports neither an adapter per player nor per-turn credit; each conversation has one
reward, the game's. What others say is in a conversation but not in the loss (`env_mask`).
`rollout_func` does not require vLLM, but the keys and values of earlier turns are recomputed at
every turn, because `generate` takes whole prompts.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.stand_in import SUITE
from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.settings import Settings
from hanabi_grpo.types import Reply

_DATASET_STEPS = 64
"""Steps after which tasks repeat."""

Generate = Callable[[list[list[int]]], list[list[int]]]
"""Prompts to replies, both as ids."""


@dataclass(slots=True, kw_only=True)
class SeatEpisode:
    """One seat's conversation in one game."""

    conversation: Conversation
    """Everything that the seat has read and replied."""
    mask: list[int] = field(default_factory=list)
    """[tokens] 1 in this seat's replies."""
    prompt_length: int = 0
    """Tokens of the first message."""
    reward: float = 0.0
    """Reward of the whole game."""

    def fields(self, eos_id: int) -> dict[str, Any]:
        """Return the fields that TRL needs.

        A game that ended before the seat's first turn is one token without loss.
        """
        ids = self.conversation.ids or [eos_id] * 2
        mask = self.mask or [0] * 2
        prompt_length = self.prompt_length or 1
        return {
            "prompt_ids": ids[:prompt_length],
            "completion_ids": ids[prompt_length:],
            "env_mask": mask[prompt_length:],
            "game_reward": self.reward,
        }


def play_in_lock_step(
    config: EnvConfig, chat: ChatFormat, games: Sequence[tuple[int, int]], generate: Generate
) -> list[list[SeatEpisode]]:
    """Play games in parallel: all players who are to act in any of them reply in one batch.

    Args:
        config: The board.
        chat: The model's template, as our own rollouts use it.
        games: Seed of the task, and number within its group.
        generate: The model.

    Returns:
        For each game, the seats' episodes.
    """
    setup = Setup(HANABI, config)
    referees = [Referee(setup.task(SUITE, seed), number=number) for seed, number in games]
    episodes: list[list[SeatEpisode]] = []
    for _ in games:
        seats = []
        for seat in range(config.players):
            conversation = Conversation(chat, HANABI.system(config, seat))
            seats.append(SeatEpisode(conversation=conversation))
        episodes.append(seats)
    acting = _acting(referees)
    while acting:
        prompts = []
        for game, player in acting:
            seat_episode = episodes[game][player]
            added = seat_episode.conversation.ask(referees[game].see(player).message())
            seat_episode.mask += [0] * len(added)
            seat_episode.prompt_length = seat_episode.prompt_length or len(added)
            prompts.append(list(seat_episode.conversation.ids))
        for (game, player), ids in zip(acting, generate(prompts), strict=True):
            seat_episode = episodes[game][player]
            seat_episode.conversation.answer(ids)
            seat_episode.mask += [1] * len(ids)
            referees[game].step({player: Reply(text=chat.spoken(ids))})
        acting = _acting(referees)
    for referee, seats in zip(referees, episodes, strict=True):
        for player, seat_episode in enumerate(seats):
            seat_episode.reward = referee.episode().reward(player)
    return episodes


def _acting(referees: Sequence[Referee]) -> list[tuple[int, int]]:
    """Return game and player for all players who are to act."""
    acting = []
    for game, referee in enumerate(referees):
        for player in referee.to_act():
            acting.append((game, player))
    return acting


class TrlTeam:
    """A GRPOTrainer that plays and learns, and waits before each step's games."""

    def __init__(
        self,
        settings: Settings,
        config: EnvConfig,
        model: str,
        out: str,
        arrive: Callable[[int], bool],
    ) -> None:
        """Make the trainer, with the run's model, adapter size, learning rate and number of games.

        Args:
            settings: The run's settings.
            config: The board.
            model: Folder of the model.
            out: Output folder.
            arrive: Is called before each step with the number of tokens with loss in the last one.
                It returns when the step may begin; False: stop.
        """
        import torch
        from datasets import Dataset
        from peft import LoraConfig
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from trl import GRPOConfig, GRPOTrainer

        self._config = config
        self._arrive = arrive
        self._size = settings.num_generations
        self._learned = 0
        tokenizer = AutoTokenizer.from_pretrained(model)
        self._chat = ChatFormat.from_tokenizer(tokenizer, thinking=settings.thinking)
        on_cpu = settings.device == "cpu"
        rows = settings.tasks_per_step * settings.num_generations * config.players
        # On a CPU, the whole step in one batch, which is TRL's fastest way here; on a GPU, one task
        # at a time.
        parts = 1 if on_cpu else settings.tasks_per_step
        arguments = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=rows // parts,
            gradient_accumulation_steps=parts,
            num_generations=self._size,
            max_completion_length=settings.max_completion_length,
            temperature=settings.temperature,
            learning_rate=settings.rate_of("player_0"),
            lr_scheduler_type="constant",
            max_grad_norm=settings.max_grad_norm,
            max_steps=100_000,
            shuffle_dataset=False,
            # Both would make it slower.
            gradient_checkpointing=False,
            bf16=not on_cpu and settings.dtype == "bfloat16",
            use_cpu=on_cpu,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=settings.seed,
        )
        # `rollout_func` receives only the prompt of a row.
        dataset_rows = []
        for seed in range(_DATASET_STEPS * settings.tasks_per_step):
            for player in range(config.players):
                task = f"{seed} {player}"
                dataset_rows.append({"prompt": [{"role": "user", "content": task}]})
        self._trainer = GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, settings.dtype)),
            args=arguments,
            reward_funcs=lambda game_reward, **_: game_reward,
            train_dataset=Dataset.from_list(dataset_rows),
            processing_class=tokenizer,
            peft_config=LoraConfig(
                r=settings.largest_rank,
                lora_alpha=settings.alpha_of("player_0"),
                target_modules="all-linear",
                task_type="CAUSAL_LM",
            ),
            rollout_func=self._rollout,
        )

    def train(self) -> None:
        """Train until `arrive` returns False."""
        try:
            self._trainer.train()
        except _Closed:
            return

    def _rollout(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        if not self._arrive(self._learned):
            raise _Closed
        wanted: list[tuple[int, int, int]] = []
        for row, prompt in enumerate(prompts):
            seed, player = map(int, prompt[-1]["content"].split())
            wanted.append((seed, row % self._size, player))
        games = sorted({(seed, number) for seed, number, _ in wanted})
        episodes = play_in_lock_step(
            self._config,
            self._chat,
            games,
            lambda prompts: trainer._generate_single_turn(prompts, None, {})[0],
        )
        seats_of_game = dict(zip(games, episodes, strict=True))
        samples = []
        for seed, number, player in wanted:
            seat_episode = seats_of_game[seed, number][player]
            samples.append(seat_episode.fields(self._chat.eos_id))
        self._learned = sum(sum(sample["env_mask"]) for sample in samples)
        columns: dict[str, Any] = {}
        for name in samples[0]:
            columns[name] = [sample[name] for sample in samples]
        # Without the sampler's logprobs, TRL uses its own forward pass for the old policy, as after
        # its own generation.
        columns["logprobs"] = None
        return columns


class _Closed(Exception):
    """The measurement is over."""


def main() -> None:
    """Train according to the first line of the input.

    After each step, its number of tokens is printed. Before each step, a line is read.
    """
    # Output of libraries goes to the log.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    order = json.loads(sys.stdin.readline())

    def arrive(learned: int) -> bool:
        print(learned, file=answers, flush=True)
        return bool(sys.stdin.readline())

    settings = Settings.model_validate(order["settings"])
    config = EnvConfig.model_validate(order["config"])
    TrlTeam(settings, config, order["model"], order["out"], arrive).train()


if __name__ == "__main__":
    main()
