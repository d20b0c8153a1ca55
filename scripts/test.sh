#!/usr/bin/env bash
# Everything that must hold, on a machine without a GPU: format, lints, documentation, tests,
# examples. Stops at the first thing that does not.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

step "format"
cargo fmt --all --check

step "lints"
cargo clippy --workspace --all-targets --locked -- -D warnings

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

step "tests"
cargo test --workspace --locked

step "instruction counts"
scripts/instructions.sh

step "examples"
scripts/test-examples.sh

step "Python package"
scripts/test-python.sh

step "all of it holds"
