"""RetNet in its parallel form, as formulas: what tests/data/make_fixtures.py differentiates.

Retention of all pairs at once, with the closed form of the row normaliser, which the chunkwise and recurrent
forms share: out_n = sum over m <= n of g^(n - m) (q_n . k_m) v_m / sqrt((1 - g^(n + 1)) / (1 - g)).
"""

import math

import torch


def rms(x, weight, eps):
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


class RetNet(torch.nn.Module):
    def __init__(self, config, seed):
        super().__init__()
        self.config = config
        generator = torch.Generator().manual_seed(seed)
        hidden, values, ffn = config["decoder_embed_dim"], config["decoder_value_embed_dim"], config["decoder_ffn_embed_dim"]
        shapes = {"embed_tokens": (config["vocab_size"], hidden), "output_projection": (config["vocab_size"], hidden), "layer_norm": (hidden,)}
        for layer in range(config["decoder_layers"]):
            p = f"layers.{layer}."
            for name, rows in {"q": hidden, "k": hidden, "v": values, "g": values}.items():
                shapes[f"{p}retention.{name}_proj"] = (rows, hidden)
            shapes[f"{p}retention.out_proj"] = (hidden, values)
            shapes.update({f"{p}ffn.fc1": (ffn, hidden), f"{p}ffn.gate": (ffn, hidden), f"{p}ffn.fc2": (hidden, ffn)})
            shapes.update({f"{p}retention_layer_norm": (hidden,), f"{p}final_layer_norm": (hidden,)})
        self.weights = {}
        for name, shape in shapes.items():  # representable in fp32, computed with in fp64
            value = 0.25 * torch.randn(shape, generator=generator)
            # The norm behind retention keeps only the sign of a small q . k: keys like queries stay clear of it.
            if name.endswith("k_proj"):
                value = 0.25 * value + self.weights[name.replace("k_proj", "q_proj") + ".weight"].detach().float()
            self.weights[name + ".weight"] = (value + (1 if len(shape) == 1 else 0)).double().requires_grad_()

    def named_parameters(self):
        return self.weights.items()

    def forward(self, ids):
        c, w = self.config, lambda name: self.weights[name + ".weight"]
        eps, heads = c["layernorm_eps"], c["decoder_retention_heads"]
        dim, length = c["decoder_embed_dim"] // heads, ids.shape[1]
        theta = 10000.0 ** (-torch.arange(dim // 2, dtype=torch.float64) / (dim // 2 - 1))
        angle = torch.arange(length, dtype=torch.float64)[:, None] * theta
        cos, sin = angle.cos().repeat_interleave(2, -1), angle.sin().repeat_interleave(2, -1)

        def heads_of(x):
            return x.unflatten(-1, (heads, -1)).transpose(1, 2)

        def rotated(x):
            turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
            return x * cos + turned * sin

        decay = 1 - 2.0 ** (-5 - torch.arange(heads, dtype=torch.float64))
        distance = torch.arange(length)[:, None] - torch.arange(length)
        mask = torch.where(distance >= 0, decay[:, None, None] ** distance.clamp(min=0), 0.0)
        norm = ((1 - decay[:, None] ** torch.arange(1, length + 1)) / (1 - decay[:, None])).sqrt()
        x = w("embed_tokens")[ids]
        for layer in range(c["decoder_layers"]):
            p = f"layers.{layer}."
            y = rms(x, w(p + "retention_layer_norm"), eps)
            q, k, v, gate = (y @ w(f"{p}retention.{name}_proj").T for name in "qkvg")
            q, k, v = rotated(heads_of(q)), rotated(heads_of(k)) / math.sqrt(dim), heads_of(v)
            out = (q @ k.transpose(-1, -2) * mask / norm[:, :, None]) @ v
            out = rms(out, None, eps).transpose(1, 2).flatten(-2)
            x = x + (torch.nn.functional.silu(gate) * out) @ w(p + "retention.out_proj").T
            y = rms(x, w(p + "final_layer_norm"), eps)
            x = x + (torch.nn.functional.silu(y @ w(p + "ffn.fc1").T) * (y @ w(p + "ffn.gate").T)) @ w(p + "ffn.fc2").T
        return rms(x, w("layer_norm"), eps) @ w("output_projection").T
