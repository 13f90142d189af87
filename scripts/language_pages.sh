#!/usr/bin/env bash
# Writes texts in English, Finnish, Dutch and Polish for a classifier, {"text": …, "label": "fi"} per line:
#   pages.jsonl           the first three passages of manual pages
#   pages-held-out.jsonl  the first passage of each fifth page, which has none in pages.jsonl
# A passage is about 160 bytes. Pages that begin as another one does (egrep, fgrep) and passages that are not translated
# yet (" the ") are left out, so that no held-out text is trained.
# Usage: scripts/language_pages.sh DIRECTORY
set -euo pipefail
directory=${1:?usage: $0 DIRECTORY}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$(dirname "$0")/corpora.sh" "$work" en-man fi nl pl > /dev/null
for language in en fi nl pl; do
  corpus=$work/$language.jsonl
  [ "$language" != en ] || corpus=$work/en-man.jsonl
  # Cut at spaces: neither a character nor an escape of JSON is split.
  LC_ALL=C awk -v language="$language" -v train="$work/train" -v valid="$work/valid" '
    { text = substr($0, 11, length($0) - 12)
      for (k = 0; k < 3; k++) {
        passage = substr(text, 1 + 160 * k, 160)
        if (k > 0) sub(/^[^ ]* /, "", passage)
        if (length(text) > 160 * (k + 1)) sub(/ [^ ]*$/, "", passage)
        if (passage !~ / .* / || seen[passage]++ || (language != "en" && passage ~ /[ n]the[ \\]/)) { if (k) continue; next }
        if (k == 0) file = ++pages % 5 == 0 ? valid : train
        if (k == 0 || file == train) printf "{\"text\": \"%s\", \"label\": \"%s\"}\n", passage, language >> file
      } }' "$corpus"
done
mkdir -p "$directory"
mv "$work/train" "$directory/pages.jsonl"
mv "$work/valid" "$directory/pages-held-out.jsonl"
