#!/usr/bin/env bash
# Rebuild the sample pages in docs/samples/ and the pictures of docs/pages.md from recorded data.
#
#   bash tools/samples.sh outputs/my-run     # a finished run; scripted players play the other pages' games
#   bash tools/samples.sh                    # everything except the pages and pictures of a run
#
# Takes two minutes; needs no engine and no training. The pictures need Chromium: apt-get install chromium chromium-driver
set -euo pipefail
run=${1:+$(realpath -- "$1")}
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/launch.sh

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
mkdir -p docs/samples docs/pages
hanabi-grpo collect focus-bot --preset full --tasks 6 --out "$made/focus-bot"
hanabi-grpo view "$made/focus-bot" --html docs/samples/replay.html
hanabi-grpo view tests/data/version-0.2/run --html docs/samples/replay-trained.html
hanabi-grpo cross-play hint-bot iggi piers outer focus-bot --preset full --tasks 200 --out "$made/cross-play"
cp "$made/cross-play/cross_play.html" docs/samples/cross-play.html
python tools/browser.py "$made/cross-play/heat_map.png" docs/pages/heat-map.png

picture() { python tools/browser.py "docs/samples/$1.html" "docs/pages/$2.png" "${@:3}"; }
phone=(--width 390 --height 844)
picture replay replay --at '#game=1&turn=20'
picture replay replay-phone --at '#game=1&turn=20' "${phone[@]}" --dark
picture replay-trained replay-trained --height 520 --at '#game=1&turn=1'
PYTHONPATH=tests:tools python tests/person_page_picture.py docs/pages/play.png
picture cross-play cross-play --height 860
picture cross-play cross-play-phone "${phone[@]}" --dark
if [ -n "$run" ]; then
    hanabi-grpo report "$run" --html docs/samples/run.html --png "$made/charts"
    for chart in score alarms; do python tools/browser.py "$made/charts/$chart.png" "docs/pages/$chart.png"; done
    picture run run --height 840
    picture run run-dark --height 840 --dark
    picture run run-phone "${phone[@]}"
    for size in 80x24 120x45; do
        COLUMNS=${size%x*} LINES=${size#*x} python tools/browser.py "$run" "docs/pages/watch-$size.png" --watch
    done
fi
ls -l docs/samples docs/pages
