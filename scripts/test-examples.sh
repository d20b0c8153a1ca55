#!/usr/bin/env bash
# Builds and runs every example that needs no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."

for source in crates/millpond/examples/*.rs; do
    name=$(basename "$source" .rs)
    printf -- '-- example %s\n' "$name"
    cargo run --quiet --release --locked -p millpond --example "$name"
done
