#!/usr/bin/env bash
# The whole loop on this machine, without a second terminal: server, evaluation, training, evaluation, report.
#
#   bash tools/demo.sh
#   DEMO_SEED=7 DEMO_STEPS=40 DEMO_DEALS=500 bash tools/demo.sh
#   DEMO_PLAIN=yes bash tools/demo.sh
#   DEMO_ENV=kuhn_poker bash tools/demo.sh
#   HANABI_COLORS=4 HANABI_RANKS=3 HANABI_PLAYERS=3 bash tools/demo.sh      # on a board of your own, for which it makes a model
#
#   DEMO_ENV     hanabi; a game of two against each other: kuhn_poker, leduc_poker, tic_tac_toe, connect_four-4x5;
#                one for a single player: frozen_lake, sokoban; a team that adds up: vote, debate, summary,
#                pioneer_observer, revise; with a tool: vote-calculator, debate-calculator; or one whose seats hold a part each: split_sum, split_sum-2, hat_line (docs/teams.md)
#   DEMO_PLAIN   any text: Hanabi with the defaults of a training, from the reward alone: no teacher, whole games as
#                conversations. Boards of your own are trained in this way too
#   DEMO_SEED    seed of the adapters, the deals and the sampling (unset: SEED's own default)
#   DEMO_MODEL_SEED  seed of the tiny model and its pretraining (0; in Hanabi unset: the shipped one)
#   DEMO_LOGIT_SCALE  --logit-scale of a tiny model that the demo makes (1; with a calculator 2)
#   DEMO_STEPS   steps of 128 games, or of 192 in Hanabi with its teacher and where each seat holds a part (72 in Hanabi, plain 60, 800 in Kuhn poker, 400 in Leduc, 300 in the
#                others, 150 in teams, 100 with a calculator, 80 where each seat holds a part)
#   DEMO_DEALS   held-out deals of each evaluation (1000)
#   DEMO_PORT    port of the rollout server (unset: a free one)
#   DEMO_OUT     new folder of everything (unset: outputs/demo-DATE-PID)
#   DEMO_RESUME  any text: continue the interrupted demo in DEMO_OUT from its last checkpoint, if it has one
#   DEMO_MIN_RISE, DEMO_MIN_SIGMA   least rise of the mean score; below it the demo exits with 1 (unset: none)
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."
SECONDS=0
source tools/launch.sh

name=demo
game=${DEMO_ENV:-hanabi}
if [ "$game" = tictactoe ]; then game=tic_tac_toe; fi
deals=${DEMO_DEALS:-1000}
logit_scale=${DEMO_LOGIT_SCALE:-1}
whole_numbers DEMO_SEED DEMO_MODEL_SEED DEMO_STEPS DEMO_DEALS DEMO_PORT
folder=${DEMO_OUT:-outputs/demo-$(date +%Y%m%d-%H%M%S)-$$}
if [ -e "$folder" ] && [ -z "${DEMO_RESUME:-}" ]; then
    echo "demo: DEMO_OUT='$folder' already exists; choose a new folder, or continue it with DEMO_RESUME=yes." >&2
    exit 2
fi
mkdir -p "$folder"

# Other settings keep their meaning here; a variable of these names in the shell would make it another demo.
if [ -n "${DEMO_SEED:-}" ]; then export SEED=$DEMO_SEED; fi
source tools/session.sh
# What the shell says of the game and of replies: commands that are typed later need the same.
typed=""
for variable in $(compgen -e HANABI_) LORA_RANK MAX_COMPLETION_LENGTH; do
    case $variable in
        HANABI_ENV | HANABI_PRESET | HANABI_HOST | *_KEY) ;;
        *) if [ -n "${!variable:-}" ]; then typed+="$variable=$(printf %q "${!variable}") "; fi ;;
    esac
done
case $game in
    hanabi)
        steps=60
        export HANABI_ENV=hanabi
        own_board="" shipped=data/tiny-model
        for variable in PRESET PLAYERS COLORS RANKS HAND_SIZE INFORMATION_TOKENS LIFE_TOKENS DEDUCTIONS; do
            if given "HANABI_$variable"; then own_board=yes; fi
        done
        if [ -z "$own_board${DEMO_PLAIN:-}" ]; then
            # Each message holds the whole position and the cards that are still possible, so that a turn can be learned
            # by itself. The moves of save-bot are labels whose weight falls to 0 within 12 steps; the reward does the rest.
            # The bonus keeps replies random enough to find more than its convention. hanabi-grpo demo has the same settings.
            steps=72 shipped=data/tiny-model-counted
            default_env HANABI_TEACHER save-bot
            default_env HANABI_TEACHER_STEPS 12
            default_env HANABI_TASKS_PER_STEP 24
            default_env NUM_GENERATIONS 8
            default_env HANABI_UPDATES_PER_STEP 2
            default_env HANABI_MINIBATCHES 2
            default_env HANABI_ADVANTAGE rloo
            # Who chooses a bonus, 0 for example, chooses its target as well.
            given HANABI_ENTROPY_BONUS || default_env HANABI_ENTROPY_TARGET 0.12
            default_env HANABI_ENTROPY_BONUS 0.4
            default_env LEARNING_RATE 4e-3
            default_env LR_SCHEDULER_TYPE linear
            # These belong to the game, so commands that are typed later need them as well.
            for default in HANABI_MEMORY=turn HANABI_DEDUCTIONS=counted; do
                if ! given "${default%%=*}"; then
                    export "${default?}"
                    typed+="$default "
                fi
            done
        fi
        if [ -n "$own_board${DEMO_MODEL_SEED:-}" ]; then
            makes_model=yes
            export MODEL=$folder/model
            unset DATASET
        else
            makes_model=""
            export MODEL=$shipped DATASET=data/hanabi.laptop.jsonl
        fi
        before=(base) after=(served) who="a noisy hint bot" rivals="hint-bot iggi save-bot" ;;
    kuhn_poker | leduc_poker | tic_tac_toe | connect_four-4x5)
        before=(base,random) after=(served,random) who="a noisy teacher" rivals=random
        case $game in
            kuhn_poker)
                steps=800
                default_env HANABI_EXPLOIT_EVERY 20 ;;
            leduc_poker)
                # More chips, and more that depends on the cards: larger groups and a larger bonus.
                steps=400
                default_env HANABI_EXPLOIT_EVERY 20
                default_env HANABI_ENTROPY_BONUS 0.3
                default_env NUM_GENERATIONS 8
                default_env HANABI_TASKS_PER_STEP 16 ;;
            *)
                # On a board most moves are worth nearly the same, and a large bonus would hide what they are worth.
                # Two beginners alone teach each other tricks that work on nobody else.
                steps=300
                default_env HANABI_ENTROPY_BONUS 0.02
                default_env HANABI_PARTNERS minimax,random
                default_env HANABI_PARTNER_SHARE 0.6 ;;
        esac
        # Many starts in few games each, since who wins depends on the start; advantages in points, which fade as players
        # become equal; a rate that falls, because the last players are to be the best ones.
        default_env NUM_GENERATIONS 4
        default_env HANABI_TASKS_PER_STEP 32
        default_env HANABI_ADVANTAGE_SCALE none
        # Every 20th step is kept: the average policy is that of the second half.
        default_env SAVE_STEPS 20
        default_env SAVE_TOTAL_LIMIT 100 ;;
    frozen_lake | sokoban)
        steps=300
        before=(base) after=(served) who="a noisy bfs" rivals="random bfs"
        default_env NUM_GENERATIONS 8
        default_env HANABI_TASKS_PER_STEP 16 ;;
    vote-calculator | debate-calculator)
        # Half of the pretrained turns call the calculator; that more of them pay is found by reward alone.
        # The scale lets a seat become sure of calling.
        steps=100 logit_scale=${DEMO_LOGIT_SCALE:-2}
        before=(base) after=(served) who="a noisy solver that calls a calculator in half of its turns" rivals="noisy solver"
        default_env NUM_GENERATIONS 8
        default_env HANABI_TASKS_PER_STEP 16
        default_env LEARNING_RATE 2e-3 ;;
    vote | debate | summary | pioneer_observer | revise)
        steps=150
        before=(base) after=(served) who="a noisy solver" rivals="noisy solver"
        if [ "$game" = pioneer_observer ]; then default_env HANABI_SWAP_EVERY 5; fi # as CORY's paper has it
        default_env NUM_GENERATIONS 8
        default_env HANABI_TASKS_PER_STEP 16 ;;
    split_sum | split_sum-2 | hat_line)
        # From words drawn at random: what they mean is found by reward alone. The bonus keeps the seats from settling on
        # the first code that is better than none.
        steps=80
        before=(base) after=(served) who="babble" rivals="babble random"
        default_env NUM_GENERATIONS 8
        default_env HANABI_TASKS_PER_STEP 24
        default_env LEARNING_RATE 2e-3
        default_env HANABI_ENTROPY_BONUS 0.1 ;;
    *)
        echo "demo: DEMO_ENV='$game': hanabi, kuhn_poker, leduc_poker, tic_tac_toe, connect_four-4x5, frozen_lake, sokoban," \
            "vote, debate, summary, pioneer_observer, revise, vote-calculator, debate-calculator, split_sum, split_sum-2 or hat_line." >&2
        exit 2 ;;
esac
steps=${DEMO_STEPS:-$steps}
# Before anything is started: what a Ctrl-C finds running ends with this script.
start_session "${DEMO_PORT:-}"
if [ "$game" != hanabi ]; then
    # A preset has its environment's name, or begins with it.
    export HANABI_ENV=${game%%-*} HANABI_PRESET=$game
    export MODEL=outputs/tiny-$game${HANABI_PLAYERS:+-$HANABI_PLAYERS-players}${DEMO_MODEL_SEED:+-seed-$DEMO_MODEL_SEED}
    default_env LEARNING_RATE 1e-3
    default_env LR_SCHEDULER_TYPE linear
    unset DATASET
    say "0 of 5: the tiny model of $game, made once: $MODEL"
    run - hanabi-grpo tiny-model --env "$HANABI_ENV" --preset "$game" --out "$MODEL" --seed "${DEMO_MODEL_SEED:-0}" \
        --logit-scale "$logit_scale"
elif [ -n "$makes_model" ]; then
    say "0 of 5: the tiny model of this board: $MODEL"
    run - hanabi-grpo tiny-model --out "$MODEL" --seed "${DEMO_MODEL_SEED:-0}" \
        --logit-scale "$logit_scale"
fi

# The players of a run that had ended before are on no server: they are read from its folder.
trained=served
if [ -e "$folder/train/checkpoint-$steps" ]; then trained=$folder/train; fi

# First, and alone: its three processes import vLLM at the same time.
say "1 of 5: waiting for the rollout server, which loads vLLM and $MODEL in half a minute to a minute; log $folder/server.log"
start_server

if [ ! -e "$folder/before.json" ]; then
    say "2 of 5: before: players pretrained on games of $who play $deals deals"
    run - hanabi-grpo evaluate "${before[@]}" --label before --tasks "$deals" --out "$folder/before.json"
fi

say "3 of 5: training, $steps steps, after the trainer's start of half a minute; log $folder/train.log"
if [ -n "${DEMO_RESUME:-}" ]; then export RESUME=latest; fi # without a checkpoint, it starts over
OUTPUT_DIR=$folder/train MAX_STEPS=$steps REPORT_TO=none WANDB_MODE=disabled \
    run "$folder/train.log" bash tools/train/train_grpo_msswift.sh

say "4 of 5: after: the trained players play the same deals"
run - hanabi-grpo evaluate "${after[@]/#served/$trained}" --label after --tasks "$deals" --out "$folder/after.json"
case $game in
    *_poker) run - hanabi-grpo exploit "$trained" base --average "$folder/train" --out "$folder/exploit.json" ;;
    vote | debate | summary | pioneer_observer | revise | split_sum* | hat_line)
        # One seat alone has no vote beside it.
        [ "${HANABI_PLAYERS:-}" = 1 ] ||
            run - hanabi-grpo teams "$HANABI_ENV=$trained" --tasks "$deals" --out "$folder/teams.json" ;;
    tic_tac_toe | connect_four-4x5) run - hanabi-grpo evaluate "$trained,minimax" minimax,random random --tasks 200 ;;
esac

say "5 of 5: what changed; scripted players for comparison"
status=0
run - hanabi-grpo report "$folder/train" --png "$folder/learning_curve.png" --markdown "$folder/report.md" \
    ${DEMO_MIN_RISE:+--min-rise "$DEMO_MIN_RISE"} ${DEMO_MIN_SIGMA:+--min-sigma "$DEMO_MIN_SIGMA"} || status=$?
if [ "$game" != hanabi ]; then typed="HANABI_ENV=$HANABI_ENV $typed"; fi
if [ -n "${HANABI_PRESET:-}" ]; then typed="HANABI_PRESET=$HANABI_PRESET $typed"; fi
run_folder=$(printf %q "$folder")
own="${typed}MODEL=$(printf %q "$MODEL")${DATASET:+ DATASET=$DATASET} .venv/bin/hanabi-grpo"
watch="  # Play a game with a trained player
  $own play $run_folder/train --own-server"
compare="  # Everybody with everybody: the trained players, the untrained ones, scripts
  $own cross-play trained=$run_folder/train untrained=base $rivals --tasks 200 --out $run_folder/cross --own-server"
case $game-${HANABI_PLAYERS:-} in
    frozen_lake-* | sokoban-* | revise-* | *-1)
        # Games for one player, beside whom nobody can play.
        watch="  # Watch the trained player
  $own collect $run_folder/train --tasks 4 --out $run_folder/watched --own-server
  .venv/bin/hanabi-grpo view $run_folder/watched"
        compare="  # Everybody on the same tasks: the trained player, the untrained one, scripts
  $own evaluate $run_folder/train base $rivals --tasks 200 --own-server" ;;
esac
cat <<END

What next? The commands with --own-server start a rollout server of their own, which takes a minute or two.

  # The run as one page for a browser: curves, tables, games to step through
  .venv/bin/hanabi-grpo report $run_folder/train --html $run_folder/report.html

$watch

$compare

END
finish "$status"
