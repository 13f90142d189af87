#!/usr/bin/env python3
"""Compares the ids of transformers' AutoTokenizer with Kintsugi's: python3 tests/gpu/check_tokenizers.py KINTSUGI

For every family and tokenizer, trains a tiny model for one step, opens the checkpoint with AutoTokenizer,
AutoModelForCausalLM and GenerationConfig, and compares the ids of mixed texts with `kintsugi data encode`. Prints one
line for each and exits with 1 if any differs, except for SentencePiece models (docs/data.md explains why). Takes a
minute or two on a CPU and needs no network.

--without-transformers: only creates the checkpoints and checks them with Kintsugi itself.
--keep FOLDER: writes everything to FOLDER and keeps it.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

FAMILIES = ["gpt2", "llama", "qwen2", "qwen3", "bloom"]
TRAINED = ["gpt2", "llama3", "qwen"]  # pre-tokenizers of `kintsugi data train-tokenizer`
FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "data" / "tokenizers"

TEXTS = [
    "Kintsugi joins broken pieces with gold.",
    " leading, trailing and   several  spaces   ",
    "tabs\tand\n\nnew lines\r\n\r\n  end\n",
    "1234567890 3.14159 1,000,000 2026-11-15 x1y2",
    "I'm sure they'll say WE'RE; it's 'quoted', isn't IT'S",
    "def f(x):\n    return x**2 + 1  # square\n\n\nfor i in range(10):\n\tprint(f\"{i:>3}\")\n",
    "Öl, Straße, naïve café, Þórður, çılgın, łódź, Ærøskøbing",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم",
    "漢字とかな、混ぜ書き。 你好，世界！ 안녕하세요 สวัสดี नमस्ते",
    "👩‍👩‍👧‍👦 family, 🇳🇱 flag, 👍🏽 thumb, e\u0301 combining, \u00a0nbsp, \u2028 line",
    "https://example.org/a?b=c&d=%20 <tag attr=\"v\"/> {\"json\": [1, null]}",
    "ﬁ ligature, Å Å Angström, ½, ①, ｆｕｌｌｗｉｄｔｈ, \u200bzero",
    "",
    "a",
    " ",
]


def run(command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} exits with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def special_texts(tokenizer):
    """Texts with the special tokens that a tokenizer.json has."""
    file = pathlib.Path(tokenizer) / "tokenizer.json"
    if not file.exists():
        return []
    tokens = [t["content"] for t in json.loads(file.read_text())["added_tokens"] if t.get("special")]
    return [f"one{t}two {t} three{t}" for t in tokens[:4]]


def encode(kintsugi, tokenizer, texts):
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    output = run([kintsugi, "data", "encode", "--special", "--tokenizer", tokenizer], input=lines)
    return [json.loads(line) for line in output.splitlines()]


def corpus(folder):
    text = "".join(t + "\n" for t in TEXTS) * 40
    (folder / "corpus.txt").write_text(text)
    with open(folder / "corpus.jsonl", "w") as file:
        for _ in range(40):
            for t in TEXTS:
                file.write(json.dumps({"text": t}) + "\n")
    return folder / "corpus.jsonl"


def tokenizers_of(kintsugi, folder, source):
    found = {"bytes": "bytes"}
    for path in sorted(FIXTURES.iterdir()):
        if path.is_dir():
            found[path.name] = path
    for family in TRAINED:
        output = folder / f"trained-{family}"
        run([kintsugi, "data", "train-tokenizer", "--input", source, "--vocab", 400, "--pre-tokenizer", family,
             "--output", output])
        found[output.name] = output
    # As models are published: with a tokenizer class, a chat template and special tokens.
    published = folder / "published"
    published.mkdir()
    (published / "tokenizer.json").write_bytes((FIXTURES / "llama3" / "tokenizer.json").read_bytes())
    (published / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "LlamaTokenizerFast", "eos_token": "<|end_of_text|>", "pad_token": "<|end_of_text|>",
        "model_max_length": 100}))
    (published / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|end_of_text|>"}))
    (published / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    found["published"] = published
    return found


def train(kintsugi, folder, family, name, tokenizer, source):
    data, run_dir = folder / f"store-{name}", folder / f"run-{family}-{name}"
    if tokenizer == "bytes":
        data = folder / "corpus.txt"
    elif not data.with_suffix(".bin").exists():
        run([kintsugi, "data", "tokenize", "--input", source, "--tokenizer", tokenizer, "--output", data])
    config = folder / f"{family}-{name}.yaml"
    config.write_text(json.dumps({
        "run": {"dir": str(run_dir)}, "model": {"preset": f"{family}-tiny", "layers": 1}, "device": "cpu",
        "data": {"train": [{"path": str(data)}], "tokenizer": str(tokenizer), "sequence_length": 32},
        "batch": {"global": 2, "micro": 2}, "optimizer": {"warmup_steps": 0}, "threads": 1,
        "train": {"steps": 1, "eval_every": 0}}))
    run([kintsugi, "train", config], env=dict(os.environ, OMP_NUM_THREADS="1"))
    return run_dir / "checkpoints" / "step-00000001"


def first_difference(texts, ours, theirs):
    for text, a, b in zip(texts, ours, theirs):
        if a != b:
            return f"{text!r}\n    Kintsugi     {a}\n    transformers {b}"
    return None


def check_with_transformers(checkpoint, texts, ours, problems):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    classes = []
    for trust in (None, True):
        options = {} if trust is None else {"trust_remote_code": True}
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, **options)
        classes.append(type(tokenizer).__name__)
        theirs = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        if difference := first_difference(texts, ours, theirs):
            problems.append(f"different ids{' with trust_remote_code' if trust else ''}: {difference}")
    template = checkpoint / "chat_template.jinja"
    if template.exists() and tokenizer.chat_template != template.read_text():
        problems.append("the chat template differs")
    GenerationConfig.from_pretrained(checkpoint)
    model, info = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True)
    if info["unexpected_keys"] or info["missing_keys"]:
        problems.append(f"keys unexpected {sorted(info['unexpected_keys'])}, missing {sorted(info['missing_keys'])}")
    if len(tokenizer) > model.config.vocab_size:
        problems.append(f"{len(tokenizer)} tokens in a vocabulary of {model.config.vocab_size}")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ours[0]])).logits
    if not torch.isfinite(logits).all():
        problems.append("logits are not finite")
    return " / ".join(dict.fromkeys(classes))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kintsugi", type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--without-transformers", action="store_true")
    parser.add_argument("--keep", type=pathlib.Path)
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if not arguments.without_transformers:
        import transformers
        print("transformers", transformers.__version__)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["HF_MODULES_CACHE"] = str(folder / "modules")
        source = corpus(folder)
        failed = count = 0
        print(f"{'family':7} {'tokenizer':22} {'texts':>5}  class (default / trusted)")
        for name, tokenizer in tokenizers_of(arguments.kintsugi, folder, source).items():
            texts = TEXTS + special_texts(tokenizer)
            ours = encode(arguments.kintsugi, tokenizer, texts)
            for family in FAMILIES:
                problems, chosen = [], "-"
                checkpoint = train(arguments.kintsugi, folder, family, name, tokenizer, source)
                if encode(arguments.kintsugi, checkpoint, texts) != ours:
                    problems.append("Kintsugi gives different ids with the checkpoint's tokenizer")
                if not arguments.without_transformers:
                    try:
                        chosen = check_with_transformers(checkpoint, texts, ours, problems)
                    except Exception as error:  # a checkpoint that cannot be opened counts as a difference
                        problems.append(f"{type(error).__name__}: {error}")
                expected = name.startswith("sentencepiece")
                count += not expected
                failed += bool(problems) and not expected
                verdict = "ok" if not problems else "differs, not counted" if expected else "DIFFERS"
                print(f"{family:7} {name:22} {len(texts):5}  {chosen}  {verdict}", flush=True)
                for problem in problems:
                    print("   ", problem)
        print(f"{count - failed} of {count} checkpoints give Kintsugi's ids")
        return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
