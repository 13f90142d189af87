#!/usr/bin/env bash
# From raw texts to an evaluated model: manual pages of three languages and the King James Bible from Debian packages are curated
# (language, quality, personal data, evaluation tasks), freed from near-duplicates and tokenized; a small model is trained on
# them for 100 steps and evaluated, and a data card says what it was trained on. About two minutes on two cores.
# Usage: scripts/curated_run.sh [DIRECTORY], default runs/curated
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
kintsugi=$root/build/kintsugi
tasks=$root/examples/eval
mkdir -p "${1:-runs/curated}"
cd "${1:-runs/curated}"

"$root/scripts/corpora.sh" raw
"$kintsugi" data train-language-id --input en=raw/en.jsonl fi=raw/fi.jsonl nl=raw/nl.jsonl pl=raw/pl.jsonl \
  --label-bytes 500kB --output languages.bin --overwrite

# What the packages say of themselves: versions, licences.
for language in en fi nl pl; do
  quoted() { sed "s/'/''/g" | paste -sd ',' | sed 's/,/, /g'; }
  licences=$(cut -f 2 raw/$language.packages | tr ';' '\n' | sed 's/^ *//' | sed '/^$/d' | sort -u | quoted)
  cat << EOF
  - name: $([ $language = en ] && echo king-james-bible || echo "manual-pages-$language")
    files: [raw/$language.jsonl]
    kind: public
    languages: [$language]
    version: '$(cut -f 1 raw/$language.packages | quoted)'
    date: $(date -r raw/$language.jsonl +%F)
    description: texts of Debian packages
EOF
  [ -z "$licences" ] || echo "    license: '$licences'"
done > sources.yaml

# English function words, and those that are frequent in the manual pages.
cat > recipe.yaml << EOF
sources:
$(cat sources.yaml)
steps:
  - repair:
  - language: {model: languages.bin, keep: [en, fi, nl, pl], threshold: 0.5}
  - gopher_repetition: {dup_line_frac: 0, dup_line_char_frac: 0}
  - gopher_quality:
      stop_words: [the, and, of, to, ja, on, ei, tai, de, het, een, van, w, z, na, jest]
  - personal_data:
  - decontaminate: {tasks: [$tasks]}
  - sample: {keep: 1, languages: {en: 0.5}}
EOF
"$kintsugi" data curate recipe.yaml --input 'raw/*.jsonl' --output curated --overwrite
"$kintsugi" data dedup 'curated/documents-*' --output unique --overwrite
"$kintsugi" data train-tokenizer --input 'unique/kept/*.jsonl.zst' --vocab 4096 --output tokenizer --overwrite
"$kintsugi" data tokenize --input 'unique/kept/*.jsonl.zst' --tokenizer tokenizer --output store --overwrite

cat > run.yaml << EOF
model: {preset: llama-tiny}
data: {tokenizer: tokenizer, train: [{path: store}], sequence_length: 128, valid_fraction: 0.05}
batch: {global: 16, micro: 8}
optimizer: {lr: 2e-3, warmup_steps: 10}
train: {steps: 100, eval_every: 50}
run: {dir: run}
EOF
"$kintsugi" train run.yaml
"$kintsugi" eval --checkpoint run --tasks "$tasks" --output results
"$kintsugi" data card run --output card --overwrite --check-inputs \
  --set name=curated-packages --set description="Manual pages and the King James Bible from Debian packages"
"$kintsugi" data where run.yaml --step 100 --records > last-step.txt
