#!/usr/bin/env bash
#SBATCH --job-name=hanabi-grpo
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@120
# Slurm: the first machines of a job serve rollouts, the others train. From the repository's root, on a shared file system:
#
#   NUM_SERVERS=1 sbatch --nodes=3 tools/cluster/slurm.sh
#   OUTPUT_DIR=/shared/runs/first RESUME=latest sbatch tools/cluster/slurm.sh       # continues after the time limit
#
# Options of sbatch override the lines above; set GPUS for machines with a number of GPUs other than 8. NOT RUN.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch; without Slurm, use tools/cluster/run.sh}"
mapfile -t machines < <(scontrol show hostnames "${SLURM_JOB_NODELIST:?}")
count=${NUM_SERVERS:-1}
if [ "$count" -ge "${#machines[@]}" ]; then
    echo "slurm: NUM_SERVERS=$count of ${#machines[@]} machines leaves none to train; request more with --nodes." >&2
    exit 2
fi
export SERVERS="${machines[*]:0:count}" TRAINERS="${machines[*]:count}"
# In the background: bash handles a signal only after a foreground command has ended.
bash tools/cluster/run.sh &
trap 'kill -TERM $!' TERM INT
wait $! || wait $!
