# Sourced by scripts that start a rollout server of their own and run commands beside it (after tools/launch.sh).
#
#   name=demo folder=outputs/demo-...   what messages call the script, and where its logs go
#   start_session [PORT]                exports where the server is; sets the traps. Without a PORT each server takes a free one
#   start_server [OPTION...]            starts it in the background, log in $folder/server.log; says for how long it waits
#   stop_server                         ends it, so that another model can be served
#   run LOG COMMAND...                  runs a command beside it ("-": no log) and watches over both
#   say TEXT                            prints a heading with the seconds so far
#   finish STATUS                       prints time and memory, and exits
#
# Whatever way the script ends, server and command end with it.

server="" child="" peak=0 next_look=0 given_port=""

start_session() {
    given_port=${1:-}
    choose_port
    # Nobody else is to reach what is started here, and an address of .env would not be this one.
    export VLLM_SERVER_HOST=127.0.0.1 HANABI_HOST=127.0.0.1
    trap clean_up EXIT
    trap 'trap "" INT TERM HUP; exit 130' INT
    trap 'trap "" INT TERM HUP; exit 143' TERM HUP
}

# A free port does not stay free for the minutes that a warm start takes, so each server chooses its own.
choose_port() {
    PORT=${given_port:-$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
    export PORT VLLM_SERVER_PORT=$PORT
}

# Every process that descends from the given ones, children before grandchildren.
descendants() {
    local level=$* next all="" pid
    while [ -n "$level" ]; do
        next=""
        for pid in $level; do
            next+=" $(cat /proc/"$pid"/task/*/children 2>/dev/null || pgrep -P "$pid" || true)"
        done
        level=$(echo $next)
        all+=" $level"
    done
    echo $all
}

# Is this process neither gone nor a zombie? Starts none itself, as it is asked every second.
is_running() {
    local stat
    kill -0 "$1" 2>/dev/null && read -r stat 2>/dev/null <"/proc/$1/stat" && [[ ${stat##*) } != Z* ]]
}

alive() {
    local pid
    for pid in "$@"; do
        if is_running "$pid"; then echo "$pid"; fi
    done
}

# end_family PID...: they and all that they started, politely first.
end_family() {
    local left waited=0
    left=$(echo "$@" $(descendants "$@"))
    if [ -n "$(alive $left)" ]; then
        kill -TERM $(alive "$@") 2>/dev/null || true
        while [ -n "$(alive $left)" ] && [ $waited -lt 200 ]; do
            sleep 0.1
            waited=$((waited + 1))
        done
        left=$(alive $left)
        if [ -n "$left" ]; then kill -KILL $left 2>/dev/null || true; fi
    fi
}

clean_up() {
    local status=$?
    # A second Ctrl-C must not cut this short: it would leave the engine running.
    trap '' INT TERM HUP
    trap - EXIT
    # Of the shell's jobs, since a signal may come before `child` or `server` is set.
    end_family $(jobs -p)
    if [ "$status" -ne 0 ]; then
        # MODEL is not set here where .env or a profile gives it.
        echo "$name: stopped with exit code $status after $SECONDS s; kept: $folder (logs, what was trained)${MODEL:+ and $MODEL}" >&2
    fi
    exit "$status"
}

# Kilobytes that the script's processes hold together now, shared pages counted once where the system tells. The system
# walks through all of their pages at every read: a tenth of a second, so not done every second.
memory() {
    local pid total=0 size
    for pid in $server $child $(descendants $server $child); do
        size=$(awk '/^Pss:/ {print $2}' /proc/"$pid"/smaps_rollup 2>/dev/null || true)
        [ -n "$size" ] || size=$(ps -o rss= -p "$pid" 2>/dev/null || echo 0)
        total=$((total + ${size:-0}))
    done
    if [ $total -gt $peak ]; then peak=$total; fi
}

# run LOG COMMAND...: in the background, because bash handles a signal only between foreground commands.
run() {
    local log=$1
    shift
    if [ "$log" = - ]; then "$@" & else "$@" > >(tee "$log") 2>&1 & fi
    child=$!
    while is_running "$child"; do
        if [ "$SECONDS" -ge $next_look ]; then
            memory
            next_look=$((SECONDS + 5))
        fi
        if [ -n "$server" ] && ! is_running "$server"; then
            echo "$name: the rollout server died; the end of $folder/server.log:" >&2
            tail -n 25 "$folder/server.log" >&2
            exit 1
        fi
        sleep 1
    done
    local status=0
    wait "$child" || status=$?
    child=""
    return "$status"
}

say() { printf '\n== %s (%s s)\n' "$*" "$SECONDS"; }

# The commands' own wait; nobody is told to start what is started here.
WAIT_FOR_SERVER='
import sys
from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.settings import load_settings
from hanabi_grpo.client.waiting import wait_for_server
try:
    wait_for_server(load_settings().settings, print, server_command=None)
except HanabiGrpoError as error:
    sys.exit(f"error: {error}")
'

start_server() {
    choose_port
    HANABI_DIE_WITH_PARENT=true bash tools/rollout/rollout_hanabi_gym.sh "$@" >"$folder/server.log" 2>&1 &
    server=$!
    run - python -c "$WAIT_FOR_SERVER"
}

stop_server() {
    end_family $server
    server=""
}

finish() {
    printf '%d min %02d s, at most %d.%d GB of memory, everything in %s\n' \
        $((SECONDS / 60)) $((SECONDS % 60)) $((peak / 1000000)) $((peak / 100000 % 10)) "$folder"
    exit "$1"
}
