#!/bin/sh
# Start a node of a Ray cluster, which ends with the container:
#
#   ray-node.sh head                   the head, at port 6379, without workers
#   ray-node.sh worker                 a node with $RAY_NODE_CPUS cores for workers
#   ray-node.sh gateway COMMAND …      a node without workers, and a server on it
#
# The last two join the head at $RAY_HEAD. All nodes need the cluster's token ($RAY_AUTH_TOKEN_PATH).
set -eu

# Print the container's address in the network of the head: the container may be in other networks, too.
own_address() {
    python -IS -c 'import socket, sys
with socket.socket(type=socket.SOCK_DGRAM) as probe:
    probe.connect((sys.argv[1], 6379))
    print(probe.getsockname()[0])' "${RAY_HEAD%:*}"
}

# Run a server. One that its settings, or the sampler, do not let start is not started again: the container stays as it
# is, unhealthy, until somebody recreates or restarts it.
serve() {
    "$@" &
    server=$!
    for name in HUP INT TERM; do
        # shellcheck disable=SC2064  # each has its own name
        trap "kill -$name $server" "$name"
    done
    status=0
    while kill -0 "$server" 2>/dev/null; do
        status=0
        wait "$server" || status=$?
    done
    if [ "$status" -eq 2 ]; then
        echo 'not started again: mend what the line above names, then recreate or restart this container' >&2
        exec sleep infinity
    fi
    exit "$status"
}

role=${1:-}
case $role in
head)
    if [ -n "${RAY_REDIS_ADDRESS:-}" ]; then
        set -- --redis-password "$(cat "$RAY_AUTH_TOKEN_PATH")"
    else
        unset RAY_REDIS_ADDRESS
        set --
    fi
    set -- "$@" --head --port 6379 --node-ip-address "$(hostname -i)" --num-cpus 0 --include-dashboard false
    ;;
worker)
    set -- --address "$RAY_HEAD" --node-ip-address "$(own_address)" --node-manager-port 6380 \
        --num-cpus "${RAY_NODE_CPUS:-1}"
    ;;
gateway)
    shift
    ray start --address "$RAY_HEAD" --node-ip-address "$(own_address)" --num-cpus 0 \
        --object-store-memory "$RAY_STORE_BYTES"
    serve "$@"
    ;;
*)
    echo "role: expected head, worker or gateway, got '$role'" >&2
    exit 2
    ;;
esac
exec ray start --block --object-store-memory "$RAY_STORE_BYTES" "$@"
