"""Play Hanabi and Kuhn poker through verifiers with a scripted model.

The model is an OpenAI chat server in this process. Run `python play_scripted.py` where
hanabi-grpo-verifiers is installed. The model replies as a script of the environment does in the
same game played locally; if verifiers plays a different game, an AssertionError is raised.
"""

import asyncio
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import verifiers.v1 as vf
from hanabi_grpo_verifiers import GameEnvConfig
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.utils.loaders import load_environment

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.referee import Referee, play_scripts
from hanabi_grpo.types import Episode, player_names


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedGame:
    """A game to play."""

    env: str
    preset: str
    script: str
    """The script whose replies the model gives."""
    seats: dict[str, str] = field(default_factory=dict)
    """Seats that scripts play inside verifiers, without an agent."""

    @property
    def env_config(self) -> dict[str, Any]:
        """The config as in a dataset row."""
        return {"preset": self.preset}


GAMES = (
    ScriptedGame(env="hanabi", preset="laptop", script="iggi"),
    ScriptedGame(
        env="kuhn_poker", preset="kuhn_poker", script="random", seats={"player_1": "random"}
    ),
)
ANSWERS: dict[str, str] = {}
"""The reply to each message, from the same game played locally."""
TOLERANCE = 1e-9
"""Two sums of rewards that differ by less are equal."""


class Chat(BaseHTTPRequestHandler):
    """Answers the last user message from `ANSWERS`."""

    def do_POST(self) -> None:
        """Answer one request."""
        length = int(self.headers["content-length"])
        request = json.loads(self.rfile.read(length))
        content = request["messages"][-1]["content"]
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        chunk = {
            "id": "x",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": request["model"],
        }
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "delta": {"role": "assistant", "content": ANSWERS[text]},
        }
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        events = [
            json.dumps({**chunk, "choices": [choice]}),
            json.dumps({**chunk, "choices": [], "usage": usage}),
            "[DONE]",
        ]
        body = "".join(f"data: {event}\n\n" for event in events).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def play_here(game: ScriptedGame) -> Episode:
    """Play the game with its script in every seat, and record its reply to each message."""
    setup = registry.setup(game.env, game.env_config)
    task = setup.task("train", 0)
    policy = setup.environment.policies[game.script]()
    episode = play_scripts(task, dict.fromkeys(range(setup.spec.num_players), policy))
    referee = Referee(task)
    for turn in episode.turns:
        ANSWERS[referee.see(turn.player).message()] = turn.reply
        referee.step({turn.player: turn.reply})
    return episode


async def main(port: int) -> None:
    """Play each game and compare."""
    client = EvalClientConfig(base_url=f"http://127.0.0.1:{port}/v1", api_key_var="NO_KEY")
    for game in GAMES:
        here = play_here(game)
        config = {
            "taskset": {
                "id": "hanabi-grpo-verifiers",
                "env": game.env,
                "env_config": game.env_config,
                "starts": 1,
            },
            "scripts": game.seats,
        }
        environment = load_environment(GameEnvConfig.model_validate(config))
        async with environment.serving():
            [task] = list(environment.taskset)
            context = ModelContext("scripted", client, vf.Sampling())
            episode = await environment.run_episode(task, context)
        assert episode.ok, [*episode.errors, *(trace.errors for trace in episode.traces)]
        traces = {trace.agent.name: trace for trace in episode.traces}
        check(here, game, traces)
        rewards = {}
        for name, trace in traces.items():
            rewards[name] = {part: reward.score for part, reward in trace.rewards.items()}
        print(f"{game.env}: {len(here.turns)} turns, {here.status}, rewards {rewards}")


def check(here: Episode, game: ScriptedGame, traces: dict[str, Any]) -> None:
    """Compare the traces of the agents with the game that was played locally.

    Args:
        here: The game played locally.
        game: The game's description.
        traces: What verifiers recorded, by the agent's name.
    """
    agents = []
    for player, name in enumerate(player_names(here.num_players)):
        if name not in game.seats:
            agents.append((player, name))
    assert sorted(traces) == [name for _, name in agents]
    for player, name in agents:
        trace = traces[name]
        assert trace.num_turns == len(here.trajectory(player)), trace.num_turns
        reward = here.reward(player)
        assert abs(trace.reward - reward) < TOLERANCE, (trace.rewards, reward)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asyncio.run(main(server.server_address[1]))
