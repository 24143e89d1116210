#!/usr/bin/env bash
# A Ray cluster of several nodes on this machine, to try on it what will run on a real one.
#
#   cluster/local.sh start [NODES] [CPUS]     a head without CPUs, and NODES (2) nodes of CPUS (2) each
#   eval "$(cluster/local.sh env)"            what `ray job submit` and `ray status` need to reach it
#   cluster/local.sh stop
#
# RAYDIFF_CLUSTER says where it keeps its token, process ids and logs (default ~/.raydiff-cluster). Run `start` with the
# environment active whose python has raydiff: it is the one that jobs will run. Without GPUs, which every node would offer.
set -euo pipefail
state="${RAYDIFF_CLUSTER:-$HOME/.raydiff-cluster}"

die() { echo "error: $*" >&2; exit 2; }

free_port() { python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# One node, in the background and in a process group of its own, so that `stop` can end it and nothing else.
# Workers take any free port: with Ray's default ranges the nodes of one machine would fight for them. The node's agent
# does too (0): one that finds its port taken lives on, takes no jobs and says so in a log of its own only.
# And each node has its own folder: in a shared one the second node unpacks the job's files anew, under the first one's feet.
# Ray gives up, or loses one of its processes, where something takes 30 s, as on a busy machine: at most three tries.
node() {
    local name="$1" session pid since
    shift
    session="$(cat "$state/session")/$name"
    for _ in 1 2 3; do
        # setsid does not fork in a background job of a script, so $! is the group's leader
        setsid ray start --block --num-gpus=0 --disable-usage-stats --min-worker-port=0 --max-worker-port=0 \
            --dashboard-agent-listen-port=0 --temp-dir="$session" "$@" </dev/null >"$state/$name.log" 2>&1 &
        pid=$!
        since="$(started "$pid" || true)"
        echo "$pid $since" >>"$state/pids"
        while alive "$pid" "$since"; do
            if ready "$name"; then return; fi
            sleep 0.5
        done
    done
    stop
    die "$name does not start; see $state/$name.log"
}

ready() {
    grep -qs "Ray runtime started" "$state/$1.log" || return 1
    [[ "$1" != head ]] || python - 2>/dev/null <<'END' # the dashboard comes up after the rest; `ray job list` takes seconds
import os, pathlib, urllib.request
asked = urllib.request.Request(os.environ["RAY_API_SERVER_ADDRESS"] + "/api/jobs/")
asked.add_header("Authorization", "Bearer " + pathlib.Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text())
urllib.request.urlopen(asked).close()
END
}

# When a process was started, in clock ticks since boot: with it an id that the system has given again is told apart.
started() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

alive() { [[ -n "$2" && "$(started "$1")" == "$2" ]]; }

running() {
    local pid since
    [[ -f "$state/pids" ]] || return 1
    while read -r pid since; do
        if alive "$pid" "$since"; then return 0; fi
    done <"$state/pids"
    return 1
}

start() {
    local nodes="${1:-2}" cpus="${2:-2}" port dashboard
    [[ "$nodes" =~ ^[1-9][0-9]*$ && "$cpus" =~ ^[1-9][0-9]*$ ]] || die "NODES and CPUS are positive integers"
    command -v ray >/dev/null || die "there is no ray on the PATH: activate the environment first"
    if running; then die "a cluster is running already: cluster/local.sh stop"; fi
    mkdir -p "$state"
    chmod 700 "$state"
    rm -f "$state"/*.log "$state/pids"
    # whoever has the token can run any code here; the one in ~/.ray would change how other clusters of yours start
    (umask 077 && python -c 'import secrets; print(secrets.token_hex(32), end="")' >"$state/token")
    port="$(free_port)"
    dashboard="$(free_port)"
    while [[ "$dashboard" == "$port" ]]; do dashboard="$(free_port)"; done
    cat >"$state/env" <<-END
	export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH='$state/token'
	export RAY_API_SERVER_ADDRESS=http://127.0.0.1:$dashboard
	unset RAY_ADDRESS RAY_AUTH_TOKEN
	END
    mktemp -d /tmp/raydiff.XXXXXX >"$state/session" # short: paths of sockets end after 107 bytes
    # shellcheck disable=SC1091
    source "$state/env"
    trap 'stop; exit 130' INT TERM
    node head --head --num-cpus=0 --port="$port" --dashboard-host=127.0.0.1 \
        --dashboard-port="$dashboard" --ray-client-server-port="$(free_port)"
    for i in $(seq "$nodes"); do # one after the other: side by side on few cores they would run into Ray's time limit
        node "node-$i" --address="127.0.0.1:$port" --num-cpus="$cpus"
    done
    trap - INT TERM
    echo "a head and $nodes node(s) with $cpus CPU each; dashboard at $RAY_API_SERVER_ADDRESS (it asks for $state/token)"
    # shellcheck disable=SC2016
    echo 'reach it with: eval "$(cluster/local.sh env)"'
}

# Nodes first, then the head, each by the id that `start` has noted; what has not ended after 20 s is killed.
stop() {
    local pid since
    [[ -f "$state/pids" ]] || { echo "no cluster is running"; return; }
    while read -r pid since; do
        alive "$pid" "$since" || continue
        kill -TERM "$pid"
        for _ in $(seq 40); do alive "$pid" "$since" && sleep 0.5 || break; done
        if alive "$pid" "$since"; then kill -KILL -- "-$pid"; fi
    done < <(tac "$state/pids")
    rm -rf "$(cat "$state/session")" "$state"/{pids,session,token,env}
    echo "stopped; logs of the nodes' start in $state"
}

case "${1:-}" in
    start) shift && start "$@" ;;
    env) running && cat "$state/env" || die "no cluster is running: cluster/local.sh start" ;;
    stop) stop ;;
    *) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;;
esac
