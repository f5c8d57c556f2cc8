"""The table of planted faults of docs/trust.md, from real servers and trainers.

    python tests/faults/planted_table.py FOLDER [float32-0.0015 …]      runs, and prints the table
    python tests/faults/planted_table.py FOLDER --show                  prints what is there

One run for each number format and learning rate on a server that reports the policy's own logprobs
(vLLM's raw_logprobs), and one on a server that reports those of what is sampled. A run takes fault
after fault (`planted_trainer`); its lines of JSON stay in FOLDER.
"""

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from planted_server import ADAPTER_FAULTS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from conftest_e2e import clean_environment, stop  # noqa: E402
from hanabi_grpo.rollout.dataset_rows import dataset_row  # noqa: E402
from hanabi_grpo.rollout.datasets import write_dataset  # noqa: E402
from hanabi_grpo.settings.defaults import TINY_MODEL  # noqa: E402
from ports import free_port  # noqa: E402

TRUTHFUL = "raw_logprobs"
AS_SAMPLED = "processed_logprobs"
DESCRIPTIONS = {
    "swapped": "the two players' adapters swapped",
    "base": "no adapter attached",
    **ADAPTER_FAULTS,
    "temperature_0.7": "temperature .7",
    "temperature_0.9": "temperature .9",
    "temperature_0.97": "temperature .97",
    "temperature_1.1": "temperature 1.1",
    "top_p_0.95": "top-p .95",
    "greedy": "greedy replies",
    "fixed_seed": "one seed for every request",
}
PLANS = {
    TRUTHFUL: list(DESCRIPTIONS),
    AS_SAMPLED: ["temperature_0.7", "temperature_0.9", "temperature_0.97", "top_p_0.95"],
}
DTYPES = ("float32", "bfloat16")
RATES = ("0.0015", "1e-6")
VARIABLES = {
    "HANABI_TASKS_PER_STEP": "4",
    "NUM_GENERATIONS": "16",
    "LORA_RANK": "8",
    "LORA_ALPHA": "16",
    "LR_SCHEDULER_TYPE": "constant",
    "MAX_STEPS": "1000",
    "SAVE_STEPS": "1000",
    "HANABI_EPISODES_EVERY": "1000",
    "REPORT_TO": "none",
}
NAMES_OF_CHECKS = {
    "mismatch_rose": "gap",
    "mismatch_policy": "other policy",
    "mismatch_sampled": "surprise",
    "mismatch_repeated": "equal episodes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run."""

    dtype: str
    rate: str
    logprobs: str

    @property
    def name(self) -> str:
        return f"{self.dtype}-{self.rate}-{self.logprobs.removesuffix('_logprobs')}"


def run_server_cases(
    folder: Path, dtype: str, logprobs: str, rates: list[str], faults: list[str] | None = None
) -> None:
    """Start one server, and run every learning rate on it.

    Args:
        folder: For logs and results.
        dtype: HANABI_DTYPE.
        logprobs: Which logprobs the server reports.
        rates: Values of LEARNING_RATE.
        faults: What is planted, in this order; None: the whole plan.
    """
    fault_file = folder / f"fault-{dtype}-{logprobs}"
    fault_file.write_text("none")
    dataset = folder / "tasks.jsonl"
    if not dataset.exists():
        write_dataset(dataset, [dataset_row("laptop", players=None, suite="train", num_tasks=4000)])
    environment = {
        **clean_environment(),
        **VARIABLES,
        "MODEL": str(ROOT / TINY_MODEL),
        "HANABI_DTYPE": dtype,
        "PLANT_FILE": str(fault_file),
        "PLANT_LOGPROBS": logprobs,
        "DATASET": str(dataset),
    }
    port = free_port()
    log = folder / f"server-{dtype}-{logprobs}.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/faults/planted_server.py")],
            env={**environment, "PORT": str(port), "HANABI_DIE_WITH_PARENT": "true"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until_healthy(server, port, log)
        for rate in rates:
            case = Case(dtype=dtype, rate=rate, logprobs=logprobs)
            fault_file.write_text("none")
            plan = folder / f"{case.name}.plan"
            plan.write_text("\n".join(faults or PLANS[logprobs]))
            variables = {
                "VLLM_SERVER_PORT": str(port),
                "LEARNING_RATE": rate,
                "OUTPUT_DIR": str(folder / f"run-{case.name}-{time.time():.0f}"),
                "PLANT_PLAN": str(plan),
                "PLANT_RESULTS": str(folder / f"{case.name}.jsonl"),
            }
            if dtype != "float32":
                variables["HANABI_PARITY_TOLERANCE"] = "0.05"
            with (folder / f"trainer-{case.name}.log").open("ab") as output:
                trainer = subprocess.run(
                    [sys.executable, str(ROOT / "tests/faults/planted_trainer.py")],
                    env={**environment, **variables},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    check=False,
                )
            print(f"{case.name}: the trainer ended with {trainer.returncode}", flush=True)
    finally:
        stop(server, signal.SIGTERM)


def wait_until_healthy(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return when the server answers; ends this program where it does not start."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health/", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(1)
    sys.exit(f"no server:\n{log.read_text()[-3000:]}")


def lines_of(folder: Path, case: Case) -> list[dict[str, Any]]:
    path = folder / f"{case.name}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def verdict(said: dict[str, Any]) -> str:
    """Return one cell: which check stops, at which step of the fault."""
    if said["stop_at"] is None:
        if said["incident_at"] is not None:
            kinds = {NAMES_OF_CHECKS[kind] for _, kind, _ in said["incidents"]}
            return f"incident, {' and '.join(sorted(kinds))} ({said['incident_at']})"
        return f"unseen in {len(said['metrics'])}"
    kinds = []
    for step, kind, _ in said["incidents"]:
        if step == said["stop_at"] and NAMES_OF_CHECKS[kind] not in kinds:
            kinds.append(NAMES_OF_CHECKS[kind])
    return f"{' and '.join(kinds) or 'gap of all tokens'} ({said['stop_at']})"


def show(folder: Path) -> None:
    """Print the table in Markdown, and the sound steps."""
    columns = [(dtype, rate) for dtype in DTYPES for rate in RATES]
    heads = [f"{dtype}, {float(rate):g}" for dtype, rate in columns]
    print(f"| injected fault | {' | '.join(heads)} |\n|---|{'---|' * len(columns)}")
    for logprobs, faults in PLANS.items():
        for fault in faults:
            cells = []
            for dtype, rate in columns:
                case = Case(dtype=dtype, rate=rate, logprobs=logprobs)
                said = [line for line in lines_of(folder, case) if line["fault"] == fault]
                cells.append(verdict(said[-1]) if said else "not run")
            name = DESCRIPTIONS[fault]
            if logprobs == AS_SAMPLED:
                name += ", reported as sampled"
            print(f"| {name} | {' | '.join(cells)} |")
    for dtype, rate in columns:
        sound = 0
        alarms = []
        for logprobs in PLANS:
            for line in lines_of(folder, Case(dtype=dtype, rate=rate, logprobs=logprobs)):
                if line["fault"] == "none":
                    sound += "sound" in line
                    alarms += [line] if "sound" not in line else []
        print(f"{dtype}, {rate}: {sound} sound steps, {len(alarms)} alarms {alarms[:2]}")


if __name__ == "__main__":
    results = Path(sys.argv[1]).resolve()
    results.mkdir(parents=True, exist_ok=True)
    chosen = sys.argv[2:]
    if chosen != ["--show"]:
        for chosen_dtype in DTYPES:
            chosen_rates = [
                rate for rate in RATES if not chosen or f"{chosen_dtype}-{rate}" in chosen
            ]
            if not chosen_rates:
                continue
            for mode in PLANS:
                run_server_cases(results, chosen_dtype, mode, chosen_rates)
    show(results)
