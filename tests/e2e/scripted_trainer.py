"""A real trainer whose games are played by scripted players in its own process; no server takes
part.

ms-swift, DeepSpeed, adapters, gates, optimizer and checkpoints are the real ones. The moves are
fixed by the task, and the sampler's logprobs are those of the trainer's own model, so two runs of
the same steps have the same data.

`SCRIPTED` holds what goes wrong, as JSON: {"absent": {"player": 1, "steps": [1, 2]}} removes a
player's turns, {"empty": [3]} drops every game, {"nan_loss": {"player": 1, "steps": [2]}} makes
that player's forward pass not a number, {"nan_reward": [1]} gives one game of the step such a
reward, {"full_disk": [2]} lets that save fail, {"any_words": true} lets a model play what it has no
words for, {"plain": true} takes ms-swift's own forward pass over all tokens and PEFT's own layers.
"""

import asyncio
import dataclasses
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer
from transformers import AutoTokenizer

from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.client.answers import RolloutResult, bad_return
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.settings.partners import own_seats
from hanabi_grpo.training import pipeline, policy
from hanabi_grpo.training.link import ServerLink
from hanabi_grpo.training.main import main
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.run import TrainingRun
from hanabi_grpo.training.updates import Update
from hanabi_grpo.types import DroppedGame, Episode, Reply, Turn, player_name

PLAN: dict[str, Any] = json.loads(os.environ.get("SCRIPTED", "{}"))


class _Seat:
    """A scripted seat that also keeps the conversation as token ids."""

    def __init__(self, inner: Any, conversation: Conversation, version: int) -> None:
        self._inner, self._conversation, self._version = inner, conversation, version

    async def reply(self, seen: Observation) -> Reply:
        text = (await self._inner.reply(seen)).text
        chat = self._conversation._chat
        added = self._conversation.ask(seen.message())
        ids = [*chat.tokenizer.encode(text, add_special_tokens=False), chat.eos_id]
        self._conversation.answer(ids)
        return Reply(
            text=text,
            prompt=seen.message(),
            prompt_ids=tuple(added),
            reply_ids=tuple(ids),
            logprobs=(0.0,) * len(ids),
            version=self._version,
            fresh=seen.window is not None,
        )


class _Player:
    """Random play in every seat, of any environment."""

    name = "scripted"

    def __init__(self, chat: ChatFormat, version: int) -> None:
        self._chat, self._version = chat, version

    def seat(self, player: int, *, task: Task[Any], game: int) -> _Seat:
        system = task.environment.system(task.config, player)
        inner = make_script(task.setup, "random").seat(player, task=task, game=game)
        return _Seat(inner, Conversation(self._chat, system, task.config.window), self._version)


def _with_logprobs(model: Any, episode: Episode) -> Episode:
    turns = list(episode.turns)
    conversations: list[list[int]] = []
    for player in range(episode.num_players):
        own = [index for index, turn in enumerate(turns) if turn.player == player]
        for index in own:
            if turns[index].fresh or index == own[0]:
                conversations.append([])
            conversations[-1].append(index)
    for own in conversations:
        ids = [
            token for index in own for token in (*turns[index].prompt_ids, *turns[index].reply_ids)
        ]
        adapters.use_adapter(model, episode.seats[turns[own[0]].player].partition("@")[0])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0].float()
        logprobs = (
            torch.log_softmax(logits[:-1], -1)
            .gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
            .tolist()
        )
        place = 0
        for index in own:
            turn = turns[index]
            place += len(turn.prompt_ids)
            said = logprobs[place - 1 : place - 1 + len(turn.reply_ids)]
            place += len(turn.reply_ids)
            turns[index] = dataclasses.replace(turn, logprobs=tuple(said))
    return dataclasses.replace(episode, turns=tuple(turns), instance_id="scripted")


def _push(link: Any, model: Any, names: tuple[str, ...], version: int) -> None:
    link.model = model


def _play(link: Any, tasks: list[TaskRow], names: tuple[str, ...], version: int) -> RolloutResult:
    chat = ChatFormat.from_tokenizer(AutoTokenizer.from_pretrained(link.settings.model))
    groups: list[list[Episode]] = []
    for row in tasks:
        task = registry.setup(row.env, row.env_config).task(row.suite, row.seed)
        players = [_Player(chat, version)] * task.setup.spec.num_players
        played = [
            asyncio.run(play_episode(task, players, game=number))
            for number in range(link.settings.num_generations)
        ]
        seated = own_seats(len(players), names, version, link.settings.swap_every)
        groups.append(
            [_with_logprobs(link.model, dataclasses.replace(one, seats=seated)) for one in played]
        )
    absent = PLAN.get("absent", {})
    if version in absent.get("steps", []):
        groups = [[_without(episode, absent["player"]) for episode in group] for group in groups]
    if version in PLAN.get("nan_reward", []):
        episode = groups[0][0]
        bad = dataclasses.replace(
            episode.turns[0], rewards=({"score": float("nan")},) * episode.num_players
        )
        groups[0][0] = dataclasses.replace(episode, turns=(bad, *episode.turns[1:]))
    if version in PLAN.get("empty", []):
        dropped = [
            DroppedGame(suite="train", seed=task.seed, game=0, reason="planted") for task in tasks
        ]
        return RolloutResult(groups=[[] for _ in tasks], dropped=tuple(dropped))
    link.spec_hashes = sorted({group[0].spec_hash for group in groups})
    given_up = [
        DroppedGame(suite=one.suite, seed=one.seed, game=one.game, reason=reason)
        for group in groups
        for one in group
        if (reason := bad_return(one))
    ]
    kept = [[one for one in group if not bad_return(one)] for group in groups]
    return RolloutResult(groups=kept, dropped=tuple(given_up))


def _without(episode: Episode, player: int) -> Episode:
    absent = player_name(player)
    kept: list[Turn] = [
        turn for turn in episode.turns if episode.seats[turn.player].partition("@")[0] != absent
    ]
    return dataclasses.replace(episode, turns=tuple(kept))


_real_logprobs = TrainingRun.logprobs


def _logprobs(run: TrainingRun, batch: MicroBatch, update: Update) -> torch.Tensor:
    logprobs = _real_logprobs(run, batch, update)
    planted = PLAN.get("nan_loss", {})
    is_planted_step = run.state.step in planted.get("steps", [])
    if is_planted_step and batch.player == player_name(planted["player"]):
        logprobs = logprobs * float("nan")
    return logprobs


def _plain_logps(
    model: Any, unwrapped: Any, ids: Any, mask: Any, temperature: float, _: None, **__: Any
) -> Any:
    template = SimpleNamespace(padding_free=False)
    options = SimpleNamespace(
        model_kwarg_keys={"use_cache", "logits_to_keep"}, temperature=temperature, template=template
    )
    # Token 0 is in no conversation of the tiny model but as padding.
    attention = torch.cummax((ids != 0).flip(1).long(), 1)[0].flip(1)
    attention[:, 0] = 1
    inputs = {"input_ids": ids, "attention_mask": attention}
    logps, _ = GRPOTrainer._get_logps_via_local_forward(options, model, inputs, mask.shape[1], ids)
    return logps


_real_save = adapters.save_adapter


def _save(model: Any, name: str, folder: Path) -> None:
    if int(folder.parent.name.split("-")[1].split(".")[0]) in PLAN.get("full_disk", []):
        raise OSError(28, "No space left on device")
    _real_save(model, name, folder)


def _nothing(*_: Any) -> None:
    return None


if __name__ == "__main__":
    ServerLink.push, ServerLink.play, ServerLink.validated = _push, _play, _play
    ServerLink.connect = ServerLink.copy_log = ServerLink.disconnect = _nothing
    TrainingRun.logprobs = _logprobs
    adapters.save_adapter = _save
    if PLAN.get("any_words"):
        pipeline.check_vocabulary = _nothing
    if PLAN.get("plain"):
        policy.reply_logps = _plain_logps
        policy.join_lora_products = _nothing
        policy.share_prefixes = _nothing
    sys.exit(main(sys.argv[1:]))
