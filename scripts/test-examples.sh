#!/usr/bin/env bash
# Builds and runs every example. Those that need a GPU say "skipped" where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."

for source in crates/millpond/examples/*.rs; do
    name=$(basename "$source" .rs)
    printf -- '-- example %s\n' "$name"
    cargo run --quiet --release --locked -p millpond --example "$name"
done

for source in crates/millpond/examples/gpu/*.rs; do
    name=gpu_$(basename "$source" .rs)
    printf -- '-- example %s\n' "$name"
    cargo run --quiet --locked -p millpond --example "$name"
done
