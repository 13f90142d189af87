#!/usr/bin/env python3
"""Opens fine-tuned models with transformers and PEFT: python3 check_finetuned.py KINTSUGI SOURCES FOLDER [DEVICE]

Pre-trains a small model on the documentation and code in SOURCES, fine-tunes a classifier of the two and an adapter,
and compares: the classifier's probabilities with those of AutoModelForSequenceClassification, and the merged model with
PeftModel on the base. Prints the largest differences; exits with 1 if a label differs or a difference is over 1e-4.
"""

import json
import pathlib
import subprocess
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

TOLERANCE = 1e-4


def texts_of(sources):
    for label, pattern in (("prose", "docs/*.md"), ("code", "src/*/*.cpp")):
        for path in sorted(sources.glob(pattern)):
            lines = [line for line in path.read_text().splitlines() if len(line) > 40]
            for i in range(0, len(lines) - 2, 9):
                yield {"text": " ".join(lines[i : i + 2])[:160], "label": label}


def write_lines(path, items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))


def main(kintsugi, sources, folder, device="cpu"):
    folder.mkdir(parents=True, exist_ok=True)

    def run(*arguments):
        result = subprocess.run([kintsugi, *map(str, arguments)], capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"{arguments}: exit code {result.returncode}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
        return result.stdout

    def train(name, text):
        path = folder / f"{name}.yaml"
        path.write_text(f"run: {{dir: {folder / name}}}\ndevice: {device}\nthreads: 2\n{text}")
        run("train", path)
        return folder / name / "checkpoints" / "latest"

    texts = list(texts_of(sources))
    held_out, trained = texts[::7], [text for i, text in enumerate(texts) if i % 7]
    write_lines(folder / "train.jsonl", trained)
    write_lines(folder / "prompts.jsonl", [{"prompt": t["label"] + ": ", "completion": t["text"]} for t in trained])
    tokenizer = folder / "tokenizer"
    run("data", "train-tokenizer", "--input", folder / "train.jsonl", "--vocab", 600, "--output", tokenizer, "--overwrite")
    for command, source, store in (
        ("tokenize", "train", "plain"), ("prepare-chat", "train", "labels"), ("prepare-chat", "prompts", "prompts")):
        run("data", command, "--input", folder / f"{source}.jsonl", "--tokenizer", tokenizer,
            "--output", folder / store, "--overwrite")
    common = f"tokenizer: {tokenizer}, sequence_length: 192, valid_fraction: 0.05"
    schedule = "batch: {global: 16, micro: 8}\ntrain: {steps: %d, eval_every: 0, precision: fp32}\n"
    base = train("base", f"model: {{preset: llama-tiny}}\ndata: {{train: [{{path: {folder / 'plain'}}}], {common}}}\n"
                 "optimizer: {lr: 3e-3, warmup_steps: 10}\n" + schedule % 120)
    tuned = f"model: {{init: {base.resolve()}}}\noptimizer: {{lr: 1e-3, warmup_steps: 5}}\n"
    classifier = train("classifier", tuned + f"objective: classification\ndata: {{train: [{{path: {folder / 'labels'}}}], "
                       f"{common}}}\n" + schedule % 60)
    adapter = train("adapter", tuned + f"objective: sft\nadapter: {{kind: lora, r: 8, alpha: 16, targets: [all-linear]}}\n"
                    f"data: {{train: [{{path: {folder / 'prompts'}}}], {common}}}\n" + schedule % 60)

    write_lines(folder / "texts.jsonl", [{"text": text["text"]} for text in held_out])
    run("classify", "--checkpoint", classifier, "--input", folder / "texts.jsonl", "--output", folder / "labels.jsonl")
    ours = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]
    encode = AutoTokenizer.from_pretrained(classifier)
    model, info = AutoModelForSequenceClassification.from_pretrained(
        classifier, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"]:
        sys.exit(f"keys of the classifier: {info}")
    model.eval()
    worst, right = 0.0, 0
    for text, own in zip(held_out, ours, strict=True):
        ids = torch.tensor([encode(text["text"], add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            probabilities = model(input_ids=ids).logits[0].softmax(-1)
        label = model.config.id2label[int(probabilities.argmax())]
        if own["label"] != label:
            sys.exit(f"{text}: kintsugi says {own}, transformers {label} {probabilities}")
        for index, name in model.config.id2label.items():
            worst = max(worst, abs(own["probabilities"][name] - float(probabilities[index])))
        right += label == text["label"]
    print(f"classifier: {len(ours)} texts, {right / len(ours):.4f} right, largest difference {worst:.2e}")

    merged = folder / "merged"
    run("model", "merge-adapter", adapter, "--output", merged, "--overwrite")
    ids = torch.tensor([encode(held_out[0]["text"], add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        ours_merged = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)(input_ids=ids).logits
        plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        before = plain(input_ids=ids).logits
        theirs = PeftModel.from_pretrained(plain, adapter)(input_ids=ids).logits
    difference = float((ours_merged - theirs).abs().max())
    moved = float((before - theirs).abs().max())
    print(f"adapter: merged against PEFT {difference:.2e}; it moves logits by {moved:.2f}")
    return 1 if worst > TOLERANCE or difference > TOLERANCE or moved < 0.01 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), *sys.argv[4:5]))
