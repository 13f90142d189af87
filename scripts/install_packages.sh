#!/usr/bin/env bash
# Installs the Debian packages of cmake/dependencies.txt that this machine lacks: all, or those of the kinds given (required,
# optional, tool, test, demo). Where apt is missing, or root, or the network, it says so and succeeds: CMake then names what it
# does not find. --list prints the packages and installs nothing.
set -euo pipefail

list=$(dirname "$0")/../cmake/dependencies.txt
only_list=false
[ "${1:-}" != --list ] || { only_list=true; shift; }
kinds=" ${*:-required optional tool test demo} "

packages=()
while read -r name kind debian _; do
  case "$name" in ''|'#'*) continue ;; esac
  [[ $kinds != *" $kind "* ]] || packages+=("$debian")
done < "$list"
if $only_list; then printf '%s\n' "${packages[@]}"; exit 0; fi

command -v apt-get > /dev/null && command -v dpkg-query > /dev/null || exit 0
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2> /dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

become=()
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo > /dev/null && sudo -n true 2> /dev/null; then
    become=(sudo -n)
  else
    echo "These packages are missing and installing them needs root: apt-get install ${missing[*]}" >&2
    exit 0
  fi
fi
echo "installing: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
  "${become[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" > "$log" 2>&1
}
"${become[@]}" apt-get update > "$log" 2>&1 || true
install "${missing[@]}" && exit 0
# One that does not exist here keeps the others from being installed.
absent=()
for package in "${missing[@]}"; do install "$package" || absent+=("$package"); done
[ ${#absent[@]} -eq 0 ] || { tail -n 3 "$log" >&2; echo "These packages could not be installed: ${absent[*]}" >&2; }
