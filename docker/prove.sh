#!/bin/bash
# Proves the images and the compose file on a machine that can pull no image: as root, with a Docker daemon of its own
# (no iptables, no default bridge), a base image made by debootstrap and a PostgreSQL image made from that base.
# Builds, brings PostgreSQL and the proxy up with docker-compose, and asks the proxy things. Run by hand:
#
#   apt-get install docker.io docker-compose debootstrap && docker/prove.sh [TARGET...]
#
# TARGETs beyond `proxy` (`trainer`, `engine`) are built as well and asked for their help. WORK keeps the base between
# runs; the daemon and its data are removed at the end unless KEEP=1.
set -euo pipefail
cd "$(dirname "$0")/.."

WORK=${WORK:-$(mktemp -d)}
MIRROR=${MIRROR:-http://deb.debian.org/debian}
export DOCKER_HOST="unix://$WORK/docker.sock" DOCKER_BUILDKIT=0
export BASE_IMAGE=singletree-proof-base POSTGRES_IMAGE=singletree-proof-postgres COMPOSE_PROJECT_NAME=singletree-proof
secret() { head -c 32 /dev/urandom | sha256sum | cut -c1-48; }
POSTGRES_PASSWORD=$(secret) SINGLETREE_ADMIN_KEY=$(secret) SINGLETREE_RUNNER_KEY=$(secret)
export POSTGRES_PASSWORD SINGLETREE_ADMIN_KEY SINGLETREE_RUNNER_KEY
say() { echo "== $*"; }

cleanup() {
    if [ "$?" != 0 ]; then docker-compose logs --no-color --tail=20 || true; fi
    docker-compose --profile cpu down --volumes --timeout 5 >/dev/null 2>&1 || true
    if [ -f "$WORK/docker.pid" ]; then
        kill "$(cat "$WORK/docker.pid")" || true
        while [ -f "$WORK/docker.pid" ]; do sleep 0.5; done
    fi
    umount "$WORK/docker-exec/netns/default" 2>/dev/null || true
    if [ -z "${KEEP:-}" ]; then rm -rf "$WORK/docker-data" "$WORK/docker-exec"; fi
}
trap cleanup EXIT

say "a Docker daemon of our own in $WORK"
dockerd --data-root "$WORK/docker-data" --exec-root "$WORK/docker-exec" --pidfile "$WORK/docker.pid" \
    --host "$DOCKER_HOST" --iptables=false --bridge=none >"$WORK/dockerd.log" 2>&1 &
for _ in $(seq 60); do docker info >/dev/null 2>&1 && break; sleep 0.5; done
docker info --format 'daemon {{.ServerVersion}}, storage {{.Driver}}'

if [ ! -d "$WORK/base/usr" ]; then
    say "a base image by debootstrap (bookworm, python3, python3-venv)"
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$WORK/base" "$MIRROR" \
        >"$WORK/debootstrap.log"
fi
# What this machine needs to reach its package index, the containers need as well.
cp /etc/ssl/certs/ca-certificates.crt "$WORK/base/etc/ssl/certs/ca-certificates.crt"
if [ -f /etc/pip.conf ]; then cp /etc/pip.conf "$WORK/base/etc/pip.conf"; fi
links=()
if [ -d "${PIP_FIND_LINKS:-}" ]; then
    mkdir -p "$WORK/base$PIP_FIND_LINKS"
    cp "$PIP_FIND_LINKS"/torch-* "$WORK/base$PIP_FIND_LINKS/"
    links=(--change "ENV PIP_FIND_LINKS=$PIP_FIND_LINKS")
fi
tar -C "$WORK/base" -c . | docker import "${links[@]}" - "$BASE_IMAGE" >/dev/null

say "PostgreSQL from that base"
docker build --quiet --network host --tag "$POSTGRES_IMAGE" --file - docker <<EOD
FROM $BASE_IMAGE
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql >/dev/null
RUN printf '%s\n' '#!/bin/bash' 'set -e' 'bin=\$(echo /usr/lib/postgresql/*/bin)' \
    'if [ ! -s "\$PGDATA/PG_VERSION" ]; then' \
    '  "\$bin/initdb" --username="\$POSTGRES_USER" --pwfile=<(echo "\$POSTGRES_PASSWORD") --auth=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8' \
    '  echo "host all all all scram-sha-256" >> "\$PGDATA/pg_hba.conf"' \
    '  "\$bin/pg_ctl" -w -o "-c listen_addresses=" start' \
    '  PGPASSWORD=\$POSTGRES_PASSWORD createdb --username="\$POSTGRES_USER" "\$POSTGRES_DB"' \
    '  "\$bin/pg_ctl" -w stop' 'fi' 'exec "\$bin/postgres" -c listen_addresses="*"' > /start.sh && chmod +x /start.sh \
 && mkdir -p /var/lib/postgresql/data && chown postgres /var/lib/postgresql/data
ENV PGDATA=/var/lib/postgresql/data
USER postgres
CMD ["/start.sh"]
EOD

declare -A tags=([proxy]=singletree-proxy [trainer]=singletree-trainer-cpu [engine]=singletree-engine-cpu)
for target in proxy "$@"; do
    say "image $target"
    docker build --network host --file docker/Dockerfile --target "$target" --build-arg BASE="$BASE_IMAGE" \
        --tag "${tags[$target]}" . >"$WORK/build-$target.log" 2>&1 || { tail -20 "$WORK/build-$target.log"; exit 1; }
    docker run --rm --network none "${tags[$target]}" --help | head -1
    docker run --rm --network none --entrypoint id "${tags[$target]}"
done
docker images --format '{{.Repository}} {{.Size}}' | sort

say "docker-compose up: postgres, migrate, proxy"
docker-compose up -d --no-build proxy 2>&1
for _ in $(seq 60); do
    if [ "$(docker inspect --format '{{.State.Health.Status}}' "$(docker-compose ps -q proxy)")" = healthy ]; then break; fi
    sleep 1
done
docker-compose ps
ask() { python3 - "$@" <<'EOD'
import json, os, sys, urllib.error, urllib.request
method, path, key, expected = sys.argv[1:5]
body = sys.argv[5].encode() if len(sys.argv) > 5 else None
headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
request = urllib.request.Request(f"http://127.0.0.1:8700{path}", body, headers, method=method)
try:
    reply = urllib.request.urlopen(request, timeout=10)
except urllib.error.HTTPError as error:
    reply = error
text = reply.read().decode()
print(method, path, reply.status, text[:160])
sys.exit(str(reply.status) != expected)
EOD
}
ask GET /health none 200
ask PUT /api/policies/proof wrong 401 '{"kind": "train", "model": "proof"}'
ask PUT /api/policies/proof "$SINGLETREE_ADMIN_KEY" 200 '{"kind": "train", "model": "proof"}'
ask GET /api/policies/proof "$SINGLETREE_RUNNER_KEY" 200

say "a restart keeps what was written"
docker-compose restart proxy postgres >/dev/null 2>&1
for _ in $(seq 60); do ask GET /api/policies/proof "$SINGLETREE_RUNNER_KEY" 200 >/dev/null 2>&1 && break; sleep 1; done
ask GET /api/policies/proof "$SINGLETREE_RUNNER_KEY" 200

say "networks: engines and data are internal; from engines the proxy is reached, the database is not even a name"
docker network inspect --format '{{.Name}} internal={{.Internal}}' singletree-proof_engines singletree-proof_data
docker run --rm --network singletree-proof_engines --entrypoint python3 singletree-proxy -c '
import socket
socket.create_connection(("proxy", 8700), 5).close()
try:
    socket.getaddrinfo("postgres", 5432)
except socket.gaierror:
    print("as it should be")
else:
    raise SystemExit("the database is reachable from the engines")'
say "proved"
