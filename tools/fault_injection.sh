#!/usr/bin/env bash
# Run every fault in its long form (two hours on 2 cores, one of them with guests) and print a table. Options go to pytest.
#
#   bash tools/fault_injection.sh                     # all
#   bash tools/fault_injection.sh -k "not kill"       # some
#   FAULTS=short bash tools/fault_injection.sh        # the form that tools/test.sh --rest runs
#
#   FAULTS_OUT   file for the table as JSON (outputs/fault_injection.json)
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/launch.sh
mkdir -p outputs
export FAULTS=${FAULTS:-long} FAULTS_OUT=${FAULTS_OUT:-outputs/fault_injection.json}
exec pytest tests/faults -m rest "$@"
