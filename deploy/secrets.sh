#!/bin/sh
# Make what the containers share in secret; each part lies in a volume of its own, for the containers that need it.
#
#   secrets.sh               make what is missing, and finish what was interrupted
#   secrets.sh renew         replace the certificates of server and client; and the authority's in time, with its key
#   secrets.sh renew-all     replace them and the authority, which has expired, or whose key others know
#   secrets.sh renew-token   give the client another token, beside the old one
#   secrets.sh client        write the client's files to standard output, as a tar archive
#   secrets.sh token …       run `rollserve-server token` with the gateway's file
set -eu
umask 077
cd /secrets
export ROLLSERVE_TOKEN_HASHES=gateway/tokens.json

# Write standard input to a file, in one step.
write() {
    cat > "$1.new"
    mv "$1.new" "$1"
}

random() {
    python -c 'import secrets; print(secrets.token_hex(32))'
}

# Give the client a token that permits all but pickles.
new_token() {
    token=$(rollserve-server token create --name trainer --scope '*')
    echo "$token" | write client/token
}

# Hand the certificates out. A key comes before its certificate: the server uses neither until both belong together.
distribute() {
    for file in server-key.pem server.pem ca.pem; do write gateway/$file < authority/$file; done
    for file in client-key.pem client.pem ca.pem; do write client/$file < authority/$file; done
}

# Run init-tls, which prints until when each certificate is valid.
certify() {
    for name in gateway $(echo "${ROLLSERVE_NAMES:-}" | tr , ' '); do set -- "$@" --name "$name"; done
    rollserve-server init-tls authority "$@" || { rm -f authority/unfinished; exit 1; }
    distribute
}

# Replace what init-tls has made. If this is interrupted, `make` does it again.
renew() {
    echo "$1" > authority/unfinished
    certify "$1"
    rm authority/unfinished
}

case ${1:-make} in
make)
    if [ ! -e authority/client.pem ]; then
        rm -f authority/*.pem
        certify --client-name trainer
    elif [ -e authority/unfinished ]; then
        renew "$(cat authority/unfinished)"
    elif [ ! -e gateway/ca.pem ] || [ ! -e client/ca.pem ]; then
        distribute # files that are there may be of another authority, and stay
    fi
    [ -e cluster/token ] || random | write cluster/token
    [ -e client/token ] && [ -e "$ROLLSERVE_TOKEN_HASHES" ] || new_token
    [ -e gateway/sampler-secret ] || random | write gateway/sampler-secret
    [ -e grafana/password ] || random | write grafana/password
    chmod a+r grafana/password # Grafana's container has another user, and no other container has the volume
    ;;
renew)
    renew --renew
    ;;
renew-all)
    renew --renew-all
    ;;
renew-token)
    new_token
    ;;
token)
    exec rollserve-server "$@"
    ;;
client)
    tar -C client -c .
    ;;
*)
    echo "command: expected make, renew, renew-all, renew-token, client or token, got $1" >&2
    exit 2
    ;;
esac
