#!/usr/bin/env bash
# Builds what scripts/gpu-check.sh runs, and lays it into a directory that can be carried to a GPU
# machine without a Rust toolchain: scripts/gpu-bundle.sh DIR
set -euo pipefail

if [ $# -ne 1 ]; then
    echo "usage: $0 DIR" >&2
    exit 2
fi
mkdir -p "$1"
bundle=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}

# Thin link-time optimisation of a dozen programs takes long, and none of them is timed.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_STRIP=true

# test PACKAGE NAME: builds an integration test, and copies it under its name.
test_program() {
    local built
    built=$(cargo test --release --locked -p "$1" --test "$2" --no-run 2>&1 | tee /dev/stderr |
        sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
    install -m 755 "$built" "$bundle/$2"
}
test_program millpond-check conformance
test_program millpond cuda_device

for source in crates/millpond/examples/gpu/*.rs; do
    name=gpu_$(basename "$source" .rs)
    cargo build --release --locked -p millpond --example "$name"
    install -m 755 "$target/release/examples/$name" "$bundle/$name"
done

cargo build --release --locked -p millpond-cli
install -m 755 "$target/release/millpond" "$bundle/millpond"
install -m 755 scripts/gpu-check.sh "$bundle/gpu-check.sh"
du -sh "$bundle"
