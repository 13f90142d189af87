#!/usr/bin/env python3
"""Compares the loss of training in fp8 with that of bf16, in pairs of runs with the same seed.

  python3 bench/fp8_loss.py --kintsugi build-gpu/kintsugi --data DIR --out runs/fp8_loss

DIR has the token stores train and valid and the directory tokenizer (kintsugi data tokenize,
train-tokenizer). Both runs of a pair start from the same weights and read the same data in the same
order. A run that is complete in --out is not repeated: the same command continues the experiment.
Prints tables of losses and curves, and writes losses.csv to --out.
"""
import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import time

RECIPES = {"bf16": "none", "fp8": "rowwise"}
BLOCK = 100  # steps of a mean in the tables


def config(a, precision, seed):
    """A Llama of 171 M parameters with the vocabulary of 16,384 tokens."""
    data = a.data
    return (
        f"run: {{dir: {run_dir(a, precision, seed)}, seed: {seed}, tensorboard: false,\n"
        f"  prometheus: false}}\n"
        f"model: {{family: llama, vocab_size: 16384, hidden_size: 1024, layers: 12, heads: 16,\n"
        f"  kv_heads: 16, ffn_size: 2816, max_positions: 1024, tied: true}}\n"
        f"data: {{train: [{{path: {data}/train}}], valid: [{{path: {data}/valid}}],\n"
        f"  tokenizer: {data}/tokenizer, sequence_length: 1024}}\n"
        f"batch: {{global: 16, micro: 16}}\n"
        f"optimizer: {{lr: 6e-4, min_lr: 6e-5, schedule: cosine,\n"
        f"  warmup_steps: {min(100, a.steps // 2)}}}\n"
        f"train: {{steps: {a.steps}, eval_every: 250, eval_batches: 0, save: false,\n"
        f"  log_every: 100, precision: bf16, fp8: {{recipe: {RECIPES[precision]}}}}}\n"
        f"# {json.dumps(a.set)}\n")


def run_dir(a, precision, seed):
    return os.path.join(a.out, f"{precision}-{seed}")


def read_run(a, precision, seed):
    """The records by step, or None if the run is not complete."""
    folder = run_dir(a, precision, seed)
    try:
        with open(os.path.join(folder, "metrics.jsonl")) as file:
            records = {r["step"]: r for r in map(json.loads, file)}
        with open(folder + ".yaml") as file:
            if file.read() != config(a, precision, seed):
                raise SystemExit(f"error: {folder} has another configuration: use another --out")
    except (OSError, ValueError):  # not started, or killed in the middle of a line
        return None
    complete = len(records) == a.steps and "valid_loss" in records.get(a.steps, {})
    return records if complete else None


def train(a, precision, seed):
    folder = run_dir(a, precision, seed)
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    with open(folder + ".yaml", "w") as file:
        file.write(config(a, precision, seed))
    command = [a.kintsugi, "train", folder + ".yaml"]
    for item in a.set:
        command += ["--set", item]
    with open(folder + ".log", "w") as log:
        try:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
        except OSError as error:
            raise SystemExit(f"error: --kintsugi {a.kintsugi}: {error.strerror}")
    records = read_run(a, precision, seed)
    if code or records is None:
        with open(folder + ".log") as log:
            end = "".join(log.readlines()[-15:])
        what = f"exited with code {code}" if code else "left incomplete metrics"
        raise SystemExit(f"{end}error: {precision}, seed {seed}: kintsugi train {what}; its output "
                         f"is in {folder}.log")
    return records


def run_all(a):
    """Records of all runs by (precision, seed). Ends early if the time is not enough for a run."""
    begin, longest, runs = time.time(), 0, {}
    for seed in a.seeds:
        for precision in RECIPES:
            records = read_run(a, precision, seed)
            started = time.time()
            if records is None:
                if a.tables or (a.time_limit and started - begin + longest > a.time_limit):
                    print(f"{precision}, seed {seed}: not run", flush=True)
                    continue
                records = train(a, precision, seed)
                longest = max(longest, time.time() - started)
            runs[precision, seed] = records
            print(f"{precision}, seed {seed}: loss {last_loss(records):.4f}, "
                  f"validation {records[a.steps]['valid_loss']:.4f}, "
                  f"{time.time() - started:.0f} s", flush=True)
    return runs


def mean_loss(records, first, last):
    """Of the steps first to last. Steps that were skipped without a finite loss are left out."""
    losses = [records[s]["loss"] for s in range(first, last + 1) if records[s]["loss"] is not None]
    return statistics.mean(losses) if losses else float("nan")


def last_loss(records):
    return mean_loss(records, max(1, len(records) - BLOCK + 1), len(records))


def speed(records):
    """Median tokens/s, without the first tenth of the run."""
    return statistics.median(records[s]["tokens_per_s"]
                             for s in range(len(records) // 10 + 1, len(records) + 1))


def gap(bf16, fp8):
    return 100 * (fp8 - bf16) / bf16


def row(cells):
    print("| " + " | ".join(cells) + " |")


def head(cells):
    row(cells)
    print("|" + "---|" * len(cells))


def print_losses(a, runs, seeds):
    print(f"\nMean training loss of the last {min(BLOCK, a.steps)} steps, validation loss after "
          f"step {a.steps}:\n")
    head(["seed", "training bf16", "fp8", "gap %", "validation bf16", "fp8", "gap %",
          "tokens/s bf16", "fp8", "skipped steps"])
    for s in seeds:
        pair = [runs[p, s] for p in RECIPES]
        training, valid = [last_loss(r) for r in pair], [r[a.steps]["valid_loss"] for r in pair]
        skipped = [sum("skipped" in x for x in r.values()) for r in pair]
        row([str(s), *(f"{x:.4f}" for x in training), f"{gap(*training):+.3f}",
             *(f"{x:.4f}" for x in valid), f"{gap(*valid):+.3f}",
             *(f"{speed(r):,.0f}" for r in pair), "{} and {}".format(*skipped)])


def print_verdict(name, bf16, fp8):
    gaps = [gap(b, f) for b, f in zip(bf16, fp8)]
    mean = statistics.mean(gaps)
    # A mean can hide a pair whose runs took different ways, so the range is shown too.
    line = f"{name}: mean gap {mean:+.3f} % ({min(gaps):+.3f} to {max(gaps):+.3f})"
    if len(bf16) > 1:
        noise = 100 * statistics.stdev(bf16) / statistics.mean(bf16)
        # Of the magnitude: an fp8 run that is much better is no agreement either.
        met = abs(mean) <= min(0.25, 2 * noise)
        line += (f", seed noise {noise:.3f} % (standard deviation of bf16 over {len(bf16)} seeds); "
                 f"at most 0.25 % and within twice the noise: {'yes' if met else 'no'}")
    print(line)


def print_curves(a, runs, seeds):
    print(f"\nMean training loss of blocks of {BLOCK} steps:\n")
    names = [f"{p} {s}" for s in seeds for p in RECIPES]
    head(["steps", *names, "mean gap %"])
    for first in range(1, a.steps + 1, BLOCK):
        last = min(first + BLOCK - 1, a.steps)
        print_point(f"{first}-{last}", seeds, lambda p, s: mean_loss(runs[p, s], first, last))
    print("\nValidation loss:\n")
    head(["step", *names, "mean gap %"])
    for step, record in runs["bf16", seeds[0]].items():
        if "valid_loss" in record:
            print_point(str(step), seeds, lambda p, s: runs[p, s][step]["valid_loss"])


def print_point(name, seeds, loss):
    pairs = [[loss(p, s) for p in RECIPES] for s in seeds]
    row([name, *(f"{x:.4f}" for pair in pairs for x in pair),
         f"{statistics.mean(gap(*pair) for pair in pairs):+.3f}"])


def write_csv(a, runs):
    with open(os.path.join(a.out, "losses.csv"), "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["step", "seed", "precision", "loss", "valid_loss"])
        for (precision, seed), records in runs.items():
            for step, r in sorted(records.items()):
                out.writerow([step, seed, precision, r["loss"], r.get("valid_loss")])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--kintsugi", required=True)
    p.add_argument("--data", required=True, help="directory with train, valid and tokenizer")
    p.add_argument("--out", required=True, help="directory for the runs and losses.csv")
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                   help="override a key of the configuration of all runs (repeatable)")
    p.add_argument("--time-limit", type=float, default=0, metavar="S",
                   help="start no run that would probably end later than S seconds from now")
    p.add_argument("--tables", action="store_true", help="run nothing, show what is complete")
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    runs = run_all(a)
    write_csv(a, runs)
    seeds = [s for s in a.seeds if all((p, s) in runs for p in RECIPES)]
    if not seeds:
        raise SystemExit("no pair of runs is complete")
    print_curves(a, runs, seeds)
    print_losses(a, runs, seeds)
    print()
    for name, loss in (("training", last_loss), ("validation", lambda r: r[a.steps]["valid_loss"])):
        print_verdict(name, *([loss(runs[p, s]) for s in seeds] for p in RECIPES))


if __name__ == "__main__":
    main()
