"""Train one seat of our environments by TRL's GRPOTrainer: its `environment_factory`, through
OpenEnv.

In an environment without vLLM and ms-swift, whose transformers is another one: `pip install
trl==1.16.0 transformers==5.23.0 openenv==0.10.0 torch`. There `python train_trl.py URL [MODEL]
[STEPS]`, with the URL of `hanabi-grpo openenv`; MODEL is a folder or a name, the project's tiny
model if left out. Prints a JSON line for each game and TRL's own line for each step.

In TRL a game is one completion: what the model writes calls a tool, here `move`, and the tool's
answer is what the seat sees next. Whoever else plays is a script of the server: one seat learns,
where our own trainer trains all."""

import functools
import json
import sys
from pathlib import Path
from typing import Any

from openenv.core.generic_client import GenericEnvClient

TINY = Path(__file__).resolve().parents[2] / "data" / "tiny-model"
GROUP, DEALS = 8, 4
"""Games of each task that are compared, and tasks of a step."""
PLAIN_TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' + message.content -}}
{%- for call in message.tool_calls or [] -%}{{- call.function.name ~ ' ' ~ call.function.arguments -}}{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
"""For a model that has not learned to call tools: the answer of one is the next user message.

TRL wants a template that shows calls, but goes on from the sampled ids, so that no model sees one.
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
"""How Transformers reads such a model: every reply, whole, is the argument of `move`."""


class Seat:
    """One game at a time in a session of its own; TRL makes one for every game that is played at
    once.
    """

    def __init__(self, url: str) -> None:
        self._client = GenericEnvClient(base_url=url).sync()
        self._client.connect()

    def reset(self, seed: int, **row: Any) -> str:
        """Start the game of a row of the dataset; return what the seat reads."""
        told = self._client.reset(seed=seed, split="train")
        self._seed, self._done, self._reward, self._replies = seed, told.done, 0.0, list[str]()
        return "\n\n".join(filter(None, (told.observation["system"], told.observation["message"])))

    def move(self, reply: str) -> str:
        """Make a move and see what the others did.

        Args:
            reply: The move, e.g. "Play 0".

        Returns:
            What is new for you; nothing when the game is over.
        """
        if self._done:
            raise ValueError("The game is over.")
        told = self._client.step({"reply": reply})
        self._reward, self._done = self._reward + told.reward, told.done
        self._replies.append(reply)
        return told.observation["message"]

    def get_reward(self) -> float:
        """Return the sum of the game's rewards."""
        print(
            json.dumps(
                {
                    "seed": self._seed,
                    "replies": self._replies,
                    "reward": self._reward,
                    "over": self._done,
                }
            )
        )
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
        tokenizer.chat_template, tokenizer.response_template = PLAIN_TEMPLATE, PLAIN_CALL
    config = GRPOConfig(
        output_dir="outputs/trl",
        per_device_train_batch_size=GROUP * DEALS,
        num_generations=GROUP,
        max_steps=steps,
        learning_rate=1e-3,
        max_completion_length=512,
        max_tool_calling_iterations=6,  # as many moves as one seat of the laptop board has
        logging_steps=1,
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        save_strategy="no",
        report_to="none",
    )
    rows = [
        {"prompt": [{"role": "user", "content": ""}], "seed": seed} for seed in range(DEALS * steps)
    ]
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
