#!/usr/bin/env python3
"""Writes small fastText models of every kind, and language_cases.json: what fastText predicts.

File format and predictions from their definition (docs/curation.md), in double precision.
"""
import json
import math
import os
import random
import re
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
random.seed(7)
MASK = (1 << 32) - 1


def fnv(data):
    value = 2166136261
    for byte in data:
        value = ((value ^ ((byte - 256 if byte > 127 else byte) & MASK)) * 16777619) & MASK
    return value


def signed(value):
    return value - (1 << 32) if value >> 31 else value


class Model:
    def __init__(self, name, labels, words, dim, loss, bucket, min_n, max_n, word_ngrams=1, keep=None,
                 quantized=None, version=12):
        self.__dict__.update(locals())
        self.counts = sorted((random.randint(1, 60) for _ in labels), reverse=True)
        if name == "ties":
            self.counts = [5] * len(labels)
        rows = len(words) + (bucket if keep is None else len(keep))
        self.input = self.matrix(rows, quantized and quantized["input"])
        self.output = self.matrix(len(labels), quantized and quantized["output"])

    def matrix(self, rows, code):
        """Values of a matrix, and its bytes. code: width of a code, whether norms are apart."""
        def real(scale=1):
            return struct.unpack("f", struct.pack("f", random.uniform(-scale, scale)))[0]
        if not code:
            values = [[real() for _ in range(self.dim)] for _ in range(rows)]
            return values, struct.pack("<?qq", False, rows, self.dim) + b"".join(
                struct.pack(f"<{self.dim}f", *row) for row in values)
        width, norms = code
        parts = [min(width, self.dim - k) for k in range(0, self.dim, width)]
        centroids = [[[real() for _ in range(part)] for _ in range(256)] for part in parts]
        codes = [[random.randrange(256) for _ in parts] for _ in range(rows)]
        norm_values, norm_codes = [abs(real(2)) for _ in range(256)], [random.randrange(256) for _ in range(rows)]
        values = [[x * (norm_values[norm_codes[r]] if norms else 1) for k in range(len(parts)) for x in centroids[k][codes[r][k]]]
                  for r in range(rows)]
        data = struct.pack("<??qqi", True, norms, rows, self.dim, rows * len(parts)) + b"".join(bytes(c) for c in codes)
        data += struct.pack("<4i", self.dim, len(parts), width, parts[-1])
        data += b"".join(struct.pack(f"<{len(c)}f", *c) for part in centroids for c in part)
        if norms:
            data += bytes(norm_codes) + struct.pack("<4i", 1, 1, 1, 1) + struct.pack("<256f", *norm_values)
        return values, data

    def file(self):
        data = struct.pack("<14id", 793712314, self.version, self.dim, 5, 5, 1, 5, self.word_ngrams, self.loss, 3,
                           self.bucket, self.min_n, self.max_n, 100, 1e-4)
        data += struct.pack("<3iqq", len(self.words) + len(self.labels), len(self.words), len(self.labels), 1000,
                            -1 if self.keep is None else len(self.keep))
        for word in self.words:
            data += word.encode() + struct.pack("<Bqb", 0, 3, 0)
        for label, count in zip(self.labels, self.counts):
            data += f"__label__{label}".encode() + struct.pack("<Bqb", 0, count, 1)
        for bucket, row in (self.keep or {}).items():
            data += struct.pack("<2i", bucket, row)
        return data + self.input[1] + self.output[1]

    # ---- features
    def bucket_rows(self, value):
        value %= self.bucket
        if self.keep is None:
            return [len(self.words) + value]
        return [len(self.words) + self.keep[value]] if value in self.keep else []

    def subwords(self, word):
        if word == "</s>" or self.max_n == 0 or self.version == 11:
            return []
        rows, marked = [], f"<{word}>"
        for begin in range(len(marked)):
            for n in range(self.min_n, self.max_n + 1):
                end = begin + n
                if end > len(marked) or (n == 1 and (begin == 0 or end == len(marked))):
                    continue
                rows += self.bucket_rows(fnv(marked[begin:end].encode()))
        return rows

    def rows(self, text):
        rows, hashes = [], []
        for word in re.findall("[^ \n\r\t\v\f\0]+", text) + ["</s>"]:
            if word.startswith("__label__"):
                continue
            rows += ([self.words.index(word)] if word in self.words else []) + self.subwords(word)
            hashes.append(signed(fnv(word.encode())))
            if word == "</s>":
                break
        for i in range(len(hashes)):
            value = hashes[i]
            for j in range(i + 1, min(len(hashes), i + self.word_ngrams)):
                value = (value * 116049371 + hashes[j]) % (1 << 64)
                rows += self.bucket_rows(value)
        return rows

    # ---- probabilities
    def predict(self, text):
        rows = self.rows(text)
        if not rows:
            return "", 0
        hidden = [sum(self.input[0][r][k] for r in rows) / len(rows) for k in range(self.dim)]
        dots = [sum(a * b for a, b in zip(row, hidden)) for row in self.output[0]]
        if self.loss == 1:
            scores = self.tree_scores(dots)
        elif self.loss == 3:
            total = sum(math.exp(d) for d in dots)
            scores = [math.log(math.exp(d) / total + 1e-5) for d in dots]
        else:
            table = [1 / (1 + math.exp(-(int((d + 8) * 32) / 32 - 8))) for d in dots]
            scores = [math.log(p + 1e-5) for p in table]
        order = sorted(range(len(scores)), key=lambda i: scores[i])
        if len(order) > 1 and scores[order[-1]] - scores[order[-2]] < 1e-4:
            return None  # rounding decides
        return self.labels[order[-1]], math.exp(scores[order[-1]])

    def tree_scores(self, dots):
        """Huffman's tree: the two lowest are merged; of equal ones a merged one is taken first."""
        n = len(self.labels)
        open_nodes = [(count, 1, -leaf, leaf) for leaf, count in enumerate(self.counts)]  # the last label first
        parent = {}
        for inner in range(n - 1):
            pair = []
            for side in (0, 1):
                open_nodes.sort()
                node = open_nodes.pop(0)
                parent[node[3]] = (n + inner, side)
                pair.append(node[0])
            open_nodes.append((sum(pair), 0, n + inner, n + inner))
        scores = []
        for leaf in range(n):
            score, node = 0, leaf
            while node in parent:
                node, side = parent[node]
                f = 1 / (1 + math.exp(-dots[node - n]))
                score += math.log((f if side else 1 - f) + 1e-5)
            scores.append(score)
        return scores


LABELS = ["fi", "sv", "de", "nld_Latn", "fr", "el", "ja"]
WORDS = ["</s>", "ja", "och", "der", "ïé", "日本"]
MODELS = [
    Model("softmax", LABELS, WORDS, 5, 3, 50, 1, 4),
    Model("tree", LABELS, WORDS, 4, 1, 40, 2, 4),
    Model("ties", LABELS, WORDS, 4, 1, 40, 2, 3),
    Model("words", LABELS, WORDS, 6, 3, 30, 0, 0, word_ngrams=3),
    Model("ngrams_of_words", LABELS[:3], WORDS[1:], 3, 3, 30, 3, 3, word_ngrams=2),
    Model("one_vs_all", LABELS, WORDS, 5, 4, 50, 1, 3),
    Model("negative_sampling", LABELS, WORDS[:1], 5, 2, 50, 2, 2),
    Model("old", LABELS, WORDS, 5, 3, 20, 2, 3, version=11),
    Model("one_label", ["xx"], WORDS, 3, 1, 20, 2, 3),
    Model("quantized", LABELS, WORDS, 5, 3, 30, 1, 4, quantized={"input": (2, True), "output": (2, False)}),
    Model("quantized_input", LABELS, WORDS, 4, 1, 30, 2, 4, quantized={"input": (2, False), "output": None}),
    Model("pruned", LABELS, WORDS, 4, 3, 100, 1, 3, keep={b: i for i, b in enumerate(random.sample(range(100), 30))},
          quantized={"input": (3, True), "output": None}),
    Model("pruned_all", LABELS, WORDS, 4, 3, 100, 1, 3, keep={}, quantized={"input": (4, False), "output": (1, True)}),
]

TEXTS = ["", " ", "\n", "ja", "och der", "ïé ïé", "日本 日本語", "</s>", "ja </s> och", "__label__fi", "__label__fi ja __label__unknown",
         "a", "ab\tcd\nef\r\v\fgh", "x\0y", "Straße größer", "Ελληνικά κείμενο", "😀 😀😀", "ja, och. der!"]
while len(TEXTS) < 40:
    TEXTS.append(" ".join("".join(random.choice("abcdeäöüé日本ελx") for _ in range(random.randint(1, 7))) for _ in range(random.randint(1, 8))))

cases = []
for model in MODELS:
    with open(os.path.join(HERE, f"language_{model.name}.bin"), "wb") as file:
        file.write(model.file())
    for text in TEXTS:
        found = model.predict(text)
        if found is not None:
            cases.append({"model": model.name, "text": text, "label": found[0], "probability": round(found[1], 7)})
with open(os.path.join(HERE, "language_cases.json"), "w") as file:
    file.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases) + "\n]\n")
print(len(cases), "cases")
