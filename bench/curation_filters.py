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
import random
import re
import subprocess
import sys
import tempfile
import time
import unicodedata

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/data/curation"))
import make_filter_cases as rules  # noqa: E402
import make_personal_data_cases as personal  # noqa: E402

LANGUAGES = ["", "cs", "da", "de", "es", "fi", "fr", "hu", "it", "ja", "ko", "nl", "pl", "pt", "ro", "ru",
             "sv", "tr", "uk", "zh_CN"]
QUALITY = dict(min_doc_words=0, max_doc_words=2**60, min_avg_word_length=0, max_avg_word_length=1e9,
               max_symbol_word_ratio=1e9, max_bullet_lines_ratio=1e9, max_ellipsis_lines_ratio=1e9,
               max_non_alpha_words_ratio=0, min_stop_words=1000)
REPETITION = dict(dup_para_frac=1e9, dup_para_char_frac=1e9, dup_line_frac=1e9, dup_line_char_frac=1e9,
                  top_n_grams=[1e9] * 3, dup_n_grams=[1e9] * 6)


WORD = re.compile("[%s\u200c\u200d]+" % rules.character_class(
    lambda category: category[0] in "LM" or category in ("Nd", "Nl", "Pc")))


def questions(texts, sequences):
    """Questions of 50 random words with so many sequences of 13 words, and some that documents have."""
    draw = random.Random(1)
    vocabulary = sorted({word for text in texts[:300] for word in WORD.findall(text.lower())})
    for _ in range(sequences // 38):
        yield " ".join(draw.choice(vocabulary) for _ in range(50))
    for text in texts[::500]:
        words = WORD.findall(text.lower())
        if len(words) > 60:
            yield " ".join(words[10:50])


def sequences_of(asked):
    """Those of 13 words that at most 10 questions have."""
    owners = {}
    for question in asked:
        words = WORD.findall(question.lower())
        for sequence in {tuple(words[i:i + 13]) for i in range(len(words) - 12)}:
            owners[sequence] = owners.get(sequence, 0) + 1
    return {sequence for sequence, count in owners.items() if count <= 10}


def has_sequence(text, known):
    words = WORD.findall(text.lower())
    return any(tuple(words[i:i + 13]) in known for i in range(len(words) - 12))


def number_texts(count):
    """Tables of amounts, dates, times and numbers with up to 12 digits."""
    draw = random.Random(2)

    def cell():
        date = draw.randrange(1990, 2030), draw.randrange(1, 13), draw.randrange(1, 29)
        return draw.choice(["%d.%02d" % (draw.randrange(1000), draw.randrange(100)), "%04d-%02d-%02d" % date,
                            "%d" % draw.randrange(10 ** draw.randrange(1, 13)),
                            "%d:%02d" % (draw.randrange(24), draw.randrange(60)), "row", "total"])

    def row():
        return draw.choice([", ", " ", "\t"]).join(cell() for _ in range(6))

    return ["\n".join(row() for _ in range(100)) for _ in range(count)]


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
    parser.add_argument("--sequences", type=int, default=1000000)
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
    asked, numbers = list(questions(texts, options.sequences)), number_texts(300)
    with tempfile.TemporaryDirectory() as folder:
        verdicts = os.path.join(folder, "verdicts.txt")
        paths = {}
        for name, items in dict(input=texts, questions=asked, numbers=numbers).items():
            paths[name] = os.path.join(folder, name + ".jsonl")
            with open(paths[name], "w", encoding="utf-8") as file:
                for text in items:
                    file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        command = ["/usr/bin/time", "-f", "peak memory %M KiB", options.bench, "--verdicts", verdicts, "--words",
                   options.words]
        for name, path in paths.items():
            command += ["--" + name, path]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        ours = run.stdout
        with open(verdicts, encoding="utf-8") as file:
            found = file.read().split("\n")[:-1]
        with open(verdicts + ".questions", encoding="utf-8") as file:
            leaks = [line == "1" for line in file.read().split()]
    index = ours.split("index ")[1].split("\n")[0]
    ours = "".join(line + "\n" for line in ours.splitlines() if not line.startswith("index"))
    some = texts[:: max(1, len(texts) // 2000)]
    python = measure(some, split)
    known = sequences_of(asked)
    python["decontaminate"] = rate(some, lambda t: has_sequence(t, known))
    python["personal_data"] = rate(some, personal.find)
    python["numbers"] = rate(numbers, personal.find)
    for line in ours.splitlines():
        name, speed = line.split()[:2]
        print("%-20s %8.2f MB/s, Python %6.2f MB/s: %.0f times"
              % (name, float(speed), python[name], float(speed) / python[name]), flush=True)
    print("%d sequences of 13 words: index in %s, %s" % (len(known), index, run.stderr.strip()))
    wrong = sum(has_sequence(text, known) != leak for text, leak in zip(texts, leaks))
    print("%d documents have a question, %d are judged differently" % (sum(leaks), wrong))
    different, reasons = wrong, {}
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
