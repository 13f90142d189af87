#!/usr/bin/env bash
# Four languages from Debian packages: one tokenizer for all, one token store per language, and a
# run that blends them and validates per language (examples/multilingual.yaml).
set -euo pipefail
cd "$(dirname "$0")/.."

kintsugi=build/kintsugi
data=runs/languages
mkdir -p "$data"
scripts/corpora.sh "$data"
"$kintsugi" data train-tokenizer --input "$data/*.jsonl" --vocab 4096 --output "$data/tokenizer" --overwrite
for language in en fi nl pl; do
  "$kintsugi" data tokenize --input "$data/$language.jsonl" --tokenizer "$data/tokenizer" --output "$data/$language" --overwrite
done
"$kintsugi" train examples/multilingual.yaml "$@"
