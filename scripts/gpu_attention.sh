#!/usr/bin/env bash
# Attention on one GPU, in less than 200 seconds: errors against float64, the tests of operations,
# context parallelism of 2 and 4 ranks against one rank, the device time of a ring and of Ulysses
# beside one rank's, and what a window saves in a training step. A part that fails or takes too long
# does not stop the others. Prints a table; the logs stay in OUT.
#   [BUILD=build-gpu] [OUT=folder] scripts/gpu_attention.sh [part …]
#   parts: check context steps ranks2 breakdown windows ranks4 tests documents long
set -u
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build-gpu}
out=${OUT:-$(mktemp -d)}
mkdir -p "$out"
cache="$out/matmul.txt"
results="$out/results.txt"
: > "$results"
parts=${*:-check context steps ranks2 breakdown windows ranks4 tests documents long}
started=$(date +%s)

# run NAME SECONDS COMMAND…: the output goes to $out/NAME.log, a line to the table.
run() {
  local name=$1 limit=$2 begin code left=$((195 - $(date +%s) + started))
  shift 2
  if [ $left -lt 5 ]; then
    echo "$name not run: no time left" | tee -a "$results"
    return
  fi
  [ "$limit" -gt $left ] && limit=$left
  begin=$(date +%s%N)
  timeout -k 2 "$limit" "$@" > "$out/$name.log" 2>&1
  code=$?
  [ $code = 124 ] && code="124, more than $limit s"
  printf '%-22s exit %s, %.1f s\n' "$name" "$code" "$((($(date +%s%N) - begin) / 1000000))e-3" \
    | tee -a "$results"
}
mpi() { echo "mpirun --allow-run-as-root --oversubscribe -np $1"; }
step() { "$build/bench_gpu_step" "$@" --micro 1 --length 16384 --layers 8 --matmul-cache "$cache"; }
export -f step
export build cache

for part in $parts; do
  case $part in
    check) run check 60 "$build/attention_check" blocks ;;
    tests)
      run tests 40 "$build/kintsugi_tests" --gtest_brief=1 \
        --gtest_filter='*AttentionPartsTest.*cuda_*16:*UnalignedExtents*cuda_*16:*MemoryTest.Add/cuda_*'
      ;;
    ranks2)
      # shellcheck disable=SC2046
      run ranks2 30 scripts/share_gpu.sh $(mpi 2) "$build/nccl_layouts" 0 1 4 \
        "cp=2 length=32 heads=2 family=llama-gqa;cp=2 length=32 heads=2 family=llama-gqa documents=1;cp=2 length=32 heads=2 family=olmo3 layers=2;cp=2 length=32 heads=2 family=bloom;cp=2 length=32 heads=2 family=llama-gqa context=ulysses"
      ;;
    ranks4)
      # shellcheck disable=SC2046
      run ranks4 40 scripts/share_gpu.sh $(mpi 4) "$build/nccl_layouts" 0 1 4 \
        "cp=4 length=32 heads=2 family=llama-gqa;cp=4 length=32 heads=2 family=llama-gqa documents=1;cp=4 length=32 heads=2 family=olmo3 layers=2;cp=4 length=32 heads=2 family=bloom;cp=2 dp=2 length=32 heads=2 family=llama-gqa"
      ;;
    context) run context 25 "$build/bench_context_attention" --length 32768 ;;
    long) run long 30 "$build/bench_context_attention" --length 131072 --repeats 1 --no-own ;;
    windows)
      run windows 15 "$build/bench_context_attention" --length 32768 --window 4096 --ranks 2,4 ;;
    documents)
      run documents 15 "$build/bench_context_attention" --length 32768 --document 4096 --ranks 4 ;;
    steps)
      for model in olmo2-7b olmo3-7b; do
        run "step_$model" 30 bash -c "step $model --steps 6 --warmup 4"
      done
      run step_olmo3_whole_words 30 bash -c "step olmo3-7b --vocabulary 100352 --steps 6 --warmup 4"
      ;;
    breakdown)
      for model in olmo2-7b olmo3-7b; do
        run "breakdown_$model" 25 bash -c "step $model --steps 2 --warmup 2 --breakdown"
      done
      ;;
    *) echo "$part is no part" >&2 ;;
  esac
done

show() { [ -s "$out/$1.log" ] && { echo; echo "== $1"; sed -n "$2" "$out/$1.log"; }; }
{
  show check '/WRONG\|cuDNN attention\|cuDNN has no\|failures\|16384/p'
  show tests '/FAILED\|PASSED\|Skipped/p'
  for part in ranks2 ranks4; do show $part '/agrees\|DIFFERS\|passed\|FAILED\|error/p'; done
  for part in context long windows documents; do show $part 'p'; done
  for model in olmo2-7b olmo3-7b; do show "step_$model" 'p'; done
  show step_olmo3_whole_words 'p'
  for model in olmo2-7b olmo3-7b; do show "breakdown_$model" '/ms/p'; done
  echo
  cat "$results"
  echo "$(($(date +%s) - started)) s in all; logs in $out"
}
