#!/usr/bin/env python3
"""Kintsugi's tokenizers beside Hugging Face's, on the same text, on this machine.

    python3 bench/compare_tokenizers.py --kintsugi build/kintsugi --bench build/bench_tokenize --corpus corpus.txt

Needs Python 3.8 and the `tokenizers` package; takes less than three minutes. It
  1. trains a GPT-2 style vocabulary of 32,000 with both, on one thread and on all, and compares the merges;
  2. encodes with both on one thread, with a GPT-2 style and a Llama 3 style vocabulary (both trained by
     Kintsugi), and compares every id.

How it is made fair. The text is cut into documents of about 10 KB, after a line break between a visible
character and a letter, where no pre-tokenizer joins the sides. Hugging Face trains with
train_from_iterator over the documents, already in memory as Python strings; only that call is timed.
Kintsugi's time is that of the whole process, which reads the same documents as JSONL and writes the result.
Encoding: Hugging Face gets batches of 64 documents in encode_batch_fast (encode_batch where that is
missing), the ids are not fetched, and the better of two passes counts; Kintsugi's figure is the one that its
bench_tokenize prints for the same text (cut at line ends, the mean over as many passes as fit in its time). Each measurement of Hugging Face's library is a process of its own,
as its thread pool cannot change size.
"""
import argparse
import array
import json
import os
import re
import subprocess
import sys
import tempfile
import time

BATCH = 64
END = "<|endoftext|>"


# ---- in a process of their own: what runs Hugging Face's library


def worker_train(documents_file, output):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    with open(documents_file, encoding="utf-8") as file:
        documents = [json.loads(line)["text"] for line in file]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=32000,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    begin = time.perf_counter()
    tokenizer.train_from_iterator(documents, trainer)
    seconds = time.perf_counter() - begin
    tokenizer.save(output)
    return {"seconds": seconds}


def worker_encode(documents_file, tokenizer_file, output):
    from tokenizers import Tokenizer

    with open(documents_file, encoding="utf-8") as file:
        documents = [json.loads(line)["text"] for line in file]
    size = sum(len(text.encode("utf-8")) for text in documents)
    tokenizer = Tokenizer.from_file(tokenizer_file)
    method = "encode_batch_fast" if hasattr(tokenizer, "encode_batch_fast") else "encode_batch"
    encode = getattr(tokenizer, method)
    best = None
    for _ in range(2):
        begin = time.perf_counter()
        for first in range(0, len(documents), BATCH):
            encode(documents[first : first + BATCH], add_special_tokens=False)
        seconds = time.perf_counter() - begin
        best = seconds if best is None else min(best, seconds)
    ids = array.array("i")
    wrong = None  # the first document that does not come back as it was
    for first in range(0, len(documents), BATCH):
        batch = documents[first : first + BATCH]
        for number, encoding in enumerate(encode(batch, add_special_tokens=False)):
            ids.extend(encoding.ids)
            if wrong is None and tokenizer.decode(encoding.ids, skip_special_tokens=False) != batch[number]:
                wrong = first + number
    with open(output, "wb") as file:
        ids.tofile(file)
    return {"seconds": best, "bytes": size, "method": method, "tokens": len(ids), "not_round_trip": wrong}


# ---- the comparison


class Clock:
    def __init__(self, limit):
        self.end = time.monotonic() + limit

    def left(self):
        return self.end - time.monotonic()


def run(command, clock, environment=None, text=None):
    """Standard output and seconds; None and the reason when it fails or the time is up."""
    if clock.left() < 1:
        return None, "no time left"
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=clock.left(),
            env=dict(os.environ, **(environment or {})),
        )
    except subprocess.TimeoutExpired:
        return None, "no time left"
    except OSError as error:
        return None, str(error)
    seconds = time.perf_counter() - begin
    if done.returncode != 0:
        text = (done.stderr.decode("utf-8", "replace") or done.stdout.decode("utf-8", "replace")).strip()
        return None, "exit {}: {}".format(done.returncode, text.splitlines()[-1] if text else "")
    return done.stdout, seconds


def run_worker(arguments, clock, threads):
    environment = {"TOKENIZERS_PARALLELISM": "true" if threads != 1 else "false"}
    environment["RAYON_NUM_THREADS"] = str(threads)  # 0: all
    output, info = run([sys.executable, os.path.abspath(__file__), "--worker"] + arguments, clock, environment)
    if output is None:
        return None, info
    return json.loads(output.decode().splitlines()[-1]), None


def documents_of(text):
    """Pieces of about 10 KB, cut after a line break between a visible character and a letter."""
    cuts = [match.start() + 2 for match in re.finditer(r"\S\n(?=[A-Za-z])", text)]
    documents, begin = [], 0
    for cut in cuts:
        if cut - begin >= 10000:
            documents.append(text[begin:cut])
            begin = cut
    if begin < len(text):
        documents.append(text[begin:])
    return documents


def write_corpus(corpus, megabytes, folder, name):
    """The front of the corpus as JSONL of documents and as plain text; paths and bytes."""
    with open(corpus, "rb") as file:
        text = file.read(int(megabytes * 1e6)).decode("utf-8", "ignore")
    text = text.replace("\0", "").replace(END, "")
    lines = os.path.join(folder, name + ".jsonl")
    plain = os.path.join(folder, name + ".txt")
    documents = documents_of(text)
    with open(lines, "w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
    with open(plain, "wb") as file:
        file.write(text.encode("utf-8"))
    return lines, plain, os.path.getsize(plain), len(documents)


def train_ours(kintsugi, lines, output, style, threads, clock):
    return run(
        [kintsugi, "data", "train-tokenizer", "--input", lines, "--vocab", "32000", "--output", output]
        + ["--pre-tokenizer", style, "--special", END, "--min-frequency", "2"]
        + ["--threads", str(threads), "--overwrite"],
        clock,
    )


def model_of(path):
    with open(path, encoding="utf-8") as file:
        model = json.load(file)["model"]
    merges = [tuple(m.split(" ", 1)) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    return model["vocab"], merges


def compare_models(ours, theirs):
    our_vocabulary, our_merges = model_of(ours)
    their_vocabulary, their_merges = model_of(theirs)
    for number, (our, their) in enumerate(zip(our_merges, their_merges)):
        if our != their:
            return "DIFFERENT from merge {} on: ours {}, theirs {}".format(number, our, their)
    if len(our_merges) != len(their_merges):
        return "DIFFERENT: {} merges, theirs {}".format(len(our_merges), len(their_merges))
    if our_vocabulary != their_vocabulary:
        return "the merges are identical, the ids are DIFFERENT"
    return "identical: {} merges, {} ids".format(len(our_merges), len(our_vocabulary))


def training(options, corpus, folder, clock):
    lines, _, size, count = corpus
    print("1. Training, GPT-2 style, 32,000 tokens, {:.1f} MB in {} documents".format(size / 1e6, count))
    print("   {:<10}{:>14}{:>18}{:>10}".format("threads", "Kintsugi", "Hugging Face", "ratio"))
    theirs = os.path.join(folder, "theirs.json")
    identical = None
    for threads, label in ((0, "all"), (1, "1")):
        ours_folder = os.path.join(folder, "gpt2")
        output, our_seconds = train_ours(options.kintsugi, lines, ours_folder, "gpt2", threads, clock)
        if output is None:
            print("   kintsugi data train-tokenizer: {}".format(our_seconds))
            return False
        result, reason = run_worker(["train", lines, theirs], clock, threads)
        if result is None:
            print("   Hugging Face on {} threads: {}".format(label, reason))
            continue
        print(
            "   {:<10}{:>12.2f} s{:>16.2f} s{:>10.2f}".format(
                label, our_seconds, result["seconds"], result["seconds"] / our_seconds
            )
        )
        verdict = compare_models(os.path.join(ours_folder, "tokenizer.json"), theirs)
        print("   merges on {} thread{}: {}".format(label, "" if threads == 1 else "s", verdict))
        identical = identical is not False and verdict.startswith("identical")
    return identical is True


def our_speed(bench, tokenizer, plain, clock):
    """MB/s and the line that said so."""
    output, info = run([bench, "--tokenizer", tokenizer, "--input", plain, "--threads", "1"], clock)
    if output is None:
        return None, info
    text = output.decode("utf-8", "replace")
    found = re.findall(r"([\d.]+)\s*MB/s", text)
    return (float(found[-1]), text.strip()) if found else (None, "no MB/s in: " + text.strip()[:200])


def our_ids(options, tokenizer, lines, clock):
    """Through `kintsugi data encode`: a JSON string per line in, a JSON array per line out."""
    with open(lines, encoding="utf-8") as file:
        text = "".join(json.dumps(json.loads(line)["text"]) + "\n" for line in file).encode()
    output, info = run([options.kintsugi, "data", "encode", "--tokenizer", tokenizer], clock, None, text)
    if output is None:
        return None, info
    ids = array.array("i")
    for line in output.splitlines():
        ids.extend(json.loads(line))
    return ids, None


def compare_ids(ours, file):
    theirs = array.array("i")
    with open(file, "rb") as handle:
        theirs.frombytes(handle.read())
    if ours == theirs:
        return "identical: {} ids".format(len(ours))
    for place, (our, their) in enumerate(zip(ours, theirs)):
        if our != their:
            near = slice(max(0, place - 3), place + 4)
            return "DIFFERENT at id {}: ours {}, theirs {}".format(place, list(ours[near]), list(theirs[near]))
    return "DIFFERENT: {} ids, theirs {}".format(len(ours), len(theirs))


def encoding(options, training_lines, folder, clock):
    lines, plain, size, count = write_corpus(options.corpus, options.encode_mb, folder, "encode")
    print("\n2. Encoding on one thread, {:.1f} MB in {} documents".format(size / 1e6, count))
    print("   {:<10}{:>14}{:>18}{:>10}   {}".format("style", "Kintsugi", "Hugging Face", "ratio", "ids"))
    good = True
    for style in ("gpt2", "llama3"):
        tokenizer = os.path.join(folder, style)
        if not os.path.exists(os.path.join(tokenizer, "tokenizer.json")):
            output, info = train_ours(options.kintsugi, training_lines, tokenizer, style, 0, clock)
            if output is None:
                print("   {}: kintsugi data train-tokenizer: {}".format(style, info))
                good = False
                continue
        file = os.path.join(folder, style + ".ids")
        theirs, reason = run_worker(["encode", lines, os.path.join(tokenizer, "tokenizer.json"), file], clock, 1)
        speed, line = our_speed(options.bench, tokenizer, plain, clock)
        if theirs is None or speed is None:
            print("   {}: {}".format(style, reason if theirs is None else line))
            good = False
            continue
        ids, reason = our_ids(options, tokenizer, lines, clock)
        verdict = "kintsugi data encode: {}".format(reason) if ids is None else compare_ids(ids, file)
        their_speed = theirs["bytes"] / theirs["seconds"] / 1e6
        print(
            "   {:<10}{:>9.1f} MB/s{:>13.1f} MB/s{:>10.2f}   {} ({})".format(
                style, speed, their_speed, speed / their_speed, verdict, theirs["method"]
            )
        )
        if theirs["not_round_trip"] is not None:
            print("   {}: document {} does not come back as it was".format(style, theirs["not_round_trip"]))
            good = False
        good = good and verdict.startswith("identical")
    return good


def main():
    if sys.argv[1:2] == ["--worker"]:
        work = {"train": worker_train, "encode": worker_encode}[sys.argv[2]]
        print(json.dumps(work(*sys.argv[3:])))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kintsugi", required=True, help="our binary")
    parser.add_argument("--bench", required=True, help="our bench_tokenize")
    parser.add_argument("--corpus", required=True, help="a text file")
    parser.add_argument("--train-mb", type=float, default=50, help="of the corpus to train on")
    parser.add_argument("--encode-mb", type=float, default=10, help="of the corpus to encode")
    parser.add_argument("--seconds", type=float, default=170, help="stop after this time")
    options = parser.parse_args()
    for path in (options.kintsugi, options.bench, options.corpus):
        if not os.path.isfile(path):
            parser.error("there is no file {}".format(path))
    options.kintsugi, options.bench = os.path.abspath(options.kintsugi), os.path.abspath(options.bench)
    try:
        import tokenizers
    except ImportError:
        parser.error("the Python package `tokenizers` is missing")
    print("tokenizers {}, {} processors\n".format(tokenizers.__version__, os.cpu_count()))
    clock = Clock(options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(options.corpus, options.train_mb, folder, "train")
        trained = training(options, corpus, folder, clock)
        encoded = encoding(options, corpus[0], folder, clock)
    print("\n{}".format("all identical" if trained and encoded else "NOT all identical, see above"))
    return 0 if trained and encoded else 1


if __name__ == "__main__":
    sys.exit(main())
