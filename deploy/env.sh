#!/bin/sh
# Prints the .env that docker-compose.yml needs, with fresh random secrets:  sh deploy/env.sh > .env
# Keep that file: PPO_KEY_PEPPER makes the stored API keys verifiable, and a new one invalidates them all.
set -eu

secret() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }

cat <<EOF
# Secrets. Never committed; hex, so that they fit into URLs.
POSTGRES_PASSWORD=$(secret)
REDIS_PASSWORD=$(secret)
PPO_KEY_PEPPER=$(secret)
GRAFANA_ADMIN_PASSWORD=$(secret)

# Address of the machine that the front door and Grafana listen on. Put a TLS proxy before them for anything but this host.
BIND_ADDRESS=127.0.0.1
HTTP_PORT=8080
GRPC_PORT=50051
GRAFANA_PORT=3000
PROMETHEUS_PORT=9090
TENSORBOARD_PORT=6006

# Folder with models, mounted read-only; a spec names them by the path inside it.
MODELS_DIR=./models

# What one worker may use: WORKER_SLOTS jobs at once, ENGINE_THREADS processor cores for each.
WORKER_CPUS=4
WORKER_MEMORY=12g
WORKER_SLOTS=1
ENGINE_THREADS=4
EOF
