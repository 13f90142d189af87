#!/bin/sh
# Compiles and runs the emulator's own tests file by file, in the ways that are listed below.
# Usage: tests/emulator/try.sh [way...]
set -eu
cd "$(dirname "$0")/../.."
out=${TMPDIR:-/tmp}/kintsugi_emulator
library="async_copy fiber executor schedule shared_memory race_check matrix"
# The name of a way, the lanes of a wave, flags for all files, more flags for those with kernels.
try() {
  way=$1 wave=$2 flags=$3 kernel_flags=$4
  rm -rf "$out/$way" && mkdir -p "$out/$way"
  compile="g++ -std=c++20 -O1 -g -Wall -Wextra -Werror -Wno-unknown-pragmas -fno-strict-aliasing \
    -ffp-contract=off -Isrc -Itests -DKINTSUGI_EMULATED_GPU -DKINTSUGI_WAVE=$wave $flags"
  for file in $library; do $compile -c tests/emulator/$file.cpp -o "$out/$way/$file.o"; done
  $compile -c src/tensor/dtype.cpp -o "$out/$way/dtype.o"
  for file in emulator_test instructions_test; do
    $compile $kernel_flags -c tests/emulator/$file.cpp -o "$out/$way/$file.o"
  done
  g++ $flags "$out/$way"/*.o -lgtest -lgtest_main -lfmt -lboost_context -lpthread -o "$out/$way/test"
  echo "== $way"
  "$out/$way/test" --gtest_brief=1
}
for way in ${*:-wave32 wave64 sanitized races32 races64}; do
  case $way in
    wave32) try $way 32 "" "" ;;
    wave64) try $way 64 "" "" ;;
    sanitized) try $way 64 -fsanitize=address,undefined "" ;;
    races32) try $way 32 "" -fsanitize=thread ;;
    races64) try $way 64 "" -fsanitize=thread ;;
  esac
done
