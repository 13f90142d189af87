"""MinHash deduplication as datatrove does it, in plain Python: the expected values of dedup_test.cpp.

  python3 make_minhash_cases.py            writes minhash_cases.json beside this file
  python3 make_minhash_cases.py speed FILE computes the signatures of a JSONL file; prints MB/s of text

Only the standard library. Words are split at white space. XXH32, XXH64 and MT19937 are written from
their specifications.
"""
import hashlib
import heapq
import json
import os
import random
import re
import struct
import sys
import time
import unicodedata

M32, M64, MERSENNE61 = (1 << 32) - 1, (1 << 64) - 1, (1 << 61) - 1


def rotl(x, r, bits):
    return ((x << r) | (x >> (bits - r))) & ((1 << bits) - 1)


def xxh64(data):
    p1, p2, p3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
    p4, p5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5

    def rnd(acc, lane):
        return rotl((acc + lane * p2) & M64, 31, 64) * p1 & M64

    at, n = 0, len(data)
    if n >= 32:
        acc = [(p1 + p2) & M64, p2, 0, -p1 & M64]
        while n - at >= 32:
            for i in range(4):
                acc[i] = rnd(acc[i], int.from_bytes(data[at + 8 * i : at + 8 * i + 8], "little"))
            at += 32
        h = sum(rotl(a, r, 64) for a, r in zip(acc, (1, 7, 12, 18))) & M64
        for a in acc:
            h = ((h ^ rnd(0, a)) * p1 + p4) & M64
    else:
        h = p5
    h = (h + n) & M64
    while n - at >= 8:
        h = (rotl(h ^ rnd(0, int.from_bytes(data[at : at + 8], "little")), 27, 64) * p1 + p4) & M64
        at += 8
    if n - at >= 4:
        h = (rotl(h ^ (int.from_bytes(data[at : at + 4], "little") * p1 & M64), 23, 64) * p2 + p3) & M64
        at += 4
    for byte in data[at:]:
        h = rotl(h ^ (byte * p5 & M64), 11, 64) * p1 & M64
    h = (h ^ (h >> 33)) * p2 & M64
    h = (h ^ (h >> 29)) * p3 & M64
    return h ^ (h >> 32)


def xxh32(data):
    p1, p2, p3, p4, p5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    at, n = 0, len(data)
    if n >= 16:
        acc = [(p1 + p2) & M32, p2, 0, -p1 & M32]
        while n - at >= 16:
            for i in range(4):
                lane = int.from_bytes(data[at + 4 * i : at + 4 * i + 4], "little")
                acc[i] = rotl((acc[i] + lane * p2) & M32, 13, 32) * p1 & M32
            at += 16
        h = sum(rotl(a, r, 32) for a, r in zip(acc, (1, 7, 12, 18))) & M32
    else:
        h = p5
    h = (h + n) & M32
    while n - at >= 4:
        h = rotl((h + int.from_bytes(data[at : at + 4], "little") * p3) & M32, 17, 32) * p4 & M32
        at += 4
    for byte in data[at:]:
        h = rotl((h + byte * p5) & M32, 11, 32) * p1 & M32
    h = (h ^ (h >> 15)) * p2 & M32
    h = (h ^ (h >> 13)) * p3 & M32
    return h ^ (h >> 16)


class MersenneTwister:
    """MT19937 with init_genrand."""

    def __init__(self, seed):
        self.state = [seed & M32]
        for i in range(1, 624):
            self.state.append((1812433253 * (self.state[-1] ^ (self.state[-1] >> 30)) + i) & M32)
        self.at = 624

    def next32(self):
        s = self.state
        if self.at == 624:
            for i in range(624):
                y = (s[i] & 0x80000000) | (s[(i + 1) % 624] & 0x7FFFFFFF)
                s[i] = s[(i + 397) % 624] ^ (y >> 1) ^ (0x9908B0DF if y & 1 else 0)
            self.at = 0
        y = s[self.at]
        self.at += 1
        y ^= y >> 11
        y ^= (y << 7) & 0x9D2C5680
        y ^= (y << 15) & 0xEFC60000
        return y ^ (y >> 18)

    def between(self, low, high):
        """NumPy's legacy randint(low, high) of 64 bits."""
        while True:
            value = ((self.next32() << 32) | self.next32()) & MERSENNE61
            if value <= high - 1 - low:
                return value + low


MARKS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
OTHERS = (
    "AB B4 BB 2013 2014 2019 201C 201D 201E 2026 2236 2501 25BA 3001 3002 3008 3009 300A 300B 300C "
    "300D 3010 3011 FF01 FF05 FF08 FF09 FF0C FF0E FF11 FF1A FF1B FF1F FF5E"
)
TO_SPACE = {ord(c): " " for c in MARKS}
TO_SPACE.update({int(c, 16): " " for c in OTHERS.split()})
for first, last in ((0, 8), (11, 31), (127, 159)):
    TO_SPACE.update({c: " " for c in range(first, last + 1)})
NUMBER = re.compile("\\d+(?:[.,\u060C\u066B\u2396\u2397\u2398]\\d+)?")  # \d: category Nd


def simplify(text):
    text = NUMBER.sub("0", text.lower()).translate(TO_SPACE)
    text = re.sub(r"\s+", " ", text.strip())
    text = unicodedata.normalize("NFD", text)
    return "".join(c for c in text if unicodedata.category(c) != "Mn").strip()


class Shape:
    def __init__(self, words=5, bands=14, rows=8, bits=64, hash="xxhash"):
        self.words, self.bands, self.rows, self.bits, self.hash = words, bands, rows, bits, hash
        twister = MersenneTwister(1)
        self.a = [twister.between(1, MERSENNE61) for _ in range(bands * rows)]
        self.b = [twister.between(0, MERSENNE61) for _ in range(bands * rows)]

    def shingle(self, text):
        data = text.encode()
        if self.hash == "sha1":
            return int.from_bytes(hashlib.sha1(data).digest()[: self.bits // 8], "little")
        return xxh32(data) if self.bits == 32 else xxh64(data)

    def signature(self, text):
        words = simplify(text).split()
        shingles = {
            self.shingle(" ".join(words[i : i + self.words]))
            for i in range(len(words) - self.words + 1)
        }
        if not shingles:
            return None
        mask = M32 if self.bits == 32 else M64
        values = [
            min((a * x + b & M64) % MERSENNE61 & mask for x in shingles)
            for a, b in zip(self.a, self.b)
        ]
        return [tuple(values[i : i + self.rows]) for i in range(0, len(values), self.rows)]

    def record(self, values, document):
        return struct.pack("<%d%sI" % (self.rows, "I" if self.bits == 32 else "Q"), *values, document)


def chain(shape, tasks):
    """Texts of each task -> (files of signatures[task][band], dups[band], remove[task], sizes[task])."""
    records = [[[] for _ in range(shape.bands)] for _ in tasks]
    for task, texts in enumerate(tasks):
        for document, text in enumerate(t for t in texts if t):
            for band, values in enumerate(shape.signature(text) or []):
                records[task][band].append((values, document))
    for task in records:
        for band in task:
            band.sort()
    dups = []
    for band in range(shape.bands):
        streams = [
            [(values, task, document) for values, document in records[task][band]]
            for task in range(len(tasks))
        ]
        last, pairs = None, []
        for item in heapq.merge(*streams):
            if last is not None and last[0] == item[0]:
                pairs.append((last[1], last[2], item[1], item[2]))
            last = item
        dups.append(pairs)
    parent, size = {}, {}

    def root(x):
        while parent.setdefault(x, x) != x:
            x = parent[x]
        return x

    for pairs in dups:
        for f1, d1, f2, d2 in pairs:
            a, b = root((f1, d1)), root((f2, d2))
            if a != b:
                if size.get(a, 1) < size.get(b, 1):
                    a, b = b, a
                parent[b] = a
                size[a] = size.get(a, 1) + size.get(b, 1)
    remove, sizes = [b""] * len(tasks), [b""] * len(tasks)
    for node in sorted(parent):
        if root(node) != node:
            remove[node[0]] += struct.pack("<I", node[1])
        sizes[node[0]] += struct.pack("<2I", node[1], size[root(node)])
    signatures = [
        [b"".join(shape.record(*record) for record in band) for band in task] for task in records
    ]
    return signatures, [b"".join(struct.pack("<4I", *p) for p in d) for d in dups], remove, sizes


WORDS = (
    "The of and to in Network größer Über naïve Straße ΟΔΟΣ ΣΊΣΥΦΟΣ İstanbul Ångström déjà-vu 3,14 "
    "1.000.000 ٣٫٥ x² 東京、大阪 한국어 Приве́т ёлка i'm don’t ‘quoted’ “said” (see) [12] e.g. 50% "
    "C++ foo_bar a/b café cafe\u0301 ﬁne ½ Ⅻ १२३ ไทย नमस्ते עִבְרִית العَرَبِيَّة … — – - data model "
    "training token river mountain language words number seven lazy dog jumps over quick brown fox"
).split(" ")


def make_documents():
    """Files of documents with planted duplicates: edited copies, chains of edits, equal ones."""
    rng = random.Random(41)

    def text(words):
        pieces = []
        for word in words:
            pieces.append(word)
            pieces.append(rng.choice([" ", " ", " ", " ", " ", "\n", ", ", ". ", "  ", "\t", "\u00A0"]))
        return "".join(pieces)

    def draw(count):
        return [rng.choice(WORDS) + rng.choice(["", "", "", "ly", "s"]) for _ in range(count)]

    texts = []
    for _ in range(22):
        words = draw(rng.randint(30, 70))
        texts.append(text(words))
        for _ in range(rng.randint(0, 4)):
            copy = list(words)
            for _ in range(rng.randint(0, 3)):
                copy[rng.randrange(len(copy))] = rng.choice(WORDS) + "x"
            texts.append(text(copy))
    words = draw(60)
    for i in range(16):  # a chain: the ends share nothing
        texts.append(text(words))
        for _ in range(4):
            words = words[1:] + draw(1)
    texts += ["One and the same page, again and again: number %d." % i for i in range(30)]
    texts += [text(draw(rng.randint(1, 4))) for _ in range(8)] + ["", "", " \n", "...!?", "a b c d e"]
    rng.shuffle(texts)
    files = [[] for _ in range(5)]
    for i, one in enumerate(texts):
        files[rng.choice([0, 0, 1, 1, 1, 2, 3, 4])].append(one)
    return files


def assigned_ranges():
    ranges = []
    for c in range(sys.maxunicode + 1):
        if unicodedata.category(chr(c)) in ("Cn", "Cs", "Co"):
            continue
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    return ranges


def page_texts(ranges):
    """For each block of 4,096 characters: all of them, in three surroundings."""
    pages = {}
    for first, last in ranges:
        for c in range(first, last + 1):
            text = "%c q a\u03A3%c a\u03A3%ca %c\u03A3 1%c2 " % ((c,) * 5)
            pages[c >> 12] = pages.get(c >> 12, "") + text
    return pages


CASES = [
    "", " ", "Hello, World!", "ΑΣ ΑΣΑ Σ ΑΣ. ΑΣ'Α Α.Σ ªΣ ⅫΣ ʰΣ", "İI ıİ", "1.234,56 1,2,3 12 a1b2 ٣٫٥ १२.३४ 5.",
    "cafe\u0301 café ﬁ Å \u0301x y\u0301", "x \u0301 y", "\u0301", "a\u00a0b\u2003c\u3000d\u1680e\u2028f\x1cg\x85h",
    "tab\tnew\r\nline\x0bfeed\x0c", "‘a’ “b” «c» ・d・ e～f １２３ ｘ", "a\u302e\u0323\U0001d165\u0301b\u0f71\u302f",
    "한국어 각 \U0001F600\U0001F1EB\U0001F1EE", "ẞß ǅ Ǆ ﬀ", "\u1E9B\u0323 \u2126 \u212B \uFB1D \U0001D15E", "2²½Ⅻ٣",
]


def main():
    files = make_documents()
    chains = []
    for tasks, shape in (
        (5, {}),
        (2, {}),
        (7, {}),
        (5, {"hash": "sha1"}),
        (5, {"words": 1, "bands": 17, "rows": 15, "bits": 32}),
        (3, {"words": 3, "bands": 5, "rows": 3, "bits": 32, "hash": "sha1"}),
    ):
        texts = [sum(files[task::tasks], []) for task in range(tasks)]
        signatures, dups, remove, sizes = chain(Shape(**shape), texts)
        chains.append(
            {
                "tasks": tasks,
                "shape": shape,
                "signatures_sha256": [[hashlib.sha256(b).hexdigest()[:32] for b in t] for t in signatures],
                "dups": [d.hex() for d in dups],
                "remove": [r.hex() for r in remove],
                "sizes": [s.hex() for s in sizes],
            }
        )
    ranges = assigned_ranges()
    default = Shape()
    cases = {
        "a": [default.a[0], default.a[111]],
        "b": [default.b[0], default.b[111]],
        "x": xxh64(b"a b c d e"),
        "first_band": default.signature("a b c d e")[0],
        "hashes": [[n, xxh64(bytes(range(n))), xxh32(bytes(range(n)))] for n in range(100)],
        "normalized": [[c, simplify(c)] for c in CASES],
        "unicode": unicodedata.unidata_version,
        "assigned": sum(ranges, []),
        "pages": {
            str(page): "%016x" % xxh64(" ".join(simplify(text).split()).encode())
            for page, text in page_texts(ranges).items()
        },
        "files": files,
        "chains": chains,
    }
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "minhash_cases.json")
    with open(path, "w", encoding="ascii") as out:
        json.dump(cases, out, separators=(",", ":"))
        out.write("\n")


def speed(path):
    with open(path, encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    shape = Shape()
    start, done = time.perf_counter(), 0
    for text in texts:
        shape.signature(text)
        done += len(text.encode())
        if time.perf_counter() - start > 5:
            break
    print("%.4f MB/s" % (done / 1e6 / (time.perf_counter() - start)))


if __name__ == "__main__":
    speed(sys.argv[2]) if len(sys.argv) > 1 else main()
