#!/usr/bin/env python3
"""The quality filters beside the same rules in Python: every verdict, and the speed of one core.

    python3 bench/curation_filters.py --bench build/bench_curation_filters

Needs the manual pages of Debian in several languages (manpages-de, manpages-fr, ...) and nothing but
Python's standard library; takes some minutes. The documents are the text of manual pages, without the
lines of requests, cut at a line end after at most 6,000 characters. The rules in Python are those of
tests/data/curation/make_filter_cases.py, which remembers, as spaCy does, how it split a chunk of text that
comes again. For the speed, thresholds are set so that every rule is computed; times are CPU times of one
thread, of one pass in Python.
"""
import argparse
import glob
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unicodedata

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/data/curation"))
import make_filter_cases as rules  # noqa: E402

LANGUAGES = ["", "cs", "da", "de", "es", "fi", "fr", "hu", "it", "ja", "ko", "nl", "pl", "pt", "ro", "ru",
             "sv", "tr", "uk", "zh_CN"]
QUALITY = dict(min_doc_words=0, max_doc_words=2**60, min_avg_word_length=0, max_avg_word_length=1e9,
               max_symbol_word_ratio=1e9, max_bullet_lines_ratio=1e9, max_ellipsis_lines_ratio=1e9,
               max_non_alpha_words_ratio=0, min_stop_words=1000)
REPETITION = dict(dup_para_frac=1e9, dup_para_char_frac=1e9, dup_line_frac=1e9, dup_line_char_frac=1e9,
                  top_n_grams=[1e9] * 3, dup_n_grams=[1e9] * 6)


def text_of(page):
    with gzip.open(page, "rb") as file:
        text = file.read().decode("utf-8", "replace")
    text = re.sub(r"^\.(?:SH|SS|TP|PP|P|IP)\b.*$", "", text, flags=re.M)
    text = re.sub(r"^[.'].*\n", "", text, flags=re.M)
    text = re.sub(r"\\f(?:[A-Z]|\([A-Z]{2}|\[[A-Z]*\])|\\&", "", text).replace("\\-", "-")
    end = text.rfind("\n", 0, 6000)
    return text if len(text) <= 6000 or end < 0 else text[:end]


def documents(count):
    pages = {language: sorted(glob.glob("/usr/share/man/%s/man*/*.gz" % language)) for language in LANGUAGES}
    each = -(-count // sum(bool(found) for found in pages.values()))
    spare = []
    for language, found in pages.items():
        found = [page for page in found if not os.path.islink(page)]
        yield from map(text_of, found[:each])
        spare += found[each:]
    for page in spare:
        yield text_of(page)


def verdict(text, split):
    words = split(text)
    removed, left = rules.c4(text, {})
    return " ".join([rules.quality(text, words, {}), rules.repetition(text, words, {}),
                     rules.fineweb(text, words, {}), removed, str(len(left))])


def rate(texts, judge, seconds=8):
    """MB/s of judging texts from the first on, once."""
    rules.known_chunks.clear()
    begin, size = time.process_time(), 0
    for text in texts:
        judge(text)
        size += len(text.encode())
        if time.process_time() - begin > seconds:
            break
    return size / (time.process_time() - begin) / 1e6


def measure(texts, split):
    def all_words(text):
        words = split(text)
        rules.repetition(text, words, REPETITION)
        list(rules.fineweb_measures(text, words, 30) if text.strip() else [])
        rules.quality(text, words, QUALITY)

    return {
        "gopher_quality": rate(texts, lambda t: rules.quality(t, split(t), QUALITY)),
        "gopher_repetition": rate(texts, lambda t: rules.repetition(t, split(t), REPETITION)),
        "fineweb_quality": rate(
            texts, lambda t: list(rules.fineweb_measures(t, split(t), 30) if t.strip() else [])),
        "c4": rate(texts, lambda t: rules.c4(t, {})),
        "nfc+gopher_quality": rate(texts, lambda t: rules.quality(
            unicodedata.normalize("NFC", t), split(unicodedata.normalize("NFC", t)), QUALITY)),
        "all": rate(texts, all_words)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--documents", type=int, default=10000)
    parser.add_argument("--words", choices=sorted(rules.WORDS), default="tokens")
    options = parser.parse_args()
    split = rules.WORDS[options.words]
    texts = []
    for text in documents(options.documents):
        texts.append(text)
        if len(texts) == options.documents:
            break
    size = sum(len(text.encode()) for text in texts)
    print("%d documents, %.1f MB" % (len(texts), size / 1e6), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path, verdicts = os.path.join(folder, "documents.jsonl"), os.path.join(folder, "verdicts.txt")
        with open(path, "w", encoding="utf-8") as file:
            for text in texts:
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        command = [options.bench, "--input", path, "--verdicts", verdicts, "--words", options.words]
        ours = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        with open(verdicts, encoding="utf-8") as file:
            found = file.read().split("\n")[:-1]
    python = measure(texts[:: max(1, len(texts) // 2000)], split)
    for line in ours.splitlines():
        name, speed = line.split()[:2]
        print("%-20s %8.2f MB/s, Python %6.2f MB/s: %.0f times"
              % (name, float(speed), python[name], float(speed) / python[name]), flush=True)
    different, reasons = 0, {}
    for text, mine in zip(texts, found):
        expected = verdict(text, split)
        for rule in expected.split(" ")[:4]:
            reasons[rule or "kept"] = reasons.get(rule or "kept", 0) + 1
        if expected != mine:
            different += 1
            if different <= 5:
                print("different: %r is %s, here %s" % (text[:80], expected, mine))
    print("%d of %d documents are judged differently" % (different, len(texts)))
    print(", ".join("%s %d" % item for item in sorted(reasons.items())))
    sys.exit(different > 0 or len(found) != len(texts))


if __name__ == "__main__":
    main()
