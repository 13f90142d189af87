"""Opens checkpoints of mixtures of experts in transformers and compares what both programs say.

  python3 tests/gpu/check_experts.py build/kintsugi [family ...]

Needs torch, transformers 5 and mpirun. Each family is trained for 200 steps in fp32 on four ranks of
this machine's processor, its experts on all of them. Kintsugi then continues a text greedily. A case
fails if transformers, which reads the checkpoint as it lies, has other tokens, or a log-probability
that differs by more than 1e-5.
"""
import glob, json, os, subprocess, sys, tempfile

import torch
from transformers import AutoModelForCausalLM

LIMIT, TOKENS = 1e-5, 32
PROMPT = list(b"Each expert multiplies ")
FAMILIES = {
    "mixtral": "kv_heads: 2, ffn_size: 48, experts: {count: 8, chosen: 2}",
    "olmoe": "ffn_size: 32, experts: {count: 16, chosen: 4, normalize: false}",
    "qwen3_moe": "kv_heads: 2, experts: {count: 8, chosen: 3, size: 32}",
    "dots1": "experts: {count: 8, chosen: 2, size: 32, shared: 1, dense_layers: [0], scale: 2.5}",
    "glm4_moe": "kv_heads: 2, experts: {count: 8, chosen: 2, size: 32, shared: 1, dense_layers: [0]}",
    "deepseek_v3": "latent: {query_rank: 24, rank: 16, plain_dim: 16, rotary_dim: 8, value_dim: 16}, "
                   "experts: {count: 8, chosen: 2, size: 32, shared: 1, dense_layers: [0], scale: 2.5, "
                   "groups: 4, top_groups: 2}",
}


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def trained(program, family, work):
    folder = f"{work}/{family}"
    open(folder + ".yaml", "w").write(
        f"run: {{dir: {folder}, seed: 7}}\n"
        f"model: {{family: {family}, vocab_size: 320, hidden_size: 64, layers: 3, heads: 4, max_positions: 128, "
        f"{FAMILIES[family]}}}\n"
        f"data: {{train: [{{path: {work}/corpus.txt}}], sequence_length: 64}}\n"
        "batch: {global: 8, micro: 1}\noptimizer: {lr: 5.0e-3, warmup_steps: 2}\n"
        "train: {steps: 200, eval_every: 0, checkpoint_every: 0}\n"
        "layout: {zero: 1, ep: 4, dispatch: all-to-all}\ndevice: cpu\n")
    run(["mpirun", "--oversubscribe", "-np", "4", program, "train", folder + ".yaml"])
    return folder + "/checkpoints/step-00000200"


def main():
    program, *asked = sys.argv[1:]
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        texts = [open(file, "rb").read() for file in sorted(glob.glob(root + "/docs/*.md"))]
        open(work + "/corpus.txt", "wb").write(b"".join(texts))
        for family in asked or FAMILIES:
            checkpoint = trained(program, family, work)
            ours = json.loads(run(
                [program, "generate", "--checkpoint", checkpoint, "--token-ids", " ".join(map(str, PROMPT)),
                 "--max-tokens", str(TOKENS), "--temperature", "0", "--jsonl", "--logprobs", "0"]))
            model, info = AutoModelForCausalLM.from_pretrained(
                checkpoint, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
            ids = torch.tensor([PROMPT + ours["token_ids"]])
            with torch.no_grad():
                scores = torch.log_softmax(model.eval()(ids).logits[0, len(PROMPT) - 1:-1].double(), -1)
            same = scores.argmax(-1).tolist() == ours["token_ids"]
            theirs = scores.gather(1, ids[0, len(PROMPT):, None])[:, 0].tolist()
            worst = max(abs(a["logprob"] - b) for a, b in zip(ours["logprobs"], theirs, strict=True))
            lost = sorted(info["missing_keys"]) + sorted(info["unexpected_keys"])
            good = same and worst <= LIMIT and not lost
            failed += not good
            print(f"{family:12} {len(theirs)} tokens, largest difference {worst:.1e}"
                  + ("" if same else ", other tokens") + (f", keys {lost}" if lost else "")
                  + ("" if good else "  FAILED"), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
