#!/usr/bin/env bash
# Every fault drill in its long form (two hours on 2 cores, one of them among guests), with a table at the end. Options go to pytest.
#
#   bash tools/drills.sh                     # all
#   bash tools/drills.sh -k "not kill"       # some
#   DRILLS=short bash tools/drills.sh        # the form that tools/test.sh --rest runs
#
#   DRILLS_OUT   file for the table as JSON (outputs/drills.json)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/launch.sh
mkdir -p outputs
export DRILLS=${DRILLS:-long} DRILLS_OUT=${DRILLS_OUT:-outputs/drills.json}
exec pytest tests/faults -m rest "$@"
