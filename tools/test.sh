#!/usr/bin/env bash
# Lint, types and tests, in two parts. Options go to pytest: bash tools/test.sh -k settings
#
#   bash tools/test.sh           # before submitting a change: unit and conformance tests, one real server, one real training run
#   bash tools/test.sh --rest    # all others: tests with their own servers and trainers, faults, the package index
#   bash tools/test.sh --all     # both parts at once, minutes shorter than one after the other
#
# Two processes run the tests: one begins with the tests of the shared server, the other with those that start their own
# processes; they share the rest. For a single process: bash tools/test.sh -n 0
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/launch.sh

part=${1:-}
case $part in
    --rest)
        shift
        set -- -m rest "$@" ;;
    --all)
        shift
        # Instead of "not rest" in pyproject.toml.
        set -- -m "" "$@" ;;
esac
if [ "$part" != --rest ]; then
    ruff check
    ruff format --check
    mypy
fi
# Not through a pipe: pytest's exit status is this script's.
# A test process that dies fails the run at once: xdist would start another, lose the rest of its file and wait for it forever.
status=0
pytest -n 2 --max-worker-restart 0 --durations 25 --durations-min 20 "$@" || status=$?
printf 'tools/test.sh: %d min %d s\n' $((SECONDS / 60)) $((SECONDS % 60))
exit "$status"
