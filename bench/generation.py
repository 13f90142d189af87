#!/usr/bin/env python3
"""Times generation by Kintsugi and by transformers, in one run on one GPU.

  python3 bench/generation.py --kintsugi build-gpu/kintsugi --bench build-gpu/bench_generation

Writes a model with random weights (kintsugi train, one step), then generates greedily from prompts
of random tokens: Kintsugi's engine, transformers as it is, and transformers with torch.compile and a
static cache. Prints the tokens/s of decoding (without the prompts) and of everything.
"""
import argparse
import json
import os
import subprocess
import tempfile
import time


def write_model(a, folder):
    text = os.path.join(folder, "corpus.txt")
    with open(text, "w") as file:
        for i in range(20000):
            file.write(f"line {i} of {i * i % 997} words and {i * 31 % 1009} numbers\n")
    run = os.path.join(folder, "run")
    path = os.path.join(folder, "run.yaml")
    with open(path, "w") as file:
        file.write(f"run: {{dir: {run}}}\nmodel: {{preset: {a.model}}}\n"
                   f"data: {{train: [{{path: {text}}}], sequence_length: 128, tokenizer: bytes}}\n"
                   f"batch: {{global: 1, micro: 1}}\noptimizer: {{warmup_steps: 0}}\n"
                   f"train: {{steps: 1, eval_every: 0, precision: bf16}}\ndevice: cuda\n")
    subprocess.run([a.kintsugi, "train", path], check=True, stdout=subprocess.DEVNULL)
    found = [where for where, _, files in os.walk(run) if "config.json" in files]
    if not found:
        raise SystemExit(f"kintsugi train wrote no model below {run}")
    return found[0]


def kintsugi(a, model):
    command = [a.bench, model, "--batch", ",".join(map(str, a.batch)), "--prompt", str(a.prompt),
               "--tokens", str(a.tokens)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def transformers(a, directory, compiled):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).to("cuda").eval()
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    if compiled:
        options["cache_implementation"] = "static"
        model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)

    def timed(ids, tokens):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens,
                                 min_new_tokens=tokens, **options)
        torch.cuda.synchronize()
        if out.shape[1] != ids.shape[1] + tokens:
            raise SystemExit(f"transformers generated {out.shape[1] - ids.shape[1]} of {tokens}")
        return time.perf_counter() - begin

    for batch in a.batch:
        ids = torch.randint(0, model.config.vocab_size, (batch, a.prompt), device="cuda")
        for _ in range(2 if compiled else 1):  # compiles, records graphs
            timed(ids, a.tokens if compiled else 8)
        prompts, whole = timed(ids, 1), timed(ids, a.tokens)
        yield {"system": "transformers" + (", compiled" if compiled else ""),
                        "batch": batch, "prompt": a.prompt, "tokens": batch * a.tokens,
                        "prompts_s": round(prompts, 4), "all_s": round(whole, 4),
                        "decode_tokens_per_s":
                            round(batch * (a.tokens - 1) / (whole - prompts), 1),
                        "tokens_per_s": round(batch * a.tokens / whole, 1)}


def plain_transformers(a, directory):
    return transformers(a, directory, False)


def compiled_transformers(a, directory):
    return transformers(a, directory, True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kintsugi", required=True, help="the program kintsugi")
    parser.add_argument("--bench", required=True, help="the program bench_generation")
    parser.add_argument("--model", default="llama-1b")
    parser.add_argument("--directory", help="a Hugging Face model instead of random weights")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--without-compile", action="store_true")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = a.directory or write_model(a, folder)
        for system in (kintsugi, plain_transformers, compiled_transformers):
            if system is compiled_transformers and a.without_compile:
                continue  # compiling takes minutes
            for result in system(a, model):
                print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
