#!/usr/bin/env bash
# Full Hanabi, two to five players, on two CPU cores: imitate a bot on single turns, then continue with GRPO and critics.
#
#   PLAYERS=3 bash tools/recipes/full_laptop.sh     # run it repeatedly: each call is one session and continues the last one
#
#   PLAYERS          2 to 5 (2)
#   RECIPE_SEED      seed of the model, adapters, deals and sampling (0)
#   RECIPE_MINUTES   minutes per session (110); unfinished work is kept
#   RECIPE_TEACHER   a bot (with two players save-bot-aloud, with more plain-hat-bot-aloud, whose thoughts are learned, too)
#   RECIPE_GAMES     games of the teacher, about 65 turns each with two players, and 48 to 55 with more (24000 of save-bot-aloud,
#                    14000 of another bot that thinks aloud, 36000 of one that does not)
#   RECIPE_PASSES    passes over the teacher's turns (1)
#   RECIPE_BATCH     turns of a step of the imitation (128)
#   RECIPE_STEPS     steps of 64 games after the imitation, 23 s each with two players (60; 0 after a bot that thinks aloud)
#   RECIPE_RUN       name of the training run, so that several can start from one imitation, e.g. with HANABI_ADVANTAGE=turn (run)
#   RECIPE_DEALS     deals of the final evaluations (2000), from the suite test, which was not used to choose anything
#
# A message contains the whole position and what follows from it (HANABI_MEMORY=turn), and a card with all that is known of it
# is one word (HANABI_DEDUCTIONS=joined, and for a bot that thinks aloud recalled), so that each turn can be learned separately.
# One network for all seats learns from the teacher: 0.9 M parameters plus the embeddings of 33,000 words (10,000 with recalled).
# Then each player trains an adapter. For a hat bot with four and five players, it starts from the imitation with three, which
# is made first. With HANABI_DEDUCTIONS=counted there are three words per card, and the model has 0.7 M parameters. Any
# HANABI_*, LEARNING_RATE or LR_SCHEDULER_TYPE in the shell overrides the recipe's own value.
# The run is outputs/full-SEED-recalled/RUN (-joined for a bot that does not think aloud; full-4p-SEED-recalled with four players).
# docs/results-appendix.md has the results.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
SECONDS=0
source tools/launch.sh
source tools/recipe.sh
name=full_laptop
players=${PLAYERS:-${HANABI_PLAYERS:-2}}
case $players in
2) prefix=outputs/full ;;
[345]) prefix=outputs/full-${players}p ;;
*)
    echo "$name: PLAYERS='$players': Hanabi needs 2 to 5 players." >&2
    exit 2
    ;;
esac
turns_of=([2]=65 [3]=55 [4]=52 [5]=48) # turns of a game, by the number of players
whole_numbers RECIPE_SEED RECIPE_MINUTES RECIPE_GAMES RECIPE_PASSES RECIPE_BATCH RECIPE_STEPS RECIPE_DEALS
teacher=${RECIPE_TEACHER:-}
if [ -z "$teacher" ]; then
    teacher=save-bot-aloud
    if [ "$players" -gt 2 ]; then teacher=plain-hat-bot-aloud; fi
fi
export SEED=${RECIPE_SEED:-0} HANABI_PRESET=full HANABI_PLAYERS=$players HANABI_MEMORY=turn
default_games=36000 default_steps=60 noise=0.1
if [[ $teacher == *-aloud ]]; then
    # A wrong hint misleads its readers, in a hat code everybody, so few moves are random.
    default_games=14000 default_steps=0 noise=0.06
    if [ "$teacher" = save-bot-aloud ]; then default_games=24000; fi
    thoughts_in_words
fi
export HANABI_DEDUCTIONS=${HANABI_DEDUCTIONS:-joined}
games=${RECIPE_GAMES:-$default_games} steps=${RECIPE_STEPS:-$default_steps} deals=${RECIPE_DEALS:-2000}
minutes=${RECIPE_MINUTES:-110}
folder=$prefix-$SEED
if [ "$HANABI_DEDUCTIONS" != counted ]; then folder+=-$HANABI_DEDUCTIONS; fi
training=$folder/${RECIPE_RUN:-run}
mkdir -p "$folder"
unset DATASET
source tools/session.sh
start_session

# for_now LOG COMMAND...: run until the session ends; then the command is asked to stop, and it keeps its progress.
for_now() {
    local log=$1 status=0
    shift
    local left=$((minutes * 60 - SECONDS))
    if [ $left -gt 60 ]; then
        run "$log" timeout --signal TERM --kill-after 120 "$left" "$@" || status=$?
        if [ $status -eq 0 ]; then return; fi
        if [ $SECONDS -lt $((minutes * 60)) ]; then exit $status; fi
    fi
    say "the $minutes minutes are over; run the same command again to continue"
    finish 0
}

# imitate PLAYERS OUT [START]: OUT/warm/model imitates the teacher; it starts from random weights, or from those of the model START
imitate() {
    local out=$2 turns=$((games * turns_of[$1]))
    mkdir -p "$out"
    untaught "$1" "$out/untaught" "${3:-}"
    local lesson="$teacher, $games games" passes=${RECIPE_PASSES:-1} batch=${RECIPE_BATCH:-128}
    if [ "$passes" != 1 ]; then lesson+=", $passes passes"; fi
    if [ "$batch" != 128 ]; then lesson+=", batches of $batch"; fi
    if [ -s "$out/taught" ] && [ "$(cat "$out/taught")" != "$lesson" ]; then
        echo "$name: $out/warm was taught by $(cat "$out/taught"), not by $lesson; move $out away, or set RECIPE_TEACHER," \
            "RECIPE_GAMES, RECIPE_PASSES and RECIPE_BATCH to its values." >&2
        exit 2
    fi
    if [ ! -e "$out/taught" ]; then
        say "imitation of $teacher: $games games of $1 players, log $out/warm.log"
        for_now "$out/warm.log" hanabi-grpo warm-start "$teacher" --full --out "$out/warm" --tasks "$games" --noise $noise --resume \
            --batch "$batch" --steps $((passes * turns / batch)) --learning-rate 3e-3
        echo "$lesson" >"$out/taught"
    fi
}

start=
if [[ $teacher == *hat-bot-aloud && $players -gt 3 ]]; then
    # A network that reads the hands of three players learns more of the code than one that begins with those of four or five.
    three=outputs/full-3p${folder#"$prefix"}
    imitate 3 "$three"
    start=$three/warm/model
fi
imitate "$players" "$folder" "$start"
export MODEL=$folder/warm/model
default_env HANABI_ADVANTAGE ippo
# A critic compares turns of different deals, so each deal is played as few times as possible.
default_env HANABI_TASKS_PER_STEP 32
default_env NUM_GENERATIONS 2
default_env LEARNING_RATE 2e-3
default_env LR_SCHEDULER_TYPE cosine
default_env HANABI_ENTROPY_BONUS 0.01
default_env HANABI_EVAL_STEPS 20
default_env HANABI_EVAL_TASKS 200
default_env SAVE_STEPS 10
say "rollout server on port $PORT, log $folder/server.log"
start_server
evaluate_once "$folder/start.json" base --label start
evaluate_once "$folder/start-greedy.json" base --label start --temperature 0
if [ "$steps" -gt 0 ]; then
    say "training: $steps steps, log $training.log"
    OUTPUT_DIR=$training MAX_STEPS=$steps REPORT_TO=none WANDB_MODE=disabled RESUME=latest \
        for_now "$training.log" bash tools/train/train_grpo_msswift.sh
    say "after training: $deals test deals, sampled at temperature 1 and greedy, compared with the teacher"
    # By its folder: in a session after the last step, no trainer has pushed its players to the server.
    evaluate "$training/sampled.json" "$training"
    evaluate "$training/greedy.json" "$training" --temperature 0
fi
bots=("$teacher")
if [ "$teacher" != iggi ]; then bots+=(iggi); fi
evaluate_once "$folder/bots.json" "${bots[@]}"
finish 0
