#!/usr/bin/env bash
# Run run.sh on one machine without GPUs: four network namespaces on a bridge simulate four machines. Linux, no root needed.
#
#   bash tools/cluster/rehearse.sh                 # two servers, two trainer machines, the tiny model, MAX_STEPS=2
#   KILL_AT_STEP=2 bash tools/cluster/rehearse.sh  # after step 2, kill everything on the second server machine
#
# Each namespace has only its own address and ports; all share the file system, as a cluster's machines do.
set -euo pipefail
case "${1:-}" in
    -h | --help)
        sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
esac
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [ "${1:-}" != --inside ]; then
    exec unshare --user --map-root-user --net --mount --pid --fork --mount-proc --kill-child bash tools/cluster/rehearse.sh --inside
fi
mount -t tmpfs none /run
ip link add bridge type bridge
ip link set bridge up
for number in 1 2 3 4; do
    address=10.77.0.$number
    ip netns add $address
    ip link add v$number type veth peer name eth0 netns $address
    ip link set v$number master bridge up
    nsenter --net=/run/netns/$address sh -c "ip link set lo up; ip addr add $address/24 dev eth0; ip link set eth0 up"
done
printf '#!/bin/sh\nexec nsenter --net=/run/netns/"$@"\n' >/run/on
chmod +x /run/on
# By default, Gloo uses the address of the machine's host name, which no namespace has.
export CLUSTER_SHELL=/run/on GPUS=0 GLOO_SOCKET_IFNAME=eth0 MAX_STEPS=${MAX_STEPS:-2} REPORT_TO=none
export OUTPUT_DIR=${OUTPUT_DIR:-$PWD/outputs/cluster-$(date +%Y%m%d-%H%M%S)}
if [ -n "${KILL_AT_STEP:-}" ]; then
    (
        until [ "$(cat "$OUTPUT_DIR/metrics.jsonl" 2>/dev/null | wc -l)" -ge "$KILL_AT_STEP" ]; do sleep 0.5; done
        echo "rehearse: killing 10.77.0.2"
        ip netns pids 10.77.0.2 | xargs -r kill -KILL
    ) &
fi
SERVERS="10.77.0.1 10.77.0.2" TRAINERS="10.77.0.3 10.77.0.4" bash tools/cluster/run.sh
