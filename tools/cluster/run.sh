#!/usr/bin/env bash
# Rollout servers on some machines and one trainer across others, by ssh, or by srun inside a Slurm job (slurm.sh).
#
#   SERVERS="gpu1 gpu2" TRAINERS="gpu3 gpu4" bash tools/cluster/run.sh
#
#   SERVERS, TRAINERS   machine names that all machines can reach; this checkout must be at the same path and set up on each
#   GPUS                GPUs per machine (8; 0 for machines without GPUs)
#   OUTPUT_DIR          run folder on a shared file system (outputs/cluster-DATE here); logs are next to it
#   HANABI_API_KEY      key of the servers (random)
#   CLUSTER_SHELL       a program called with MACHINE bash -c LINE, which runs LINE there (unset: srun in a job, else ssh)
#
# Put other settings into .env or a profile, which all machines read. A server that ends, or whose machine is gone, is
# restarted every RESTART_SECONDS (10), and the trainer waits for it (HANABI_SERVER_TIMEOUT). When the trainer ends or this
# script is stopped, all parts end. NOT RUN on GPUs or on two machines; tools/cluster/rehearse.sh simulates four on one.
set -euo pipefail
case "${1:-}" in
    -h | --help)
        sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
esac
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
read -ra servers <<<"${SERVERS:?set it to the machines that serve rollouts}"
read -ra trainers <<<"${TRAINERS:?set it to the machines that train}"
gpus=${GPUS:-8} port=${PORT:-8000}
run=${OUTPUT_DIR:-$PWD/outputs/cluster-$(date +%Y%m%d-%H%M%S)}
key=${HANABI_API_KEY:-$(openssl rand -hex 16)}
mkdir -p "$run-logs"
visible=$(seq -s, 0 $((gpus - 1)))

on() { # on MACHINE LINE
    if [ -n "${CLUSTER_SHELL:-}" ]; then
        "$CLUSTER_SHELL" "$1" bash -c "$2"
    elif [ -n "${SLURM_JOB_ID:-}" ]; then
        srun --overlap --nodes=1 --ntasks=1 --nodelist="$1" bash -c "$2"
    else
        # A machine without power sends nothing: without these questions, ssh would wait for hours.
        ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=15 -o ServerAliveCountMax=3 "$1" "$2"
    fi
}

# part LOG MACHINE NAME=VALUE... COMMAND...: runs in the background. The key is sent through the pipe, which other users cannot
# read. When the pipe closes, which also happens when this script is gone, the part is told to end.
part() {
    local log=$1 machine=$2 line
    shift 2
    line="cd $(printf %q "$PWD") && read -r HANABI_API_KEY && export HANABI_API_KEY || exit
        exec 3<&0; env $(printf '%q ' "$@") </dev/null & part=\$!
        (cat <&3; kill -TERM \$part) >/dev/null 2>&1 & watch=\$!
        wait \$part; code=\$?; kill \$watch 2>/dev/null; exit \$code"
    run_part "$machine" "$line" >"$run-logs/$log" 2>&1 &
}

run_part() { # run_part MACHINE LINE, repeatedly if the part is a server
    local code
    while true; do
        code=0
        on "$1" "$2" < <(echo "$key" && exec tail -f /dev/null --pid=$$) || code=$?
        [ -n "${restarts:-}" ] || return "$code"
        echo "cluster: the server on $1 ended with exit code $code; restarting it in ${RESTART_SECONDS:-10} s"
        sleep "${RESTART_SECONDS:-10}"
    done
}

trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
restarts=yes
for machine in "${servers[@]}"; do
    settings=(HANABI_HOST=0.0.0.0 PORT="$port")
    [ "$gpus" = 0 ] || settings+=(CUDA_VISIBLE_DEVICES_SERVER="$visible" VLLM_DATA_PARALLEL_SIZE="$gpus")
    part "server-$machine.log" "$machine" "${settings[@]}" bash tools/rollout/rollout_hanabi_gym.sh
done
restarts='' pids=()
for rank in "${!trainers[@]}"; do
    settings=(NNODES="${#trainers[@]}" NODE_RANK="$rank" MASTER_ADDR="${trainers[0]}" OUTPUT_DIR="$run")
    settings+=(VLLM_SERVER_HOST="$(IFS=,; echo "${servers[*]}")" VLLM_SERVER_PORT="$port" DEEPSPEED="${DEEPSPEED:-zero2}")
    [ "$gpus" = 0 ] || settings+=(CUDA_VISIBLE_DEVICES_TRAINER="$visible" NPROC_PER_NODE="$gpus")
    part "trainer-$rank.log" "${trainers[rank]}" "${settings[@]}" bash tools/train/train_grpo_msswift.sh
    pids+=($!)
done
echo "cluster: ${#servers[@]} servers, ${#trainers[@]} trainer machines; run $run, logs $run-logs"
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
echo "cluster: the trainer ended with exit code $status"
exit "$status"
