#!/usr/bin/env bash
# Lint, types and tests, in two parts. Options go to pytest: bash tools/test.sh -k settings
#
#   bash tools/test.sh           # before a change is sent: unit and conformance tests, one real server, one real training run
#   bash tools/test.sh --rest    # all others: servers and trainers of their own, faults, the package index
#
# Two processes: one begins with the tests of the server that tests share, the other with those that start processes of
# their own; they share the rest. One for all: bash tools/test.sh -n 0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/launch.sh

if [ "${1:-}" = --rest ]; then
    shift
    set -- -m rest "$@"
else
    ruff check
    ruff format --check
    mypy
fi
# Not through a pipe: its exit status is this script's.
# A test process that dies fails the run at once: xdist starts another, loses the rest of its file and waits for it for ever.
status=0
pytest -n 2 --max-worker-restart 0 --durations 25 --durations-min 20 "$@" || status=$?
printf 'tools/test.sh: %d min %d s\n' $((SECONDS / 60)) $((SECONDS % 60))
exit "$status"
