# Sourced by prove.sh: what is asked of the running stack, and what it must answer.
# Reads $compose, $url, $work, $tokens and $PROMETHEUS_PORT; uses say, figure, ok, fail, within and await_health of prove.sh.
# shellcheck shell=bash disable=SC2154

container() { docker ps --all --quiet --filter label=com.docker.compose.project=headway-prove \
    --filter "label=com.docker.compose.service=$1" | head -1; }
restarts() { docker inspect --format '{{.RestartCount}}' "$(container "$1")"; }
state() { docker inspect --format "{{.State.$2}}" "$(container "$1")"; }

# The process id of a running service. Docker says 0 of one that does not run, and kill takes that for its own group.
pid_of() {
    local pid
    pid=$(state "$1" Pid)
    [ "$pid" != 0 ] || fail "$1 does not run"
    echo "$pid"
}

# What the compose file promises about every container, asked of the running ones.
check_containers() {
    local service user capabilities
    for service in valkey gateway worker batch prometheus; do
        [ "$(state "$service" Running)" = true ] && [ "$(restarts "$service")" = 0 ] ||
            fail "$service does not stay up: $(docker logs --tail 5 "$(container "$service")" 2>&1)"
        user=$(docker exec "$(container $service)" id -u)
        [ "$user" != 0 ] || fail "$service runs as root"
        capabilities=$(docker exec "$(container $service)" grep CapBnd /proc/self/status | cut -f2)
        [ "$((16#$capabilities))" = 0 ] || fail "$service keeps capabilities $capabilities"
        docker exec "$(container $service)" sh -c 'touch /usr/here 2>/dev/null' && fail "$service can write to its image"
        ok "$service: user $user, no capabilities, read-only root"
    done
    for service in gateway worker batch; do
        docker exec "$(container $service)" sh -c 'command -v gcc || command -v cc' && fail "$service holds a compiler"
    done
    ok "no compiler in any of Headway's images"
}

# ready_line FIELD: of what the worker logged last when its model was there.
ready_line() {
    docker logs "$(container worker)" 2>&1 | python3 -c '
import json, sys
lines = [json.loads(line) for line in sys.stdin if "\"worker_ready\"" in line]
print(lines[-1][sys.argv[1]])' "$1"
}

# Compiled in a build stage: an image without them would answer all the same, several times slower.
check_kernels() {
    local kernels
    kernels=$(ready_line kernels)
    figure "computes by" "$kernels, $(ready_line threads)"
    figure "weights" "$(ready_line weights)"
    if ! grep -qw avx512_bf16 /proc/cpuinfo; then
        [[ $kernels == *"this CPU has no"* ]] || fail "not the reason that this CPU gives: $kernels"
        ok "torch computes: this CPU lacks what the native kernels are written in"
        return
    fi
    [[ $kernels == native* ]] || fail "the worker does not compute with the native kernels: $kernels"
    [ -z "$(docker exec "$(container worker)" sh -c 'ls /models/.headway/kernels-* 2>/dev/null')" ] ||
        fail "the kernels were compiled at run time; the image should hold them"
    ok "native kernels, from the image"
}

client() { python3 ops/docker/prove_client.py "$@"; }

# One greedy answer without trouble; the later checks must give the same text.
check_answer() {
    figure "undisturbed" "$(client ask "$url" "$tokens" "$work/expected.txt")"
    printf '   "%s…"\n' "$(head -c 200 "$work/expected.txt" | tr '\n' ' ')"
}

# expect_same NAME: the text just read is the undisturbed one.
expect_same() {
    cmp -s "$work/expected.txt" "$work/$1.txt" || fail "another text than undisturbed:
$(diff "$work/expected.txt" "$work/$1.txt")"
    ok "the same text as undisturbed, every token once"
}

# SIGKILL from outside, as the kernel does it when memory runs out; `docker kill` would count as a wish to stop.
check_kill() {
    local pid
    pid=$(pid_of worker)
    figure "killed" "$(client ask "$url" "$tokens" "$work/killed.txt" --at $((tokens / 4)) --run "kill -9 $pid")"
    expect_same killed
    [ "$(state worker Pid)" != "$pid" ] || fail "the worker was not killed"
    await_health worker 60
    ok "Docker restarted the worker ($(restarts worker) time)"
    figure "its weights" "$(ready_line weights)"
}

# A stop hands back what cannot end within the drain; the next worker goes on from there.
check_drain() {
    local start
    client ask "$url" "$tokens" "$work/drained.txt" --at $((tokens / 4)) --run "touch $work/now" >"$work/drained" &
    local reader=$!
    await_file "$work/now" 60
    start=$(date +%s%N)
    within 60 "${compose[@]}" stop worker
    figure "docker compose stop took" "$((($(date +%s%N) - start) / 1000000)) ms, exit code $(state worker ExitCode)"
    [ "$(state worker ExitCode)" != 137 ] || fail "the worker did not drain: it had to be killed"
    within 60 "${compose[@]}" start worker
    wait $reader || fail "the reader saw no good end"
    figure "stopped and started" "$(cat "$work/drained")"
    expect_same drained
}

# With no worker there, a job waits; the queue server goes and comes; the worker returns; the job is answered.
check_queue_restart() {
    local job pid
    within 60 "${compose[@]}" stop worker
    job=$(client post "$url" "$tokens")
    sleep 1.5 # everysec: what was accepted over a second ago is on the disk
    pid=$(pid_of valkey)
    kill -9 "$pid"
    await_health valkey 60
    within 60 "${compose[@]}" start worker
    figure "waited" "$(client follow "$url" "$job" "$work/waited.txt")"
    expect_same waited
}

# Every custom_id once, though the service that works through the file is killed when a part of it is done.
check_batch() {
    local pid
    pid=$(pid_of batch)
    python3 ops/docker/prove_batch.py "$url" 400 --at 64 --run "kill -9 $pid" >"$work/batch" || fail "the batch did not end well"
    figure "batch" "$(cat "$work/batch")"
    [ "$(state batch Pid)" != "$pid" ] || fail "the batch service was not killed"
    ok "every custom_id once; Docker restarted the service ($(restarts batch) time)"
}

check_monitoring() {
    python3 ops/docker/prove_monitoring.py "http://127.0.0.1:$PROMETHEUS_PORT" || fail "Prometheus does not see what it should"
}

await_file() {
    local limit=$((SECONDS + $2))
    until [ -e "$1" ]; do
        [ $SECONDS -lt $limit ] || fail "no progress within $2 s"
        sleep 0.1
    done
}
