#!/usr/bin/env python3
"""Checks the energy of a run against sampled power, and times what metering costs.

  python3 bench/energy.py --kintsugi build-gpu/kintsugi --model llama-1b --length 2048 --batch 4

1. Trains with metering while nvidia-smi samples the power of the GPU; compares the joules that the
   steps report with the integral of that power over the same steps (without the first seconds).
2. Trains by turns without metering, with it, and with ten times its sampling rate; compares the
   median step times. A tenth of the last difference bounds the cost better than the noise allows.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time


def train(a, folder, name, steps, energy):
    text = os.path.join(folder, "corpus.txt")
    if not os.path.exists(text):
        with open(text, "w") as file:
            for i in range(40000):
                file.write(f"line {i} of {i * i % 997} words and {i * 31 % 1009} numbers\n")
    run = os.path.join(folder, name)
    path = run + ".yaml"
    with open(path, "w") as file:
        file.write(
            f"run: {{dir: {run}}}\n"
            f"model: {{preset: {a.model}{', ' + a.model_keys if a.model_keys else ''}}}\n"
            f"data: {{train: [{{path: {text}}}], sequence_length: {a.length}, tokenizer: bytes}}\n"
            f"batch: {{global: {a.batch * a.accumulate}, micro: {a.batch}}}\n"
            f"{'optimizer: {' + a.optimizer_keys + '}' if a.optimizer_keys else ''}\n"
            f"train: {{steps: {steps}, eval_every: 0, log_every: 50, save: false,\n"
            f"  precision: {a.precision}}}\n"
            f"device: {a.device}\nenergy: {energy}\n")
    ended = subprocess.run([a.kintsugi, "train", path], capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"kintsugi train ended with {ended.returncode}: {ended.stderr}")
    with open(os.path.join(run, "metrics.jsonl")) as file:
        return run, [json.loads(line) for line in file]


class Sampler(threading.Thread):
    """Power in W and its time, from nvidia-smi in a loop of its own."""

    def __init__(self, field):
        super().__init__(daemon=True)
        self.samples, self.process = [], subprocess.Popen(
            ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", "-lms", "50"],
            stdout=subprocess.PIPE, text=True)
        self.start()

    def run(self):
        for line in self.process.stdout:
            try:
                self.samples.append((time.time(), float(line)))
            except ValueError:
                pass

    def stop(self):
        self.process.kill()

    def mean(self, begin, end):
        """The mean over time of the samples in [begin, end], by trapezoids."""
        inside = [s for s in self.samples if begin <= s[0] <= end]
        area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in zip(inside, inside[1:]))
        return area / (inside[-1][0] - inside[0][0]), len(inside)


def compare_with_power(a, folder):
    sampler = Sampler("power.draw.average" if a.average else "power.draw.instant")
    begin = time.time()
    run, records = train(a, folder, "metered", a.steps, "{sample_s: 0.5}")
    end = time.time()
    sampler.stop()
    with open(os.path.join(run, "goodput.jsonl")) as file:
        events = [json.loads(line) for line in file]
    start = next(e for e in events if e["event"] == "start")
    # The steps after the rise time, on the clock of the run.
    times, now = [], start["time_s"]
    for r in records:
        now += r["step_time_s"]
        times.append(now)
    first = next(i for i, t in enumerate(times) if t > times[0] + a.discard)
    joules = sum(r["energy_j"] for r in records[first + 1:])
    seconds = sum(r["step_time_s"] for r in records[first + 1:])
    mean_w, samples = sampler.mean(times[first], times[-1])
    tokens = records[-1]["tokens"] - records[first]["tokens"]
    print(f"{a.model} {a.batch}x{a.length} {a.precision}: {joules / tokens:.4f} J/token, "
          f"{tokens / seconds:.0f} tokens/s; counter {joules:.0f} J in {seconds:.1f} s = "
          f"{joules / seconds:.1f} W; sampled power {mean_w:.1f} W ({samples} samples); "
          f"ratio {joules / seconds / mean_w:.4f}")
    with open(os.path.join(run, "energy.json")) as file:
        gpu = json.load(file)["levels"]["gpu"]
    print(f"  energy.json: {gpu['joules']:.0f} J by {gpu['source']}, "
          f"{100 * gpu['time_measured']:.2f} % of the time; own check {gpu['check']}; "
          f"launch to end {end - begin:.1f} s")


def time_metering(a, folder):
    kinds = {"off": "{enabled: false}", "on": "{sample_s: 0.5}", "ten times": "{sample_s: 0.05}"}
    medians = {kind: [] for kind in kinds}
    for turn in range(a.turns):
        for kind, energy in kinds.items():
            _, records = train(a, folder, f"{kind.replace(' ', '-')}-{turn}", a.steps, energy)
            medians[kind].append(statistics.median(r["step_time_s"] for r in records[20:]))
    off = statistics.median(medians["off"])
    for kind, values in medians.items():
        spread = (max(values) - min(values)) / off
        print(f"metering {kind:<9}  median step {1e3 * statistics.median(values):.3f} ms, "
              f"{100 * (statistics.median(values) / off - 1):+.3f} % (spread {100 * spread:.3f} %)")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--kintsugi", required=True)
    p.add_argument("--device", default="cuda")
    p.add_argument("--model", default="llama-1b")
    p.add_argument("--model-keys", default="", help="further keys of the model, such as layers: 8")
    p.add_argument("--optimizer-keys", default="")
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--batch", type=int, default=4, help="micro-batch")
    p.add_argument("--accumulate", type=int, default=1)
    p.add_argument("--precision", default="bf16")
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--discard", type=float, default=5, help="seconds at the beginning")
    p.add_argument("--average", action="store_true", help="sample the 1 s average power")
    p.add_argument("--turns", type=int, default=0, help="time the metering so many times")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare_with_power(a, folder)
        if a.turns:
            time_metering(a, folder)


if __name__ == "__main__":
    main()
