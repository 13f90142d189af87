#!/usr/bin/env python3
"""Reads the TensorBoard files of a run with two readers and compares all values with metrics.jsonl.

    python3 tests/data/read_tensorboard.py runs/demo            # needs the package tensorboard
    python3 tests/data/read_tensorboard.py runs/demo --own-only # only the parser in this file

The first reader is TensorBoard's own EventAccumulator, the second one is the parser below, which
checks every checksum. Ends with an error if a value is missing, superfluous or differs from
metrics.jsonl by more than its rounding to fp32. Prints what was compared.
"""
import argparse
import json
import math
import pathlib
import struct
import sys

TAGS = {"tokens": "train/tokens", "targets": "train/targets", "loss": "train/loss",
        "z_loss": "train/z_loss", "reward_chosen": "train/reward_chosen",
        "reward_rejected": "train/reward_rejected", "reward_margin": "train/reward_margin",
        "reward_accuracy": "train/reward_accuracy", "grad_norm": "train/grad_norm",
        "lr": "train/lr", "loss_scale": "train/loss_scale", "batch": "train/batch",
        "step_time_s": "speed/step_time_s", "data_wait_s": "speed/data_wait_s",
        "tokens_per_s": "speed/tokens_per_s", "mfu": "speed/mfu",
        "mfu_full_attention": "speed/mfu_full_attention", "comm_busy_s": "speed/comm_busy_s",
        "comm_wait_s": "speed/comm_wait_s", "comm_bytes": "speed/comm_bytes",
        "memory_bytes": "memory/bytes", "energy_j": "energy/step_j", "energy_gpu_j": "energy/gpu_j",
        "energy_node_j": "energy/node_j", "power_w": "energy/power_w", "valid_loss": "valid/loss",
        "valid_bits_per_byte": "valid/bits_per_byte", "valid_accuracy": "valid/accuracy",
        "valid_macro_f1": "valid/macro_f1", "valid_micro_f1": "valid/micro_f1",
        "valid_reward_accuracy": "valid/reward_accuracy"}
WITHOUT_TAG = {"step", "seq", "time_s", "energy_scope", "skipped", "stage", "energy_since_launch"}


# ---- the parser: TFRecord frames with Event messages

def crc32c_table():
    table = []
    for i in range(256):
        for _ in range(8):
            i = (i >> 1) ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    return table


def masked_crc(data, table=crc32c_table()):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frames(data, name):
    at = 0
    while at < len(data):
        (length, checksum), body = struct.unpack_from("<QI", data, at), at + 12
        assert checksum == masked_crc(data[at:at + 8]), f"{name}, byte {at}: checksum of the length"
        at = body + length + 4
        assert at <= len(data), f"{name}: the last record is not complete"
        event = data[body:body + length]
        (checksum,) = struct.unpack_from("<I", data, body + length)
        assert checksum == masked_crc(event), f"{name}, byte {body}: checksum of the record"
        yield event


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            size = {1: 8, 5: 4}[kind]
            value, at = struct.unpack("<d" if size == 8 else "<f", data[at:at + size])[0], at + size
        yield key >> 3, value


def own_reader(folder):
    """{tag: {step: value}}; a session that starts at a step replaces the points from there on."""
    points = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in frames(path.read_bytes(), path.name):
            parts = dict(fields(event))
            step = parts.get(2, 0)
            if 7 in parts and dict(fields(parts[7])).get(1) == 1:  # SessionLog.START
                for series in points.values():
                    for one in [s for s in series if s >= step]:
                        del series[one]
            for number, value in fields(parts.get(5, b"")):
                scalar = dict(fields(value))
                points.setdefault(scalar[1].decode(), {})[step] = scalar.get(2, 0.0)
    return points


def package_reader(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: {e.step: e.value for e in accumulator.Scalars(tag)}
            for tag in accumulator.Tags()["scalars"]}


# ---- what metrics.jsonl says

def records_of(path):
    """The newest record of each step; a run that went back has given up the later ones."""
    records = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        for step in [s for s in records if s >= record["step"]]:
            del records[step]
        records[record["step"]] = record
    return records


def values_of(record, before):
    unknown = set(record) - set(TAGS) - WITHOUT_TAG - {"straggler", "valid", "eval"}
    assert not unknown, f"metrics.jsonl has keys that this script does not know: {sorted(unknown)}"
    values = {TAGS[key]: value for key, value in record.items() if key in TAGS}
    if "straggler" in record:
        values["speed/straggler_ratio"] = record["straggler"]["ratio"]
    for name, scores in record.get("valid", {}).items():
        values[f"valid/loss/{name}"] = scores["loss"]
        values[f"valid/bits_per_byte/{name}"] = scores["bits_per_byte"]
    for one in record.get("eval", []):
        values[f"eval/{one['task']}/{one['metric']}"] = one["value"]
    tokens = record["tokens"] - before
    joules = record.get("energy_j")
    values["energy/j_per_token"] = joules / tokens if joules is not None and tokens > 0 else None
    return values


def as_fp32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def differs(stored, expected):
    if expected is None:  # JSON has no NaN and no infinity
        return stored is not None and math.isfinite(stored)
    if stored is None:
        return True
    # Derived values are rounded once more before they are stored.
    return abs(stored - as_fp32(expected)) > 2e-7 * abs(expected)


def compare(points, records, reader):
    left = {(tag, step) for tag, series in points.items() for step in series}
    problems, count, before = [], 0, 0
    for step in sorted(records):
        first = step - 1 not in records
        for tag, expected in values_of(records[step], before).items():
            if tag == "energy/j_per_token" and first and step > 1:
                left.discard((tag, step))  # the tokens of the step are not known
                continue
            stored = points.get(tag, {}).get(step)
            left.discard((tag, step))
            count += stored is not None
            if differs(stored, expected):
                problems.append(f"{tag}, step {step}: {stored} instead of {expected}")
        before = records[step]["tokens"]
    problems += [f"{tag}, step {step}: not in metrics.jsonl" for tag, step in sorted(left)]
    print(f"{reader}: {count} values of {len(points)} tags in {len(records)} steps, "
          f"{len(problems)} problems")
    for problem in problems[:20]:
        print("  " + problem)
    return not problems and count > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--own-only", action="store_true", help="without the package tensorboard")
    arguments = parser.parse_args()
    records = records_of(arguments.run / "metrics.jsonl")
    folder = arguments.run / "tensorboard"
    own = own_reader(folder)
    good = compare(own, records, "own parser")
    if not arguments.own_only:
        package = package_reader(folder)
        good &= compare(package, records, "tensorboard")
        same = {t: s for t, s in own.items() if s} == {t: s for t, s in package.items() if s}
        print("both readers have", "the same points" if same else "different points")
        good &= same or any(math.isnan(v) for s in own.values() for v in s.values())
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
