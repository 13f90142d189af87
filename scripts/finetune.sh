#!/usr/bin/env bash
# Fine-tunes the model of `make demo` in one to three minutes per method on two cores:
#   sft             continues the verses of a chat                    examples/instruct.yaml
#   dpo             prefers verses to their words in disorder         examples/preferences.yaml
#   lora            sft with adapters instead of the whole model      examples/lora.yaml
#   classification  tells the language of manual pages                examples/classification.yaml
# Usage: scripts/finetune.sh [sft|dpo|lora|classification|all]        default: all; dpo needs sft
set -euo pipefail
cd "$(dirname "$0")/.."

kintsugi=${KINTSUGI:-build/kintsugi}
base=runs/demo/checkpoints/latest
data=runs/finetune
mkdir -p "$data"
[ -e "$base/config.json" ] || { echo "there is no $base: run \`make demo\` first" >&2; exit 2; }

# The verses of the demo corpus with at least 12 words, one per line, as they are between JSON's quotes.
verses() {
  sed -E 's/^\{"text": "//; s/"\}$//' runs/data/en.jsonl |
    awk '{ n = split($0, verse, /\\n/); for (i = 1; i <= n; i++) if (split(verse[i], w, / +/) >= 12) print verse[i] }'
}

# The user gives the first six words of a verse, and the assistant the rest.
chats() {
  verses | awk '{ sub(/^ +/, ""); head = $1; for (i = 2; i <= 6; i++) head = head " " $i
    tail = $7; for (i = 8; i <= NF; i++) tail = tail " " $i
    printf "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", \"content\": \"%s\"}]}\n", head, tail }'
}

# Chosen: the rest of the verse. Rejected: the words of the verse before, from the last to the first. 1,000 pairs: the
# reference model reads all of them before the first step.
pairs() {
  verses | awk '{ sub(/^ +/, ""); head = $1; for (i = 2; i <= 6; i++) head = head " " $i
    tail = $7; for (i = 8; i <= NF; i++) tail = tail " " $i
    if (NR % 29 == 0) printf "{\"prompt\": \"%s\", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", head, tail, before
    before = $NF; for (i = NF - 1; i >= 7; i--) before = before " " $i }'
}

# prepare NAME LENGTH option …: NAME.jsonl to the store NAME
prepare() {
  local name=$data/$1 length=$2
  shift 2
  "$kintsugi" data prepare-chat --input "$name.jsonl" --tokenizer runs/data/tokenizer --max-length "$length" \
    --output "$name" --overwrite "$@"
}

prepare_chats() {
  chats > "$data/chats.jsonl"
  prepare chats 128 --template chatml
}

# Three answers of the model in the run directory $1.
show_chat() {
  local start
  for start in "And God said unto Moses, Go" "Blessed is the man that walketh" "And it came to pass when"; do
    printf '\n%s … ' "$start"
    "$kintsugi" chat --checkpoint "$1" --max-tokens 40 --temperature 0.5 --seed 1 <<< "$start"
  done
}

sft() {
  prepare_chats
  rm -rf runs/instruct
  "$kintsugi" train examples/instruct.yaml
  show_chat runs/instruct
}

dpo() {
  [ -e runs/instruct/checkpoints/latest/config.json ] || sft
  pairs > "$data/pairs.jsonl"
  prepare pairs 256 --template chatml
  rm -rf runs/preferences
  "$kintsugi" train examples/preferences.yaml
  echo "reward accuracy on held-out pairs, from the first validation to the last:"
  grep -o '"valid_reward_accuracy":[0-9.]*' runs/preferences/metrics.jsonl
  show_chat runs/preferences
}

lora() {
  prepare_chats
  rm -rf runs/lora
  "$kintsugi" train examples/lora.yaml
  show_chat runs/lora
}

classification() {
  [ -s "$data/pages.jsonl" ] || scripts/language_pages.sh "$data"
  prepare pages 128 --labels en,fi,nl,pl --too-long keep_start
  prepare pages-held-out 128 --labels en,fi,nl,pl --too-long keep_start
  rm -rf runs/language-classifier
  "$kintsugi" train examples/classification.yaml
  "$kintsugi" classify --checkpoint runs/language-classifier --input "$data/pages-held-out.jsonl" --output "$data/labels.jsonl" --overwrite
  printf '%s\n' "The directory does not exist." "Tiedostoa ei ole olemassa." "Het bestand bestaat niet." "Ten plik nie istnieje." |
    "$kintsugi" classify --checkpoint runs/language-classifier --input -
}

methods=${1:-all}
[ "$methods" != all ] || methods="sft dpo lora classification"
for method in $methods; do
  case $method in
    sft | dpo | lora | classification) "$method" ;;
    *) echo "unknown method '$method': sft, dpo, lora, classification or all" >&2; exit 2 ;;
  esac
done
