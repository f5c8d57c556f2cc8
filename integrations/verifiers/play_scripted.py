"""Play Hanabi and Kuhn poker through verifiers with a scripted model, an OpenAI chat server of this
process.

`python play_scripted.py`, where hanabi-grpo-verifiers is installed. It replies as a script of the
environment does in the same game played here; an AssertionError says that another one was played.
"""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import verifiers.v1 as vf
from hanabi_grpo_verifiers import GameEnvConfig
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.utils.loaders import load_environment

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.referee import Referee, play_scripts
from hanabi_grpo.types import Episode

GAMES = (
    ("hanabi", {"preset": "laptop"}, "iggi", {}),
    ("kuhn_poker", {"preset": "kuhn_poker"}, "random", {"player_1": "random"}),
)
"""Environment, config, the script whose replies the model gives, and the seats that verifiers has
no agent for.
"""
ANSWERS: dict[str, str] = {}
"""What is replied to a message, from the same game played here."""


class Chat(BaseHTTPRequestHandler):
    """Answers the last user message as `ANSWERS` says."""

    def do_POST(self) -> None:
        """Answer one request."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        content = asked["messages"][-1]["content"]
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        chunk = {
            "id": "x",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": asked["model"],
        }
        piece = {
            "index": 0,
            "finish_reason": "stop",
            "delta": {"role": "assistant", "content": ANSWERS[text]},
        }
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        events = [
            json.dumps({**chunk, "choices": [piece]}),
            json.dumps({**chunk, "choices": [], "usage": usage}),
        ]
        body = "".join(f"data: {event}\n\n" for event in (*events, "[DONE]")).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def play_here(env: str, config: dict[str, Any], script: str) -> Episode:
    """Play the game by a script in every seat, and note what it replied to what."""
    setup = registry.setup(env, config)
    task = setup.task("train", 0)
    policy = setup.environment.policies[script]()
    episode = play_scripts(task, dict.fromkeys(range(setup.spec.num_players), policy))
    referee = Referee(task)
    for turn in episode.turns:
        ANSWERS[referee.see(turn.player).message()] = turn.reply
        referee.step({turn.player: turn.reply})
    return episode


async def main(port: int) -> None:
    """Play each game and compare."""
    client = EvalClientConfig(base_url=f"http://127.0.0.1:{port}/v1", api_key_var="NO_KEY")
    for env, row, script, scripts in GAMES:
        here = play_here(env, row, script)
        taskset = {"id": "hanabi-grpo-verifiers", "env": env, "env_config": row, "starts": 1}
        games = load_environment(
            GameEnvConfig.model_validate({"taskset": taskset, "scripts": scripts})
        )
        async with games.serving():
            [task] = list(games.taskset)
            episode = await games.run_episode(task, ModelContext("scripted", client, vf.Sampling()))
        assert episode.ok, [*episode.errors, *(trace.errors for trace in episode.traces)]
        agents = [player for player in range(here.num_players) if f"player_{player}" not in scripts]
        traces = {trace.agent.name: trace for trace in episode.traces}
        assert sorted(traces) == [f"player_{player}" for player in agents]
        for player in agents:
            trace = traces[f"player_{player}"]
            assert trace.num_turns == sum(turn.player == player for turn in here.turns), (
                trace.num_turns
            )
            assert abs(trace.reward - here.reward(player)) < 1e-9, (
                trace.rewards,
                here.reward(player),
            )
        shown = {
            name: {part: reward.score for part, reward in trace.rewards.items()}
            for name, trace in traces.items()
        }
        print(f"{env}: {len(here.turns)} turns, {here.status}, rewards {shown}")


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asyncio.run(main(server.server_address[1]))
