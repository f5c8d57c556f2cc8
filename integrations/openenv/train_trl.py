"""Train one seat of our environments with TRL's GRPOTrainer.

It uses TRL's `environment_factory`, through OpenEnv. Run it in a virtual environment without vLLM
and ms-swift, which need a different version of transformers:

    pip install trl==1.16.0 transformers==5.23.0 openenv==0.10.0 torch
    python train_trl.py URL [MODEL] [STEPS]

URL is that of `hanabi-grpo openenv`; MODEL is a folder or a name, by default the project's tiny
model. It prints a JSON line for each game and TRL's own line for each step.

In TRL, a game is one completion: the model's text calls a tool, here `move`, and the tool's answer
is what the seat sees next. The other players are scripts on the server, so only one seat learns.
Our own trainer trains all seats.
"""

import functools
import json
import sys
from pathlib import Path
from typing import Any

from openenv.core.generic_client import GenericEnvClient

TINY = Path(__file__).resolve().parents[2] / "data" / "tiny-model"
NUM_GENERATIONS = 8
"""Games of each task, which form a group."""
TASKS_PER_STEP = 4
LEARNING_RATE = 1e-3
MAX_TOKENS = 512
"""Tokens of a game: everything that its seat reads and writes."""
MAX_MOVES = 6
"""Maximum moves of one seat on the laptop board."""
PLAIN_TEMPLATE = """{%- for message in messages -%}
{%- set role = 'user' if message.role == 'tool' else message.role -%}
{{- '<|im_start|>' + role + '\\n' + message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- call.function.name ~ ' ' ~ call.function.arguments -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
"""For a model that has not learned to call tools: a tool's answer is the next user message.

TRL requires a template that shows calls, but continues from the sampled ids, so no model sees one.
"""
PLAIN_CALL = {
    "defaults": {"role": "assistant"},
    "start_anchor_pattern": r"<\|im_start\|>\s*assistant\s*",
    "fields": {
        "tool_calls": {
            "close_pattern": r"<\|im_end\|>\s*",
            "content": "text",
            "repeats": True,
            "transform": {
                "type": "function",
                "function": {"name": "move", "arguments": {"reply": "{content}"}},
            },
        },
    },
}
"""How Transformers parses such a model: the whole reply is the argument of `move`."""


class Seat:
    """One game at a time in its own session.

    TRL makes one object for each concurrent game.
    """

    def __init__(self, url: str) -> None:
        """Open a session."""
        self._client = GenericEnvClient(base_url=url).sync()
        self._client.connect()

    def reset(self, seed: int, **row: Any) -> str:
        """Start the game of a row of the dataset; return what the seat reads."""
        result = self._client.reset(seed=seed, split="train")
        self._seed = seed
        self._done = result.done
        self._reward = 0.0
        self._replies: list[str] = []
        system = result.observation["system"]
        message = result.observation["message"]
        return f"{system}\n\n{message}" if system else message

    def move(self, reply: str) -> str:
        """Make a move and see what the others did.

        Args:
            reply: The move, e.g. "Play 0".

        Returns:
            What is new for you; nothing when the game is over.
        """
        if self._done:
            raise ValueError("The game is over.")
        result = self._client.step({"reply": reply})
        self._reward += result.reward
        self._done = result.done
        self._replies.append(reply)
        return result.observation["message"]

    def get_reward(self) -> float:
        """Return the sum of the game's rewards."""
        game = {
            "seed": self._seed,
            "replies": self._replies,
            "reward": self._reward,
            "over": self._done,
        }
        print(json.dumps(game))
        return self._reward


def main() -> None:
    """Train."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    model = sys.argv[2] if len(sys.argv) > 2 else str(TINY)
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    tokenizer = AutoTokenizer.from_pretrained(model)
    if "tools" not in tokenizer.chat_template:
        tokenizer.chat_template = PLAIN_TEMPLATE
        tokenizer.response_template = PLAIN_CALL
    config = GRPOConfig(
        output_dir="outputs/trl",
        per_device_train_batch_size=NUM_GENERATIONS * TASKS_PER_STEP,
        num_generations=NUM_GENERATIONS,
        max_steps=steps,
        learning_rate=LEARNING_RATE,
        max_completion_length=MAX_TOKENS,
        max_tool_calling_iterations=MAX_MOVES,
        logging_steps=1,
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        save_strategy="no",
        report_to="none",
    )
    rows = []
    for seed in range(TASKS_PER_STEP * steps):
        rows.append({"prompt": [{"role": "user", "content": ""}], "seed": seed})
    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(model),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=functools.partial(Seat, sys.argv[1]),
    )
    trainer.train()


if __name__ == "__main__":
    main()
