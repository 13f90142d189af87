"""Compares 20 training steps of Kintsugi with plain PyTorch, from a Hugging Face model in fp32.

  python3 tests/gpu/check_training.py build/kintsugi [cuda|cpu] [case ...]

Needs torch (2.9 or newer, for torch.optim.Muon), transformers and safetensors. Both programs start
from the same directory and read the same samples (kintsugi data where). A case fails if a loss
differs by more than its limit.
"""
import copy, glob, json, math, os, subprocess, sys, tempfile

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

LENGTH, BATCH, STEPS = 64, 8, 20
PEAK, LOW, WARMUP = 2e-3, 2e-4, 4

# Keys of the configuration, arguments of the PyTorch run, limit.
CASES = {
    "adamw": ({}, {}, 1e-5),
    "muon": ({"optimizer": ", kind: muon, muon: {precision: fp32}"}, {"muon": {}, "fp32": True}, 1e-5),
    "muon-original": (
        {"optimizer": ", kind: muon, muon: {precision: fp32, adjust_lr: original, lr: 1.0e-2}"},
        {"muon": {"adjust_lr_fn": "original"}, "muon_lr": 1e-2, "fp32": True}, 1e-5),
    # The iteration rounds to bf16 in another order.
    "muon-bf16": ({"optimizer": ", kind: muon"}, {"muon": {}}, 1e-3),
    "z-loss": ({"train": ", z_loss: 1.0e-2"}, {"z_loss": 1e-2}, 1e-5),
    "decay-embeddings": ({"optimizer": ", decay_embeddings: false"}, {"decay_embeddings": False}, 1e-5),
    "ema": ({"train": ", ema: {decay: 0.9}"}, {"ema": 0.9}, 1e-5),
}


def make_model(folder):
    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=320, hidden_size=128, intermediate_size=352, num_hidden_layers=3,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
                         rms_norm_eps=1e-5, tie_word_embeddings=False, attn_implementation="eager")
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(0.1 * torch.randn_like(p))
    model.save_pretrained(folder)
    return model


def learning_rate(step):
    if step < WARMUP:
        return PEAK * step / WARMUP
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return LOW + (PEAK - LOW) * 0.5 * (1 + math.cos(math.pi * progress))


def samples(program, path, step, text):
    out = subprocess.run([program, "data", "where", path, "--step", str(step), "--json"],
                         capture_output=True, text=True, check=True).stdout
    rows = [sum((list(text[d["first_token"]:d["first_token"] + d["tokens"]])
                 for d in sample["documents"]), []) for sample in json.loads(out)]
    return torch.tensor(rows)


def optimizers(named, muon, decay_embeddings):
    hidden = [n for n in named if muon is not None and n.endswith("_proj.weight")]
    rest = [n for n in named if n not in hidden]
    decays = [n for n in rest if named[n].dim() == 2 and (decay_embeddings or "embed" not in n)]
    groups = [{"params": [named[n] for n in decays], "weight_decay": 0.1},
              {"params": [named[n] for n in rest if n not in decays], "weight_decay": 0.0}]
    both = [torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.95), eps=1e-8)]
    if hidden:
        both.append(torch.optim.Muon([named[n] for n in hidden], lr=PEAK, weight_decay=0.1,
                                     **{"adjust_lr_fn": "match_rms_adamw", **muon}))
    return both


def train_with_torch(model, batches, muon=None, fp32=False, muon_lr=PEAK, z_loss=0.0,
                     decay_embeddings=True, ema=None):
    named = dict(model.named_parameters())
    both = optimizers(named, muon, decay_embeddings)
    average = {n: p.detach().double().clone() for n, p in named.items()}
    bfloat16 = torch.Tensor.bfloat16
    if fp32:  # torch.optim.Muon always iterates in bf16
        torch.Tensor.bfloat16 = lambda self, *_, **__: self.clone()
    losses = []
    for step, tokens in enumerate(batches, 1):
        logits = model(tokens[:, :-1]).logits.float().flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        for optimizer in both:
            optimizer.zero_grad()
        (loss + z_loss * (torch.logsumexp(logits, -1) ** 2).mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, factor in zip(both, (1, muon_lr / PEAK)):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step) * factor
            optimizer.step()
        for n, p in named.items():
            average[n].lerp_(p.detach().double(), 1 - (ema or 0))
        losses.append(loss.item())
    torch.Tensor.bfloat16 = bfloat16
    return losses, average


def train_with_kintsugi(program, path):
    done = subprocess.run([program, "train", path], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    program, device, *asked = sys.argv[1:] + ["cuda"] * (len(sys.argv) < 3)
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
    text = b"".join(open(f, "rb").read() for f in sorted(glob.glob(root + "/docs/*.md")))
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        open(work + "/corpus.txt", "wb").write(text)
        base = make_model(work + "/model")
        for name in asked or CASES:
            keys, arguments, limit = CASES[name]
            path, run = f"{work}/{name}.yaml", f"{work}/{name}"
            open(path, "w").write(
                f"run: {{dir: {run}, seed: 7}}\nmodel: {{init: {work}/model}}\n"
                f"data: {{train: [{{path: {work}/corpus.txt}}], sequence_length: {LENGTH}}}\n"
                f"batch: {{global: {BATCH}, micro: 4}}\n"
                f"optimizer: {{lr: {PEAK}, min_lr: {LOW}, warmup_steps: {WARMUP}{keys.get('optimizer', '')}}}\n"
                f"train: {{steps: {STEPS}, eval_every: 0, checkpoint_every: 0{keys.get('train', '')}}}\n"
                f"device: {device}\n")
            train_with_kintsugi(program, path)
            records = [json.loads(line) for line in open(run + "/metrics.jsonl")]
            batches = [samples(program, path, step, text).to(device) for step in range(1, STEPS + 1)]
            losses, average = train_with_torch(copy.deepcopy(base).to(device), batches, **arguments)
            worst = max(abs(r["loss"] - loss) for r, loss in zip(records, losses, strict=True))
            line = f"{name:17} loss {losses[0]:.6f} to {losses[-1]:.6f}, largest difference {worst:.1e}"
            folder = f"{run}/checkpoints/step-{STEPS:08}" + ("/ema" if name == "ema" else "")
            ours = load_file(folder + "/model.safetensors")
            weights = max((ours[n].double() - w.cpu()).abs().max().item() for n, w in average.items())
            line += f", of the weights {weights:.1e}"
            LlamaForCausalLM.from_pretrained(folder)  # opens
            failed += worst > limit
            print(line + (f"  FAILED: above {limit}" if worst > limit else ""), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
