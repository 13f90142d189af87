#!/usr/bin/env bash
# Trains the default model on the King James Bible (or CORPUS=file) and shows a sample of what it writes.
set -euo pipefail
cd "$(dirname "$0")/.."

kintsugi=build/kintsugi
run=${RUN:-runs/demo}
mkdir -p runs
if [ -n "${CORPUS:-}" ]; then
  corpus=$CORPUS
else
  corpus=runs/kjv.txt
  [ -s "$corpus" ] || bible -f gen1:1-rev22:21 > "$corpus"
fi
rm -rf "$run"
"$kintsugi" train examples/demo.yaml --set "data.train=[{path: \"$corpus\"}]" --set "run.dir=$run"

checkpoint=$run/checkpoints/latest
echo
echo "A sample of what it has learned to write:"
echo
"$kintsugi" generate --checkpoint "$checkpoint" --prompt "${PROMPT:-And God said}" --max-tokens 400 --seed 1
echo
echo "The run directory is $run: metrics.jsonl, log.txt, status.json, config.yaml and the checkpoint"
echo "$checkpoint, which Hugging Face transformers opens as it lies."
echo "Try:  $kintsugi generate --checkpoint $checkpoint --prompt 'In the beginning'"
