#!/bin/sh
# Builds the wheel, installs it in a fresh virtual environment, and runs the package's tests there.
#
#     scripts/test-python.sh [PYTHON] [PYTEST ARGUMENT ...]
set -eu

python=${1-python3}
[ $# -eq 0 ] || shift
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$work" "$root/python"
"$work/venv/bin/python" -m pip install --quiet "$work"/millpond-*.whl "pytest>=7"
# Run from elsewhere, so that the installed package is tested and not the sources.
cd "$work"
"$work/venv/bin/python" -m pytest -q -p no:cacheprovider \
    --rootdir "$root/python" --ignore "$root/python/tests/gpu" "$root/python/tests" "$@"
