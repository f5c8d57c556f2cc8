# Sourced by the laptop recipes (after tools/launch.sh): what they have in common.
#
#   recipe_settings STEPS DEALS   reads BOARD, RECIPE_START, RECIPE_SEED, RECIPE_STEPS, RECIPE_DEALS, RECIPE_BELIEFS and
#                                 RECIPE_TINY_STEPS into board, start, seed, steps, deals, beliefs and tiny_steps, chooses
#                                 warm_steps and warm_noise, and sets the training settings; the shell and .env override them
#   single_turns                  sets the settings for training on single turns, before recipe_settings; the shell and .env
#                                 override them
#   thoughts_in_words             sets the settings for imitation of a bot that thinks aloud; the shell overrides them
#   untaught PLAYERS OUT [START]  makes a model of Full Hanabi with random weights, or with those of the model START, and exports it
#                                 as MODEL (after tools/session.sh)
#   choose_arms ARM...            lets the chosen arms replace the list `order`, if any are given; exits if one is not in it
#   must_be_new FOLDER            exits if the folder of an earlier run exists
#   check_run [--only] RUN NAME=VALUE...  exits if a finished run has other settings than these, or than those of the shell, .env
#                                 and the profile (with --only, these alone are compared); a * in a value stands for any text
#   evaluate FILE ARGUMENT...     evaluates on `deals` deals of the suite test and writes FILE (after tools/session.sh)
#   evaluate_once FILE ARGUMENT...  the same, unless FILE exists: for a model that later calls of the recipe do not change
#   is_taught FOLDER              whether the warm start in FOLDER has made all its steps
#   warm_start [SEED]             creates the model that training starts from, or continues it if it was interrupted (after
#                                 tools/session.sh); SEED is that of the model and of the games it imitates (the run's seed)

recipe_settings() {
    board=${BOARD:-laptop} seed=${RECIPE_SEED:-0} steps=${RECIPE_STEPS:-$1} deals=${RECIPE_DEALS:-$2}
    start=${RECIPE_START:-} beliefs=${RECIPE_BELIEFS:-0} tiny_steps=${RECIPE_TINY_STEPS:-}
    whole_numbers RECIPE_SEED RECIPE_STEPS RECIPE_DEALS RECIPE_TINY_STEPS
    case $board in
    laptop | marshal-mini | marshal-simple | marshal-full) ;;
    *)
        echo "$name: BOARD='$board': must be laptop, marshal-mini, marshal-simple or marshal-full." >&2
        exit 2
        ;;
    esac
    export SEED=$seed HANABI_PRESET=$board
    # With one life, a failed play ends the game: a stronger start, and smaller steps of more games.
    warm_steps=400 warm_noise=0.1
    if [ "$board" = laptop ]; then
        start=${start:-iggi}
        default_env LEARNING_RATE 2e-3
        default_env HANABI_TASKS_PER_STEP 24
    fi
    start=${start:-hint-bot}
    case $start in iggi | save-bot) warm_steps=1500 warm_noise=0.05 ;; esac
    default_env LEARNING_RATE 4e-3
    default_env LR_SCHEDULER_TYPE cosine
    # Without this much exploration, both boards end at the first convention that they find.
    default_env HANABI_ENTROPY_BONUS 0.1
    default_env HANABI_UPDATES_PER_STEP 2
}

single_turns() {
    # A message contains the position and what follows from it, so that each turn can be learned separately.
    default_env HANABI_MEMORY turn
    default_env HANABI_DEDUCTIONS counted
    default_env LEARNING_RATE 2e-3
    default_env HANABI_TASKS_PER_STEP 24
    default_env NUM_GENERATIONS 8
    # Without exploration, both small boards end at the first convention that they find; a constant bonus fades or takes over.
    # Who chooses a bonus, 0 for example, chooses its target as well.
    given HANABI_ENTROPY_BONUS || default_env HANABI_ENTROPY_TARGET 0.2
    default_env HANABI_ENTROPY_BONUS 0.4
}

thoughts_in_words() {
    # Thoughts name slots, and the hints of a hat code are about the hands of their time.
    export HANABI_DEDUCTIONS=${HANABI_DEDUCTIONS:-recalled}
    # A reply with its thought has up to 43 words with five players.
    default_env MAX_COMPLETION_LENGTH 48
}

untaught() {
    local weights=()
    if [ -n "${3:-}" ]; then weights=(--start "$3"); fi
    export HANABI_PLAYERS=$1 MODEL=$2
    run - hanabi-grpo tiny-model --preset full --players "$1" --games 2 --steps 1 --out "$2" "${weights[@]}"
}

choose_arms() {
    local arm
    for arm in "$@"; do
        if ! printf '%s\n' "${order[@]}" | grep -qxF -e "$arm"; then
            echo "$name: '$arm': must be one of ${order[*]}." >&2
            exit 2
        fi
    done
    if [ $# -gt 0 ]; then order=("$@"); fi
}

must_be_new() {
    if [ -e "$1" ]; then
        echo "$name: $1 already exists; move or delete it to run this again." >&2
        exit 2
    fi
}

check_run() {
    local problem
    if ! problem=$(python tools/recipes/check_run.py "$@"); then
        echo "$name: $problem; move it away, or ask for the same settings." >&2
        exit 2
    fi
}

evaluate() {
    local file=$1
    shift
    run - hanabi-grpo evaluate "$@" --suite test --tasks "$deals" --out "$file"
}

evaluate_once() {
    [ -e "$1" ] || evaluate "$@"
}

# A warm start saves its best model so far while it learns, so the model alone does not show that it has ended.
is_taught() {
    [ -f "$1/warm_start.json" ] && python - "$1/warm_start.json" <<'EOF'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    state = json.load(file)
sys.exit(any(step < state["key"]["steps"] for step in state["steps"].values()))
EOF
}

warm_start() {
    local level own=${1:-$seed} asked=""
    level=$(setting HANABI_DEDUCTIONS)
    level=${level:+-$level}
    if [ "$beliefs" != 0 ]; then asked=-beliefs-$beliefs; fi
    local tiny=outputs/tiny-$board$level$asked-seed-$own warm=outputs/warm-$start-$warm_steps-$board$level$asked-seed-$own
    export MODEL=$tiny
    if [ "$start" != tiny ] && is_taught "$warm"; then
        export MODEL=$warm/model
        return
    fi
    say "tiny model of $board, seed $own"
    SEED=$own run - hanabi-grpo tiny-model --preset "$board" --beliefs "$beliefs" ${tiny_steps:+--steps "$tiny_steps"} --out "$tiny"
    if [ "$start" != tiny ]; then
        # The random moves are learned too: a perfect imitation plays all games of a deal alike and could not improve.
        say "warm start: games of $start, share of random moves $warm_noise, log $folder/warm_start.log"
        SEED=$own run "$folder/warm_start.log" hanabi-grpo warm-start "$start" --preset "$board" --full --learn-noise \
            --steps "$warm_steps" --noise "$warm_noise" --beliefs "$beliefs" --learning-rate 3e-3 --out "$warm" --resume
        export MODEL=$warm/model
    fi
}
