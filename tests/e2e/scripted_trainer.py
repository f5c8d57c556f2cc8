"""A real trainer whose games are played by scripted players in its own process, without a server.

ms-swift, DeepSpeed, adapters, gates, optimizer and checkpoints are the real ones. The moves are
fixed by the task, and the sampler's logprobs are those of the trainer's own model, so two runs of
the same steps have the same data. What goes wrong is in the plan: see `plans.Plan`.
"""

import asyncio
import atexit
import dataclasses
import functools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trainer_parts  # noqa: F401

# isort: split
import torch
from plans import PLANTED_RANK, read_plan
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.integrations import deepspeed as hf_deepspeed

from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.agents.taught import with_lesson_ids, with_teachers
from hanabi_grpo.client.answers import RolloutResult, bad_return
from hanabi_grpo.client.curves import Curve
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.processes import leave
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.settings import deepspeed_stage
from hanabi_grpo.settings.base_models import base_of
from hanabi_grpo.settings.partners import own_seats
from hanabi_grpo.settings.teachers import seat_teachers
from hanabi_grpo.training import checkpoint, mismatch, pipeline, policy
from hanabi_grpo.training.evidence import NO_SCORE
from hanabi_grpo.training.link import ServerLink
from hanabi_grpo.training.main import main
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.run import TrainingRun
from hanabi_grpo.training.shared_passes import Pass
from hanabi_grpo.training.trainer import ZERO_STAGE_OF_SHARDED_WEIGHTS
from hanabi_grpo.training.updates import Update
from hanabi_grpo.types import DroppedGame, Episode, Reply, player_name

PLAN = read_plan()
NO_SPACE_LEFT = 28
"""The system's number for a full disk."""


class ScriptedSeat:
    """A scripted seat that also keeps the conversation as token ids."""

    def __init__(self, script: Any, conversation: Conversation, version: int) -> None:
        self._script = script
        self._conversation = conversation
        self._version = version

    async def say(self, observation: Observation, text: str) -> Reply:
        ids = self._conversation._chat.said(text)
        prompt_ids = self._conversation.ask(observation.message())
        self._conversation.answer(list(ids))
        return Reply(
            text=text,
            prompt=observation.message(),
            prompt_ids=(*prompt_ids, *ids),
            version=self._version,
            fresh=observation.window is not None,
        )

    async def reply(self, observation: Observation) -> Reply:
        reply = await self._script.reply(observation)
        chat = self._conversation._chat
        prompt_ids = self._conversation.ask(observation.message())
        reply_ids = chat.tokenizer.encode(reply.text, add_special_tokens=False)
        reply_ids = [*reply_ids, chat.eos_id]
        self._conversation.answer(reply_ids)
        return Reply(
            text=reply.text,
            prompt=observation.message(),
            prompt_ids=tuple(prompt_ids),
            reply_ids=tuple(reply_ids),
            logprobs=(0.0,) * len(reply_ids),
            version=self._version,
            fresh=observation.window is not None,
        )


class ScriptedPlayer:
    """Random play in every seat, of any environment."""

    name = "scripted"

    def __init__(self, chat: ChatFormat, version: int) -> None:
        self._chat = chat
        self._version = version

    def seat(self, player: int, *, task: Task[Any], game: int) -> ScriptedSeat:
        system = task.environment.system(task.config, player)
        script = make_script(task.setup, "random").seat(player, task=task, game=game)
        conversation = Conversation(self._chat, system, task.config.window)
        return ScriptedSeat(script, conversation, self._version)


def add_logprobs(model: Any, episode: Episode) -> Episode:
    """Return an episode with the logprobs of the trainer's own model in its turns."""
    turns = list(episode.turns)
    for indices in _conversations(episode):
        ids: list[int] = []
        for index in indices:
            ids += turns[index].prompt_ids
            ids += turns[index].reply_ids
        player = turns[indices[0]].player
        adapters.use_adapter(model, _adapter_in_seat(episode, player))
        logprobs = _logprobs_of(model, ids)
        position = 0
        for index in indices:
            turn = turns[index]
            # The logprob of a token stands at the position of the token before it.
            start = position + len(turn.prompt_ids) - 1
            end = start + len(turn.reply_ids)
            turns[index] = dataclasses.replace(turn, logprobs=tuple(logprobs[start:end]))
            position += len(turn.prompt_ids) + len(turn.reply_ids)
    return dataclasses.replace(episode, turns=tuple(turns), instance_id="scripted")


def _conversations(episode: Episode) -> list[list[int]]:
    """Return the indices of the turns of each conversation; a fresh turn begins another one."""
    conversations: list[list[int]] = []
    for player in range(episode.num_players):
        is_first = True
        for index, turn in enumerate(episode.turns):
            if turn.player != player:
                continue
            if turn.fresh or is_first:
                conversations.append([])
            conversations[-1].append(index)
            is_first = False
    return conversations


def _adapter_in_seat(episode: Episode, seat: int) -> str:
    """Return the adapter that plays in a seat, e.g. "player_0" for "player_0@3"."""
    return episode.seats[seat].partition("@")[0]


def _logprobs_of(model: Any, ids: list[int]) -> list[float]:
    """Return the logprob of every token but the first one; a pass that is not counted."""
    global _num_forwards
    _num_forwards -= 1
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].float()
    targets = torch.tensor(ids[1:])[:, None]
    return torch.log_softmax(logits[:-1], -1).gather(-1, targets)[:, 0].tolist()


def push(link: Any, model: Any, names: tuple[str, ...], version: int) -> None:
    """Keep the trainer's model instead of pushing its adapters to a server.

    Under ZeRO-3 a process alone cannot compute with it: then a whole copy of it is kept.
    """
    if deepspeed_stage(link.settings) != ZERO_STAGE_OF_SHARDED_WEIGHTS:
        link.model = model
        return
    if not hasattr(link, "model"):
        link.model = _whole_model(link.settings, names)
    for name in names:
        tensors = adapters.adapter_tensors(model, name, torch.float32)
        adapters.put_tensors(link.model, name, tensors, "the trainer's model")


def _whole_model(settings: Any, names: tuple[str, ...]) -> Any:
    """Return the base model with fresh adapters, none of it divided between processes."""
    # transformers divides every model that is loaded while this is set.
    config = hf_deepspeed._hf_deepspeed_config_weak_ref
    hf_deepspeed.unset_hf_deepspeed_config()
    try:
        base = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32)
        return adapters.add_adapters(
            base, names, rank=settings.lora_rank, alpha=settings.lora_alpha, seed=0
        )
    finally:
        hf_deepspeed._hf_deepspeed_config_weak_ref = config


def play(link: Any, tasks: list[TaskRow], names: tuple[str, ...], version: int) -> RolloutResult:
    """Play the tasks of a step as a server would, with the faults of the plan.

    Args:
        link: The trainer's link to its server, which holds settings and model.
        tasks: The rows of the tasks.
        names: Names of the run's adapters.
        version: The version of the adapters, which is also the number of the step.
    """
    chats = {name: _chat_of(base_of(link.settings, name)) for name in names}
    groups = [_play_group(link, row, names, version, chats) for row in tasks]
    if PLAN.absent is not None and version in PLAN.absent.steps:
        absent = player_name(PLAN.absent.player)
        groups = [[_without_turns_of(absent, episode) for episode in group] for group in groups]
    if PLAN.rows:
        groups = _with_turns_in(PLAN.rows[version], groups)
    if version in PLAN.nan_reward:
        groups[0][0] = _with_a_reward_of_nan(groups[0][0])
    if version in PLAN.empty:
        return _nothing_played(tasks)
    link.spec_hashes = sorted({group[0].spec_hash for group in groups})
    kept: list[list[Episode]] = []
    dropped: list[DroppedGame] = []
    for group in groups:
        kept.append([])
        for episode in group:
            reason = bad_return(episode)
            if not reason:
                kept[-1].append(episode)
                continue
            dropped.append(
                DroppedGame(
                    suite=episode.suite, seed=episode.seed, game=episode.game, reason=reason
                )
            )
    return RolloutResult(groups=kept, dropped=tuple(dropped))


def play_curves(
    link: Any, curves: Sequence[Curve], names: tuple[str, ...], version: int
) -> dict[str, RolloutResult]:
    """Play the tasks of a validation, by the name of each curve."""
    return {curve.name: play(link, list(curve.tasks), names, version) for curve in curves}


@functools.cache
def _chat_of(model: str) -> ChatFormat:
    return ChatFormat.from_tokenizer(AutoTokenizer.from_pretrained(model))


def _play_group(
    link: Any, row: TaskRow, names: tuple[str, ...], version: int, chats: dict[str, ChatFormat]
) -> list[Episode]:
    setup = registry.setup(row.env, row.env_config)
    task = setup.task(row.suite, row.seed)
    num_players = task.setup.spec.num_players
    seats = own_seats(num_players, names, version, link.settings.swap_every)
    players = [ScriptedPlayer(chats[seat.partition("@")[0]], version) for seat in seats]
    taught = with_teachers(players, seat_teachers(link.settings, version), setup)
    chats_of_seats = [chats[seat.partition("@")[0]] for seat in seats]
    group = []
    for number in range(link.settings.num_generations):
        episode = asyncio.run(play_episode(task, taught, game=number))
        episode = with_lesson_ids(episode, chats_of_seats, link.settings.max_completion_length)
        group.append(dataclasses.replace(episode, seats=seats))
    return [add_logprobs(link.model, episode) for episode in group]


def _without_turns_of(adapter: str, episode: Episode) -> Episode:
    turns = [turn for turn in episode.turns if _adapter_in_seat(episode, turn.player) != adapter]
    return dataclasses.replace(episode, turns=tuple(turns))


def _with_turns_in(num_episodes: Sequence[int], groups: list[list[Episode]]) -> list[list[Episode]]:
    """Return episodes in which players have turns in so many of them, counted over all groups."""
    number = 0
    thinned: list[list[Episode]] = []
    for group in groups:
        thinned.append([])
        for episode in group:
            for player, count in enumerate(num_episodes):
                if number >= count:
                    episode = _without_turns_of(player_name(player), episode)
            thinned[-1].append(episode)
            number += 1
    return thinned


def _with_a_reward_of_nan(episode: Episode) -> Episode:
    rewards = ({"score": float("nan")},) * episode.num_players
    first = dataclasses.replace(episode.turns[0], rewards=rewards)
    return dataclasses.replace(episode, turns=(first, *episode.turns[1:]))


def _nothing_played(tasks: list[TaskRow]) -> RolloutResult:
    dropped = []
    for row in tasks:
        dropped.append(DroppedGame(suite="train", seed=row.seed, game=0, reason="planted"))
    return RolloutResult(groups=[[] for _ in tasks], dropped=tuple(dropped))


def _is_planted(run: TrainingRun) -> bool:
    return run._accelerator.process_index == PLANTED_RANK


_num_forwards = 0
"""Passes through the base model of this process, see `Plan.counts`."""
_real_check_gap = TrainingRun._check_gap


def check_gap(run: TrainingRun, batch: MicroBatch, logprobs: torch.Tensor, version: int) -> None:
    """Compare the trainer's logprobs with the sampler's, wrong ones where the plan says so."""
    planted = PLAN.wrong_logprobs
    if planted is not None and run.state.step in planted.steps:
        is_wrong = _is_planted(run) and batch.player == player_name(planted.player)
        logprobs = logprobs - float(is_wrong)
    _real_check_gap(run, batch, logprobs, version)


def count_forward(model: torch.nn.Module, _: Any) -> None:
    """Count a pass through the layers of the base model."""
    global _num_forwards
    if isinstance(model, PreTrainedModel) and not hasattr(model, "lm_head"):
        _num_forwards += 1


def save_count(folder: Path) -> None:
    """Write how many passes this process has made."""
    rank = os.environ.get("RANK", "0")
    (folder / f"rank-{rank}.json").write_text(json.dumps(_num_forwards))


_real_logprobs = TrainingRun.logprobs


def logprobs(run: TrainingRun, batches: Pass, update: Update) -> list[torch.Tensor]:
    """Return the trainer's logprobs, NaN for the player and steps of the plan."""
    if run.state.step in PLAN.broken and _is_planted(run):
        raise RuntimeError("planted on one rank")
    all_logprobs = _real_logprobs(run, batches, update)
    planted = PLAN.nan_loss
    if planted is None or run.state.step not in planted.steps:
        return all_logprobs
    planted_logprobs = []
    for batch, logprobs in zip(batches, all_logprobs, strict=True):
        is_planted = batch.player == player_name(planted.player)
        planted_logprobs.append(logprobs * float("nan") if is_planted else logprobs)
    return planted_logprobs


def share_nothing(*_: Any) -> str:
    """Let every player have forward passes of its own."""
    return "the plan says so"


def plain_reply_logps(
    model: Any, unwrapped: Any, ids: Any, mask: Any, temperature: float, _: None, **__: Any
) -> Any:
    """Return logprobs from ms-swift's own forward pass; takes what `policy.reply_logps` takes.

    Args:
        model: The model, or what DeepSpeed wraps it in.
        unwrapped: The model itself; not needed here.
        ids: Token ids [rows, tokens], padded with 0 on the right.
        mask: True where a token of a reply is predicted [rows, tokens - 1].
        temperature: Divides the logits.
    """
    options = SimpleNamespace(
        model_kwarg_keys={"use_cache", "logits_to_keep"},
        temperature=temperature,
        template=SimpleNamespace(padding_free=False),
    )
    # Token 0 is in no conversation of the tiny model but as padding.
    attention = torch.cummax((ids != 0).flip(1).long(), 1)[0].flip(1)
    attention[:, 0] = 1
    inputs = {"input_ids": ids, "attention_mask": attention}
    logps, _ = GRPOTrainer._get_logps_via_local_forward(options, model, inputs, mask.shape[1], ids)
    return logps


_real_save = adapters.save_adapter


def save_adapter(model: Any, name: str, folder: Path) -> None:
    """Save an adapter, or fail as on a full disk where the plan says so."""
    # The folder of a checkpoint that is being written, e.g. ".checkpoint-3.partial".
    step = int(folder.parent.name.split("-")[1].split(".")[0])
    if step in PLAN.full_disk:
        raise OSError(NO_SPACE_LEFT, "No space left on device")
    _real_save(model, name, folder)


def ask_nothing(_: Any) -> Any:
    """Take the place of the questions about what was sampled: here scripts choose, not a policy."""
    return NO_SCORE


def do_nothing(*_: Any) -> None:
    """Take the place of what needs a server."""


if __name__ == "__main__":
    # A run of a few steps has no ten minutes to wait for room on its disk.
    checkpoint.SAVE_PATIENCE = 0.0
    checkpoint.RETRY_SECONDS = 0.0
    ServerLink.push = push
    ServerLink.play = play
    ServerLink.validated = play_curves
    ServerLink.connect = do_nothing
    ServerLink.copy_log = do_nothing
    ServerLink.disconnect = do_nothing
    TrainingRun.probe_adapters = do_nothing
    TrainingRun.logprobs = logprobs
    TrainingRun._check_gap = check_gap
    mismatch.surprise_score = ask_nothing
    mismatch.repeat_score = ask_nothing
    adapters.save_adapter = save_adapter
    if PLAN.any_vocabulary:
        pipeline.check_vocabulary = do_nothing
    if PLAN.plain:
        policy.reply_logps = plain_reply_logps
        policy.join_lora_products = do_nothing
        policy.share_prefixes = do_nothing
    if PLAN.apart:
        policy.can_share_passes = share_nothing
    if PLAN.counts is not None:
        register_module_forward_pre_hook(count_forward)
        atexit.register(save_count, Path(PLAN.counts))
    leave(main(sys.argv[1:]))
