"""R13: a whole training step of ours against one of TRL's GRPOTrainer."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from bench.context import Bench
from bench.pairing import Measure, Stopwatch, measure_pairs, ratios_of
from bench.row import Row, at_least
from bench.serving import serving
from bench.start_rows import TRAIN, start_process
from bench.turnstile import HeldApp, Turnstile
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.errors import ServerError
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.mismatch import FIRST_LOOKS

TARGET = at_least(3.0)
_WARM_UP = FIRST_LOOKS + 1
"""Our first steps also compare each adapter with its suspects; later ones only for large gaps."""
_END_SECONDS = 30.0
"""Time for our trainer to end by itself."""
_SHOWN_LOG_CHARS = 300


async def against_trl(bench: Bench) -> list[Row]:
    """R13: seconds per learned token of TRL's step over ours.

    A step lasts from one request for games to the next.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with _our_trainer(bench, folder) as (step, learned), AsyncExitStack() as stack:
            # Not on the event loop, which serves our trainer meanwhile.
            team = trl_team(bench.settings, bench.config, folder)
            trl_step = await asyncio.to_thread(stack.enter_context, team)

            async def ours() -> Measure:
                num_steps = len(learned())
                with Stopwatch(children=True) as watch:
                    await asyncio.to_thread(step)
                return watch.measure(tokens_of_step(learned(), num_steps))

            async def trl() -> Measure:
                with Stopwatch(children=True) as watch:
                    tokens = await asyncio.to_thread(trl_step)
                return watch.measure(tokens)

            pairs = await measure_pairs(trl, ours, pairs=bench.pairs, warm_up=_WARM_UP)
    ratios, cpu = ratios_of(pairs, of_time=True)
    games = bench.settings.tasks_per_step * bench.settings.num_generations
    return [
        Row(
            id="R13",
            name="a training step, TRL's GRPOTrainer ÷ ours",
            arms=("TRL 0.29, rollout_func and transformers' generation", "server and trainer"),
            ratios=ratios,
            cpu_ratios=cpu,
            target=TARGET,
            how=f"seconds per sampled token of whole steps of {games} games, including learning; "
            "the trainers alternate, each held at its next request for games while the other one "
            f"runs; {_WARM_UP} warm-up steps of each are discarded; ours updates an adapter per "
            "player, TRL one adapter for all, with one reward per game and no per-turn credit; "
            "what others said is in neither loss",
            details={
                "seconds": [[pair.first.seconds, pair.second.seconds] for pair in pairs],
                "tokens": [[pair.first.amount, pair.second.amount] for pair in pairs],
            },
        )
    ]


@contextlib.asynccontextmanager
async def _our_trainer(
    bench: Bench, folder: Path
) -> AsyncIterator[tuple[Callable[[], None], Callable[[], list[int]]]]:
    """Start the real trainer on the engine's app.

    Yields:
        A function that makes one step, and a function that reads the tokens of its steps.
    """
    turnstile = Turnstile()
    engine = bench.needed_engine
    # The server works for one trainer at a time.
    await asyncio.to_thread(engine.client.release)
    async with serving(HeldApp(engine.app, turnstile)) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        environ = {
            "VLLM_SERVER_HOST": host,
            "VLLM_SERVER_PORT": port,
            "OUTPUT_DIR": str(folder / "run"),
            "MODEL": bench.settings.model,
            "MAX_STEPS": "100000",
            "SAVE_STEPS": "100000",
            "REPORT_TO": "none",
        }
        log = folder / "train.log"
        metrics = folder / "run" / "metrics.jsonl"
        trainer = await asyncio.to_thread(start_process, TRAIN, environ, log)

        def check_running() -> None:
            if trainer.poll() is not None:
                text = log.read_text(encoding="utf-8", errors="replace")
                raise ServerError(
                    f"the trainer ended with {trainer.returncode}: {text[-_SHOWN_LOG_CHARS:]}"
                )

        def step() -> None:
            turnstile.step(check_running)

        def learned() -> list[int]:
            return learned_tokens(metrics)

        try:
            await asyncio.to_thread(turnstile.await_arrival, check_running)
            yield step, learned
        finally:
            trainer.terminate()
            try:
                await asyncio.to_thread(trainer.wait, _END_SECONDS)
            except subprocess.TimeoutExpired:
                trainer.kill()
            turnstile.close()
    engine.version = 0
    await engine.prepare()


def learned_tokens(metrics: Path) -> list[int]:
    """Return the sampled tokens of each of our steps; empty before the first one has ended."""
    if not metrics.exists():
        return []
    lines = metrics.read_text(encoding="utf-8").splitlines()
    return [int(json.loads(line)["reply_tokens"]) for line in lines]


def tokens_of_step(tokens: list[int], num_before: int) -> int:
    """Return the sampled tokens of the step that was measured.

    Args:
        tokens: Tokens of all steps that have ended, see `learned_tokens`.
        num_before: Number of steps that had ended before it.

    Raises:
        ServerError: There was not exactly one step between two requests for games.
    """
    if len(tokens) != num_before + 1:
        raise ServerError(
            f"{len(tokens) - num_before} steps ended between two requests for games, so no step "
            "can be timed; unset HANABI_OVERLAP, HANABI_EVAL_STEPS and HANABI_RESAMPLE_FLAT."
        )
    return tokens[-1]


@contextlib.contextmanager
def trl_team(settings: Settings, config: EnvConfig, folder: Path) -> Iterator[Callable[[], int]]:
    """Start TRL's trainer, held before its first step.

    It runs in a separate process, because importing ms-swift replaces TRL's class.

    Args:
        settings: The run's settings.
        config: The board.
        folder: Folder for logs and outputs.

    Yields:
        A function that makes one step and returns its tokens.
    """
    from hanabi_grpo.runs.fingerprint import resolve_model

    import_path = str(Path(__file__).parents[1])
    if os.environ.get("PYTHONPATH"):
        import_path += os.pathsep + os.environ["PYTHONPATH"]
    order = {
        "settings": settings.model_dump(mode="json"),
        "config": config.model_dump(mode="json"),
        "model": str(resolve_model(settings.model)),
        "out": str(folder / "trl"),
    }
    with (folder / "trl.log").open("w+", encoding="utf-8", errors="replace") as log:
        trainer = subprocess.Popen(
            [sys.executable, "-m", "bench.trl_games"],
            env={**os.environ, "PYTHONPATH": import_path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        requests = trainer.stdin
        answers = trainer.stdout
        assert requests is not None
        assert answers is not None

        def step(line: str = "") -> int:
            requests.write(f"{line}\n")
            requests.flush()
            answer = answers.readline()
            if answer:
                return int(answer)
            log.seek(0)
            text = log.read()
            raise ServerError(
                f"TRL's trainer ended with {trainer.wait()}: {text[-_SHOWN_LOG_CHARS:]}"
            )

        try:
            step(json.dumps(order))
            yield step
        finally:
            trainer.kill()
            trainer.communicate()
