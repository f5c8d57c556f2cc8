"""`hanabi-grpo doctor`: everything that two terminals need, looked at before either is started.

Map:
check           `Check`, one finding with its remedy, and the way to make one
context         what checks look at: settings, environment, and the model and dataset that several of them share
environment     settings resolved as far as they go, each problem a finding; near-misses of names
software        Python, packages against the pins, the build of torch, the C compiler
gpus            GPUs, their driver, how the two terminals share them, their free memory
machine         folder, cores, open files, disk, memory-backed storage
weights         sizes read from safetensors headers
model           model folder, chat template, memory of both processes
games           dataset, arithmetic of a step, one random game
context_budget  tokens of the longest game against HANABI_MAX_MODEL_LEN
processes       who listens on a port, which rollout servers run (from /proc)
network         ports, proxies, leftovers of earlier servers
server          the running server against these settings
trackers        W&B and TensorBoard
starts          the run's folder; checkpoints to go on from, to start from and to play with
run             all of them, in order; one that raises does not stop the others
show            lines for the terminal, JSON for scripts
"""

from hanabi_grpo.commands.doctor.check import Check, Role
from hanabi_grpo.commands.doctor.environment import resolve_settings
from hanabi_grpo.commands.doctor.run import run_checks
from hanabi_grpo.commands.doctor.show import report_json, report_lines

__all__ = ["Check", "Role", "report_json", "report_lines", "resolve_settings", "run_checks"]
