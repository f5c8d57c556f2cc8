#!/usr/bin/env bash
# Ratios that say how far this software is from what its parts could do, in one table (docs/benchmarks.md).
#
#   bash tools/bench.sh                  # every ratio, about 10 minutes on 2 cores
#   bash tools/bench.sh --quick          # fewer pairs of runs, and no R14
#   bash tools/bench.sh --only R3        # one of them; may be given more than once
#   bash tools/bench.sh --no-engine      # only what needs no vLLM
#   BENCH_MODEL=Qwen/Qwen3-4B bash tools/bench.sh
#
#   BENCH_MODEL   base model (unset: MODEL's own meaning; the CPU default is shipped)
#   BENCH_CORES   cores for everything, as taskset writes them, e.g. 0-3 (unset: all)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/launch.sh

if [ -n "${BENCH_MODEL:-}" ]; then export MODEL=$BENCH_MODEL; fi
if ! on_gpu && ! given MODEL; then
    hanabi-grpo tiny-model
fi
pin=()
if [ -n "${BENCH_CORES:-}" ]; then pin=(taskset --cpu-list "$BENCH_CORES"); fi
# The same number of threads in both arms, whatever a library would choose; what waits does not spin.
cores=$(${pin[@]+"${pin[@]}"} nproc)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$cores} MKL_NUM_THREADS=${MKL_NUM_THREADS:-$cores}
export OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false
# One process and its children, which go with it on every way out.
exec ${pin[@]+"${pin[@]}"} python tools/bench "$@"
