# Sourced by scripts that start their own rollout server and run commands against it (after tools/launch.sh).
#
#   name=demo folder=outputs/demo-...   the script's name in messages, and the folder of its logs
#   start_session [PORT]                exports the server's address and sets the traps. Without PORT, each server takes a free one
#   start_server [OPTION...]            starts the server in the background, log in $folder/server.log, and waits for it
#   stop_server                         ends the server, so that another model can be served
#   run LOG COMMAND...                  runs a command ("-": no log) and monitors it and the server
#   say TEXT                            prints a heading with the elapsed seconds
#   finish STATUS                       prints time and memory, and exits
#
# However the script ends, server and command end with it.

server="" child="" peak=0 next_look=0 given_port=""

start_session() {
    given_port=${1:-}
    choose_port
    # The server is only for this script, and an address in .env would be a different one.
    export VLLM_SERVER_HOST=127.0.0.1 HANABI_HOST=127.0.0.1
    trap clean_up EXIT
    trap 'trap "" INT TERM HUP; exit 130' INT
    trap 'trap "" INT TERM HUP; exit 143' TERM HUP
}

# A free port may not stay free for the minutes that a warm start takes, so each server chooses its own.
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

# Whether a process is running and not a zombie. Starts no process itself, since it is called every second.
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

# end_family PID...: ends these processes and all their descendants, with SIGTERM first.
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
    # The shell's jobs are used, since a signal may come before `child` or `server` is set.
    end_family $(jobs -p)
    if [ "$status" -ne 0 ]; then
        # MODEL is not set here if .env or a profile sets it.
        echo "$name: stopped with exit code $status after $SECONDS s; kept: $folder (logs, trained adapters)${MODEL:+ and $MODEL}" >&2
    fi
    exit "$status"
}

# Current memory of all the script's processes in kilobytes, with shared pages counted once if the system reports them. Each
# read makes the system walk all their pages, which takes a tenth of a second, so it is not done every second.
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

# The commands' own wait, without the advice to start a server.
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
    local parent=$BASHPID # the server also ends if this shell is killed before the server asks the kernel for that
    _HANABI_GRPO_PARENT=$parent HANABI_DIE_WITH_PARENT=true bash tools/rollout/rollout_hanabi_gym.sh "$@" >"$folder/server.log" 2>&1 &
    server=$!
    run - python -c "$WAIT_FOR_SERVER"
}

stop_server() {
    end_family $server
    server=""
}

finish() {
    printf '%d min %02d s, peak memory %d.%d GB, all output in %s\n' \
        $((SECONDS / 60)) $((SECONDS % 60)) $((peak / 1000000)) $((peak / 100000 % 10)) "$folder"
    exit "$1"
}
