"""A PyTorch trainer of mixtures of experts on one GPU, to be timed beside bench_gpu_step.

  python3 bench/experts.py olmoe-1b-7b --micro 2 --accumulate 8
  python3 bench/experts.py qwen3-30b-a3b --layers 8 --micro 4 --accumulate 4 [--fp32]

Needs torch 2.9 or newer: torch.compile, torch._grouped_mm, cuDNN or flash attention, fused AdamW.
Weights, gradients and moments are bf16; with --fp32 they are fp32 and the matmuls bf16. There are no
balance losses. Prints one JSON line.
"""
import argparse, json, time

import torch
import torch.nn as nn
import torch.nn.functional as F

# hidden, layers, heads, key-value heads, size of a head, experts, chosen, width, vocabulary, weights divided by their
# sum, norms of each head
MODELS = {
    "olmoe-1b-7b": (2048, 16, 16, 16, 128, 64, 8, 1024, 50304, False, False),
    "qwen3-30b-a3b": (2048, 48, 32, 4, 128, 128, 8, 768, 151936, True, True),
}


def rotated(x, cos, sin):
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


class Experts(nn.Module):
    def __init__(self, hidden, experts, chosen, width, normalize):
        super().__init__()
        self.chosen, self.normalize = chosen, normalize
        self.router = nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, 2 * width, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        weights, ids = self.router(x).float().softmax(-1).topk(self.chosen, -1)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        order = ids.flatten().argsort(stable=True)
        counts = torch.zeros(self.up.shape[0], dtype=torch.int32, device=x.device)
        counts = counts.scatter_add(0, ids.flatten(), torch.ones_like(ids.flatten(), dtype=torch.int32))
        ends, token = counts.cumsum(0).int(), order // self.chosen
        up, down = self.up.to(torch.bfloat16), self.down.to(torch.bfloat16)
        rows = x.to(torch.bfloat16)[token]
        gate, value = torch._grouped_mm(rows, up.transpose(-2, -1), offs=ends).chunk(2, -1)
        rows = (F.silu(gate) * value * weights.flatten()[order, None]).to(torch.bfloat16)
        rows = torch._grouped_mm(rows, down.transpose(-2, -1), offs=ends)
        return torch.zeros_like(x).index_add(0, token, rows.to(x.dtype)).view(shape)


class Block(nn.Module):
    def __init__(self, hidden, heads, kv_heads, dim, head_norms, experts):
        super().__init__()
        self.sizes = (heads, kv_heads, dim)
        self.head_norms = head_norms
        self.attention_norm, self.experts_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * dim, bias=False)
        self.query_norm = nn.RMSNorm(dim if head_norms else heads * dim)
        self.key_norm = nn.RMSNorm(dim if head_norms else kv_heads * dim)
        self.out = nn.Linear(heads * dim, hidden, bias=False)
        self.experts = experts

    def forward(self, x, cos, sin):
        heads, kv_heads, dim = self.sizes
        split = lambda t, n: t.view(*t.shape[:2], n, dim)
        q, k, v = self.qkv(self.attention_norm(x)).split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
        if self.head_norms:
            q, k = self.query_norm(split(q, heads)), self.key_norm(split(k, kv_heads))
        else:
            q, k = split(self.query_norm(q), heads), split(self.key_norm(k), kv_heads)
        q, k, v = (t.transpose(1, 2) for t in (q, k, split(v, kv_heads)))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True, enable_gqa=heads != kv_heads)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.experts(self.experts_norm(x))


class Model(nn.Module):
    def __init__(self, name, layers, length):
        super().__init__()
        hidden, preset_layers, heads, kv, dim, experts, chosen, width, vocabulary, normalize, head_norms = MODELS[name]
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.ModuleList(
            Block(hidden, heads, kv, dim, head_norms, Experts(hidden, experts, chosen, width, normalize))
            for _ in range(layers or preset_layers))
        self.norm, self.head = nn.RMSNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)
        angles = torch.outer(torch.arange(length), 10000.0 ** (-torch.arange(0, dim, 2) / dim))
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids, targets):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, self.cos.to(x.dtype), self.sin.to(x.dtype))
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--micro", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--fp32", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.float32 if options.fp32 else torch.bfloat16)
        model = Model(options.model, options.layers, options.length)
        torch.set_default_dtype(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    compiled = torch.compile(model)
    vocabulary = model.head.weight.shape[0]
    ids = torch.randint(0, vocabulary, (options.accumulate, options.micro, options.length + 1), device="cuda")
    times = []
    for _ in range(options.warmup + options.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for batch in ids:
            with torch.autocast("cuda", torch.bfloat16, enabled=options.fp32):
                loss = compiled(batch[:, :-1], batch[:, 1:]) / options.accumulate
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    step = sorted(times[options.warmup:])[options.steps // 2]
    tokens = options.accumulate * options.micro * options.length
    print(json.dumps({"model": options.model, "layers": len(model.blocks), "states": "fp32" if options.fp32 else "bf16",
                      "step_ms": round(1e3 * step, 1), "tokens_per_s": round(tokens / step),
                      "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1)}), flush=True)


if __name__ == "__main__":
    main()
