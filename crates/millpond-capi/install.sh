#!/bin/sh
# Builds the C library and installs it with its headers and its pkg-config file.
#
#     install.sh [--debug] PREFIX        such as install.sh ~/.local
set -eu

profile=release
if [ "${1-}" = --debug ]; then
    profile=debug
    shift
fi
if [ $# -ne 1 ]; then
    echo "usage: $0 [--debug] PREFIX" >&2
    exit 2
fi
mkdir -p "$1"
prefix=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

cd "$root"
if [ "$profile" = release ]; then
    cargo build --locked -p millpond-capi --release
else
    cargo build --locked -p millpond-capi
fi
built=${CARGO_TARGET_DIR:-$root/target}/$profile
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)

mkdir -p "$prefix/lib/pkgconfig" "$prefix/include"
install -m 755 "$built/libmillpond.so" "$prefix/lib/libmillpond.so.$version"
ln -sf "libmillpond.so.$version" "$prefix/lib/libmillpond.so.0"
ln -sf libmillpond.so.0 "$prefix/lib/libmillpond.so"
install -m 644 "$built/libmillpond.a" "$prefix/lib/libmillpond.a"
install -m 644 "$here/include/millpond.h" "$here/include/millpond.hpp" "$prefix/include/"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$here/millpond.pc.in" \
    > "$prefix/lib/pkgconfig/millpond.pc"
