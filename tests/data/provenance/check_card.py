"""Checks a data card against the files that it describes, independently of the program.

Usage: check_card.py CARD   (run where the paths of inputs.csv are valid; files of documents that
are gzip or plain JSONL are counted again)
"""
import csv
import gzip
import hashlib
import json
import os
import re
import sys

card = sys.argv[1]
croissant = json.load(open(os.path.join(card, "croissant.json"), encoding="utf-8"))

# docs/croissant-spec-1.1.md, "Required" and the tables of FileObject and FileSet.
for member in ("@context", "@type", "dct:conformsTo", "description", "license", "name", "url",
               "creator", "datePublished", "distribution"):
    assert member in croissant, member
assert croissant["@type"] == "sc:Dataset"
assert croissant["dct:conformsTo"] == "http://mlcommons.org/croissant/1.1"
assert croissant["creator"]["@type"] in ("Organization", "Person")
prefixes = {name for name, value in croissant["@context"].items() if isinstance(value, str)}


def digest(path):
    return hashlib.sha256(open(path, "rb").read()).hexdigest()


ids, documents, text_bytes, domains = set(), 0, 0, {}
for item in croissant["distribution"]:
    assert item["@id"] not in ids, item["@id"]
    ids.add(item["@id"])
    if item["@type"] == "cr:FileSet":
        assert item["includes"] and item["encodingFormat"]
        assert all(one["@id"] in ids for one in item["containedIn"])
        continue
    assert item["@type"] == "cr:FileObject"
    path = os.path.join(card, item["contentUrl"])
    assert item["contentSize"] == f"{os.path.getsize(path)} B", path
    assert item["sha256"] == digest(path), path
    if item["encodingFormat"] not in ("application/gzip", "application/jsonlines"):
        continue
    opened = gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else \
        open(path, encoding="utf-8")
    for line in opened:
        record = json.loads(line)
        size = len(record["text"].encode())
        documents += 1
        text_bytes += size
        if "url" in record:
            labels = re.match(r"https?://([^/]*)", record["url"]).group(1).split(".")
            count = 3 if labels[-1] == "uk" else 2
            domain = ".".join(labels[-count:])
            before = domains.get(domain, (0, 0))
            domains[domain] = (before[0] + 1, before[1] + size)

fields = {}
for records in croissant.get("recordSet", []):
    assert records["@type"] == "cr:RecordSet"
    for field in records["field"]:
        assert field["@type"] == "cr:Field" and field["@id"] not in ids
        ids.add(field["@id"])
        assert field["source"]["fileSet"]["@id"] in ids
        fields[field["source"]["extract"]["column"]] = field["dataType"]
for member in croissant["prov:wasDerivedFrom"]:
    assert member["@type"] == "prov:Entity" and member["prov:label"]
for key in ("prov", "cr", "sc", "dct"):
    assert key in prefixes

inputs = list(csv.DictReader(open(os.path.join(card, "inputs.csv"), encoding="utf-8")))
for row in inputs:
    if row["state"] == "there":
        assert int(row["bytes"]) == os.path.getsize(row["file"]), row
        assert row["sha256"] == digest(row["file"]), row

top = sorted(domains.items(), key=lambda one: (-one[1][1], one[0]))
top = top[:(len(top) + 9) // 10]
if domains:
    rows = list(csv.DictReader(open(os.path.join(card, "domains.csv"), encoding="utf-8")))
    assert [(row["domain"], int(row["documents"]), int(row["bytes"])) for row in rows] == \
        [(name, *count) for name, count in top], (rows, top)

print(json.dumps({"documents": documents, "bytes": text_bytes, "domains": len(domains),
                  "inputs": len(inputs), "fields": fields,
                  "sources": sorted(one["prov:label"] for one in croissant["prov:wasDerivedFrom"])}))
