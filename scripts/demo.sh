#!/usr/bin/env bash
# From text to a model: trains a tokenizer on the King James Bible (or CORPUS=file, text or JSONL),
# writes a token store, trains the demo model on it, prints a generated sample and writes a report.
set -euo pipefail
cd "$(dirname "$0")/.."

kintsugi=build/kintsugi
run=${RUN:-runs/demo}
data=${DATA:-runs/data}
mkdir -p "$data"
if [ -n "${CORPUS:-}" ]; then
  corpus=$CORPUS
else
  corpus=$data/en.jsonl
  [ -s "$corpus" ] || scripts/corpora.sh "$data" en
fi
rm -rf "$run"
# The marks of chats are tokens, so that scripts/finetune.sh can train on chats.
"$kintsugi" data train-tokenizer --input "$corpus" --vocab 2048 --special "<|endoftext|>" "<|im_start|>" "<|im_end|>" \
  --output "$data/tokenizer" --overwrite
"$kintsugi" data tokenize --input "$corpus" --tokenizer "$data/tokenizer" --output "$data/en" --overwrite
"$kintsugi" train examples/demo.yaml --set "data.train=[{path: \"$data/en\"}]" --set "data.tokenizer=$data/tokenizer" --set "run.dir=$run"

checkpoint=$run/checkpoints/latest
echo
echo "A sample of the trained model:"
echo
"$kintsugi" generate --checkpoint "$checkpoint" --prompt "${PROMPT:-And God said}" --max-tokens 150 --seed 1
"$kintsugi" report "$run" --output "$run/report.html"
echo
echo "The run directory is $run: metrics.jsonl, log.txt, status.json, config.yaml and the checkpoint"
echo "$checkpoint, which Hugging Face transformers can load directly."
echo "Open $run/report.html in a browser: the curves of the run."
echo "Try:  $kintsugi generate --checkpoint $checkpoint --prompt 'In the beginning'"
echo "      $kintsugi data inspect $data/en --tokenizer $data/tokenizer"
