#!/usr/bin/env bash
# Installs the Debian packages this project needs and this machine lacks. Without root, says which are missing.
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache
  libopenblas-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libfmt-dev libspdlog-dev libxxhash-dev
  libpcre2-dev libutf8proc-dev libsentencepiece-dev libzstd-dev zlib1g-dev libdlib-dev
  openmpi-bin libopenmpi-dev
  libgtest-dev libgmock-dev
  bible-kjv bible-kjv-text manpages-fi manpages-nl manpages-pl
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get > /dev/null; then
  echo "This machine has no apt-get. Please install what these Debian packages hold: ${missing[*]}" >&2
  exit 1
fi
become=()
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo > /dev/null && sudo -n true 2> /dev/null; then
    become=(sudo -n)
  else
    echo "These packages are missing and installing needs root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
fi
echo "installing: ${missing[*]}"
log=$(mktemp)
if ! { "${become[@]}" apt-get update && "${become[@]}" env DEBIAN_FRONTEND=noninteractive \
       apt-get install -y --no-install-recommends "${missing[@]}"; } > "$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
rm -f "$log"
