#!/usr/bin/env python3
"""Times what checkpoints cost a run: saves that stop the training against saves in the background.

  python3 bench/saves.py --kintsugi build/kintsugi
  python3 bench/saves.py --kintsugi build-gpu/kintsugi --device cuda --model llama-1b \\
      --length 2048 --batch 4 --precision bf16 --steps 160

Prints, for both: the time that the training waited for saves, as a share of the training time, and
the step time while a save is under way against that of the other steps.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile


def config(a, folder, mode):
    text = os.path.join(folder, "corpus.txt")
    if not os.path.exists(text):
        with open(text, "w") as file:
            for i in range(40000):
                file.write(f"line {i} of {i * i % 997} words and {i * 31 % 1009} numbers\n")
    path = os.path.join(folder, mode + ".yaml")
    with open(path, "w") as file:
        file.write(
            f"run: {{dir: {os.path.join(folder, mode)}}}\n"
            f"model: {{preset: {a.model}}}\n"
            f"data: {{train: [{{path: {text}}}], sequence_length: {a.length}, tokenizer: bytes}}\n"
            f"batch: {{global: {a.batch}, micro: {a.micro or a.batch}}}\n"
            f"train: {{steps: {a.steps}, eval_every: 0, log_every: 50, keep_checkpoints: 1,\n"
            f"  checkpoint_every: {a.every}, precision: {a.precision},\n"
            f"  async_save: {'true' if mode == 'background' else 'false'}}}\n"
            f"device: {a.device}\n")
    return path


def saves_of(log):
    """(step, seconds until it was published, seconds that the training waited) of each save."""
    unit = {"ms": 1e-3, "s": 1.0, "min": 60.0}

    def seconds(text):
        return sum(float(n) * unit[u] for n, u in re.findall(r"([\d.e+-]+) (ms|s|min)", text))

    pattern = r"saved \S*step-(\d+) in (.*); training waited (.*)"
    return [(int(m[0]), seconds(m[1]), seconds(m[2])) for m in re.findall(pattern, log)]


def measure(a, folder, mode):
    command = [a.kintsugi, "train", config(a, folder, mode)]
    log = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    with open(os.path.join(folder, mode, "metrics.jsonl")) as file:
        times = {r["step"]: r["step_time_s"] for r in map(json.loads, file)}
    saves = [s for s in saves_of(log) if s[0] < a.steps]  # the last one ends the run
    during = set()
    for step, duration, _ in saves:
        left = duration if mode == "background" else 0
        while left > 0 and step + 1 in times:
            step += 1
            during.add(step)
            left -= times[step]
    plain = [t for s, t in times.items() if s not in during and s > 5]
    busy = [times[s] for s in during]
    total = sum(times.values()) + sum(s[2] for s in saves)
    usual = statistics.median(plain)
    return {
        "saves": len(saves),
        "waited": sum(s[2] for s in saves) / max(len(saves), 1),
        "share": sum(s[2] for s in saves) / total,
        "written": statistics.mean(s[1] for s in saves) if saves else 0,
        "step": usual,
        "during": statistics.median(busy) / usual if busy else None,
        # All time lost to saves: waiting, and slower steps.
        "lost": (sum(s[2] for s in saves) + sum(t - usual for t in busy)) / total,
    }


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--kintsugi", required=True)
    p.add_argument("--model", default="llama-tiny")
    p.add_argument("--device", default="cpu")
    p.add_argument("--precision", default="fp32")
    p.add_argument("--length", type=int, default=256)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--micro", type=int, default=0)
    p.add_argument("--steps", type=int, default=160)
    p.add_argument("--every", type=int, default=50)
    p.add_argument("--folder", help="where the runs are written (default: a temporary directory)")
    a = p.parse_args()
    with tempfile.TemporaryDirectory(dir=a.folder) as folder:
        for mode in ("stopping", "background"):
            r = measure(a, folder, mode)
            during = "" if r["during"] is None else \
                f"; a step during a save takes {r['during']:.3f} of another"
            print(f"{mode:<11} {r['saves']} saves, each written in {r['written']:.3f} s; training "
                  f"waited {r['waited']:.4f} s for each = {100 * r['share']:.2f} % of its time; step "
                  f"{r['step']:.4f} s{during}; all time lost {100 * r['lost']:.2f} %", flush=True)


if __name__ == "__main__":
    main()
