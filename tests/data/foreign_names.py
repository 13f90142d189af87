"""Weights of Hugging Face models in the names and layouts of torchtitan and Megatron-LM (sources of August 2026)."""

import argparse
import enum
import pathlib
import signal
import sys
import types

import torch


def to_torchtitan(config, tensors, qkv="attention."):
    """Llama's q and k have adjacent pairs of rows that are rotated together; Qwen3's have halves, as here."""
    names = {
        "self_attn.q_proj": qkv + "wq", "self_attn.k_proj": qkv + "wk", "self_attn.v_proj": qkv + "wv",
        "self_attn.o_proj": "attention.wo", "self_attn.q_norm": "attention.q_norm",
        "self_attn.k_norm": "attention.k_norm", "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2", "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    result = {}
    for name, tensor in tensors.items():
        if config["model_type"] == "llama" and ("q_proj" in name or "k_proj" in name):
            halves = tensor.reshape(-1, 2, config["head_dim"] // 2, tensor.shape[1])
            tensor = torch.stack((halves[:, 0], halves[:, 1]), dim=2).reshape(tensor.shape)
        name = name.replace("model.embed_tokens", "tok_embeddings").replace("lm_head", "output")
        name = name.removeprefix("model.")
        if name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            name = f"layers.{layer}.{names[rest.removesuffix('.weight')]}.weight"
        result[name] = tensor
    return result


def by_group(q, k, v, groups):
    """Rows of q, k and v in Megatron's order: of each key-value head its queries, its key, its value."""
    split = lambda x: x.reshape(groups, -1, *x.shape[1:])
    joined = torch.cat([split(q), split(k), split(v)], dim=1)
    return joined.reshape(-1, *q.shape[1:])


def to_megatron(config, tensors, fused=True, vocabulary=0):
    """One flat dict of whole tensors; linear_fc1 is [gate; up]."""
    norms = ("self_attention.linear_qkv.layer_norm_", "mlp.linear_fc1.layer_norm_")
    norms = norms if fused else ("input_layernorm.", "pre_mlp_layernorm.")
    pad = lambda x: torch.cat([x, torch.ones(vocabulary - len(x), x.shape[1], dtype=x.dtype)]) if vocabulary else x
    gpt2 = config["model_type"] == "gpt2"
    t = lambda name: tensors[name].T.contiguous() if tensors[name].dim() == 2 else tensors[name]
    result = {}
    if gpt2:
        result["embedding.word_embeddings.weight"] = pad(tensors["transformer.wte.weight"])
        result["embedding.position_embeddings.weight"] = tensors["transformer.wpe.weight"]
        for end in ("weight", "bias"):
            result["decoder.final_layernorm." + end] = tensors["transformer.ln_f." + end]
        for i in range(config["n_layer"]):
            old, new = f"transformer.h.{i}.", f"decoder.layers.{i}."
            for end in ("weight", "bias"):
                q, k, v = t(f"{old}attn.c_attn.{end}").chunk(3)
                result[f"{new}self_attention.linear_qkv.{end}"] = by_group(q, k, v, config["n_head"])
                result[f"{new}self_attention.linear_proj.{end}"] = t(f"{old}attn.c_proj.{end}")
                result[f"{new}mlp.linear_fc1.{end}"] = t(f"{old}mlp.c_fc.{end}")
                result[f"{new}mlp.linear_fc2.{end}"] = t(f"{old}mlp.c_proj.{end}")
                for norm, part in zip(norms, ("ln_1", "ln_2")):
                    result[new + norm + end] = tensors[f"{old}{part}.{end}"]
        return result
    result["embedding.word_embeddings.weight"] = pad(tensors["model.embed_tokens.weight"])
    result["decoder.final_layernorm.weight"] = tensors["model.norm.weight"]
    for i in range(config["num_hidden_layers"]):
        old, new = f"model.layers.{i}.", f"decoder.layers.{i}."
        for end in ("weight", "bias"):
            if f"{old}self_attn.q_proj.{end}" in tensors:
                qkv = (tensors[f"{old}self_attn.{x}_proj.{end}"] for x in "qkv")
                result[f"{new}self_attention.linear_qkv.{end}"] = by_group(*qkv, config["num_key_value_heads"])
        for x in "qk":
            if f"{old}self_attn.{x}_norm.weight" in tensors:
                result[f"{new}self_attention.{x}_layernorm.weight"] = tensors[f"{old}self_attn.{x}_norm.weight"]
        result[new + "self_attention.linear_proj.weight"] = tensors[old + "self_attn.o_proj.weight"]
        gate, up = (tensors[f"{old}mlp.{x}_proj.weight"] for x in ("gate", "up"))
        result[new + "mlp.linear_fc1.weight"] = torch.cat([gate, up])
        result[new + "mlp.linear_fc2.weight"] = tensors[old + "mlp.down_proj.weight"]
        for norm, part in zip(norms, ("input", "post_attention")):
            result[new + norm + "weight"] = tensors[f"{old}{part}_layernorm.weight"]
    if "lm_head.weight" in tensors:
        result["output_layer.weight"] = pad(tensors["lm_head.weight"])
    return result


def sharded_dimension(name):
    if name.endswith(("word_embeddings.weight", "output_layer.weight")):
        return 0
    if "linear_qkv." in name or "linear_fc1." in name:
        return None if "layer_norm" in name else 0
    return 1 if name.endswith(("linear_proj.weight", "linear_fc2.weight")) else None


class ModelType(enum.Enum):
    encoder_or_decoder = 1


# A member is pickled under the name that Megatron's has.
for module in ("megatron", "megatron.core", "megatron.core.enums"):
    sys.modules.setdefault(module, types.ModuleType(module))
sys.modules["megatron.core.enums"].ModelType = ModelType
ModelType.__module__ = "megatron.core.enums"


def arguments_of(config, **more):
    """A part of Megatron's args, with values of all kinds that it has."""
    heads = config.get("num_attention_heads", config.get("n_head"))
    hidden = config.get("hidden_size", config.get("n_embd"))
    groups = config.get("num_key_value_heads", heads)
    return argparse.Namespace(
        num_layers=config.get("num_hidden_layers", config.get("n_layer")), hidden_size=hidden,
        num_attention_heads=heads, kv_channels=config.get("head_dim", hidden // heads), num_query_groups=groups,
        group_query_attention=groups != heads, norm_epsilon=config.get("rms_norm_eps", 1e-5),
        ffn_hidden_size=config.get("intermediate_size", 4 * hidden), rotary_interleaved=False, rotary_percent=1.0,
        apply_layernorm_1p=False, params_dtype=torch.bfloat16, activation_func=torch.nn.functional.silu,
        exit_signal=signal.SIGTERM, model_type=ModelType.encoder_or_decoder, save=pathlib.PosixPath("/scratch"),
        data_path=["0.5", "a", "0.5", "b"], seed=2**70, rampup=None, **more,
    )  # fmt: skip
