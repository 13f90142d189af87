#!/usr/bin/env bash
# Writes small corpora from Debian packages, one JSON object {"text": …} per document:
#   en.jsonl  the King James Bible, one document per chapter (bible-kjv)
#   fi.jsonl, nl.jsonl, pl.jsonl  translated manual pages (of manpages-fi, -nl, -pl and other packages)
#   en-man.jsonl  English manual pages (manpages); only if named
# and LANGUAGE.packages: name, version and licences of each package that the texts are from.
# Usage: scripts/corpora.sh DIRECTORY [language …]     default: en fi nl pl
set -euo pipefail
directory=${1:?usage: $0 DIRECTORY [en|fi|nl|pl|en-man ...]}
shift
languages=("${@:-en}")
[ $# -gt 0 ] || languages=(en fi nl pl)
mkdir -p "$directory"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Converts text to JSONL; a form feed ends a document.
to_jsonl() {
  awk 'BEGIN { text = "" }
    /^\f/ { if (text ~ /[^\\n ]/) printf "{\"text\": \"%s\"}\n", text; text = ""; next }
    { gsub(/\\/, "&&"); gsub(/"/, "\\\\&"); gsub(/\t/, " "); gsub(/[\001-\037]/, ""); text = text $0 "\\n" }
    END { if (text ~ /[^\\n ]/) printf "{\"text\": \"%s\"}\n", text }'
}

# "Ge1:2 And the earth": one document per chapter, one line per verse.
bible_text() {
  bible -f gen1:1-rev22:21 | awk '{ chapter = $1; sub(/:.*/, "", chapter)
    if (chapter != last && NR > 1) print "\f"
    last = chapter; sub(/^[^ ]+ /, ""); print }'
}

# "NAME VERSION" and the licences in its copyright file, below a root directory.
packages_of() {
  local copyright=$1/usr/share/doc/${2%% *}/copyright licences=
  [ ! -e "$copyright" ] || licences=$(sed -n 's/^License: *//p' "$copyright" | sort -u | paste -sd ';' | sed 's/;/; /g')
  printf '%s\t%s\n' "$2" "$licences"
}

# The files of manual pages. Many packages have English ones: only those of `manpages` are taken.
manual_pages() {
  local language=$1 package=manpages-$1 pages
  if [ "$language" = en-man ]; then
    package=manpages
    pages=$(dpkg -L manpages 2> /dev/null | grep '/man[1-8]/.*\.gz$' || true)
  else
    pages=$(find /usr/share/man/"$language" -name '*.gz' 2> /dev/null || true)
  fi
  if [ ! -e "${pages%%$'\n'*}" ]; then
    # Slim images install packages without manual pages: unpack the package instead.
    (cd "$work" && apt-get download -q "$package" > /dev/null && dpkg-deb -x "$package"_*.deb "$language")
    pages=$(find "$work/$language" -name '*.gz')
    packages_of "$work/$language" "$package $(dpkg-deb -f "$work/$package"_*.deb Version)" > "$work/$language.packages"
  else
    # Pages that are links, such as vi.1.gz, belong to the package of what they point to.
    xargs realpath <<< "$pages" | { xargs dpkg -S 2> /dev/null || true; } \
      | sed '/^diversion by/d; s/: .*//; s/:.*//; s/, /\n/g' | sort -u | while read -r package; do
      packages_of / "$package $(dpkg-query -W -f '${Version}' "$package")"
    done > "$work/$language.packages"
  fi
  LC_ALL=C sort <<< "$pages"
}

# The text of manual pages without roff requests and font changes.
manual_text() {
  manual_pages "$1" | while read -r page; do
    zcat "$page" | sed -E -e '/^\.SH /{s/^\.SH +//;b}' -e '/^\.SS /{s/^\.SS +//;b}' -e '/^\.(B|I|BR|BI|IR|RB|RI|IB|SM) /{s/^\.[A-Z]+ +//;b}' \
      -e "/^[.']/d" | sed -E -e 's/\\f([BIRP]|\(..|\[[^]]*\])//g' -e 's/\\s[-+]?[0-9]//g' -e 's/\\-/-/g' -e 's/\\(,|\/|&|\||\^|:|%)//g' \
      -e 's/\\(e|\\)/\\/g' -e 's/\\\(aq/'"'"'/g' -e 's/\\\((lq|rq|dq)/"/g' -e 's/\\\(bu/-/g' -e 's/\\~|\\ / /g' -e 's/"([^"]*)"/\1/g'
    printf '\f\n'
  done
}

for language in "${languages[@]}"; do
  case $language in
    en)
      packages_of / "bible-kjv-text $(dpkg-query -W -f '${Version}' bible-kjv-text)" > "$work/en.packages"
      bible_text
      ;;
    fi | nl | pl | en-man) manual_text "$language" ;;
    *) echo "no corpus for '$language': en, fi, nl, pl or en-man" >&2; exit 2 ;;
  esac | to_jsonl > "$work/$language.jsonl"
  mv "$work/$language.packages" "$directory/$language.packages"
  mv "$work/$language.jsonl" "$directory/$language.jsonl"
  echo "$directory/$language.jsonl: $(wc -l < "$directory/$language.jsonl") documents, $(wc -c < "$directory/$language.jsonl") bytes"
done
