#!/usr/bin/env bash
# Puts DuckDB's library, with which Parquet is read, into a directory: from the npm package that ships it, at the version that was
# tried. Where npm or the network is missing it says so and succeeds: the tests of Parquet are then skipped.
set -euo pipefail

version=1.5.6-r.1
directory=$1
[ ! -e "$directory/libduckdb.so" ] || exit 0
case $(uname -m) in
  x86_64) package=@duckdb/node-bindings-linux-x64 ;;
  aarch64) package=@duckdb/node-bindings-linux-arm64 ;;
  *) exit 0 ;;
esac
skip() { echo "no tests of Parquet: $1" >&2; exit 0; }
command -v npm > /dev/null || skip "npm is missing, which would install $package"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
(cd "$scratch" && timeout 300 npm pack --silent "$package@$version" > log 2>&1) || skip "npm could not get $package: $(tail -n 1 "$scratch/log")"
tar -xzf "$scratch"/*.tgz -C "$scratch"
mkdir -p "$directory"
cp "$scratch/package/LICENSE" "$directory"
mv "$scratch/package/libduckdb.so" "$directory/libduckdb.so.new"
mv "$directory/libduckdb.so.new" "$directory/libduckdb.so"
