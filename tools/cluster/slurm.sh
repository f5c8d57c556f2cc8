#!/usr/bin/env bash
#SBATCH --job-name=hanabi-grpo
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@120
# Slurm: the first machines of a job play, the others train. From the repository's root, in a file system that all share:
#
#   NUM_SERVERS=1 sbatch --nodes=3 tools/cluster/slurm.sh
#   OUTPUT_DIR=/shared/runs/first RESUME=latest sbatch tools/cluster/slurm.sh       # goes on after the time was up
#
# Options of sbatch win over the lines above; GPUS is for machines with another number than 8. NOT RUN.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?hand this to sbatch; without Slurm there is tools/cluster/run.sh}"
mapfile -t machines < <(scontrol show hostnames "${SLURM_JOB_NODELIST:?}")
count=${NUM_SERVERS:-1}
if [ "$count" -ge "${#machines[@]}" ]; then
    echo "slurm: NUM_SERVERS=$count of ${#machines[@]} machines leaves none to train; ask for more with --nodes." >&2
    exit 2
fi
export SERVERS="${machines[*]:0:count}" TRAINERS="${machines[*]:count}"
# In its own process bash would wait for the step before it heeds the signal.
bash tools/cluster/run.sh &
trap 'kill -TERM $!' TERM INT
wait $! || wait $!
