#!/usr/bin/env python3
"""Writes the reference models of the tests: python3 make_fixtures.py OUTPUT_DIRECTORY [CASE…]

One directory per case with config.json and model.safetensors as `save_pretrained` writes them, and
expected.safetensors: input_ids (2, T), logits (2, T, V), losses (2, T - 1), loss (1) and grad.<parameter>.
Made with PyTorch 2.11 and transformers 5.17; another version gives other bytes but the same mathematics.
"""

import copy
import json
import pathlib
import sys

import torch
from retnet_reference import RetNet
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DeepseekV3Config,
    Dots1Config,
    Glm4MoeConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoeConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

VOCABULARY, LENGTH, SEQUENCES = 67, 21, 2

# A large initial deviation, so that attention is far from uniform and every gradient well above rounding.
COMMON = dict(vocab_size=VOCABULARY, initializer_range=0.15, bos_token_id=1, eos_token_id=2)
SMALL = dict(
    COMMON,
    hidden_size=32,
    intermediate_size=56,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# Head size 8 has the wavelengths 6.3, 20, 63 and 199: one stays, one is blended (8 to 32), two are stretched.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# Of the four pairs of dimensions the first is kept, the second blended, the others stretched.
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
}
# Experts that are chosen by sigmoids, with an expert that all tokens share.
SIGMOID = dict(
    n_routed_experts=6,
    num_experts_per_tok=3,
    moe_intermediate_size=16,
    n_shared_experts=1,
    first_k_dense_replace=1,
    routed_scaling_factor=2.5,
    norm_topk_prob=True,
)
NO_DROPOUT = dict(hidden_dropout=0.0, attention_dropout=0.0)


def cases():
    return {
        "gpt2": GPT2Config(
            **COMMON,
            n_positions=64,
            n_embd=32,
            n_layer=2,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        ),
        "llama": LlamaConfig(
            **{**SMALL, "max_position_embeddings": 256},
            rope_parameters=LLAMA3_ROPE,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        ),
        "llama2": LlamaConfig(
            **{**SMALL, "num_key_value_heads": 4},
            rope_parameters=PLAIN_ROPE,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        ),
        "llama-tied": LlamaConfig(
            **SMALL, rope_parameters=PLAIN_ROPE, rms_norm_eps=1e-5, tie_word_embeddings=True
        ),
        "qwen2": Qwen2Config(
            **SMALL,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
        ),
        "qwen3": Qwen3Config(
            **SMALL,
            head_dim=16,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
        ),
        "bloom": BloomConfig(**COMMON, **NO_DROPOUT, hidden_size=32, n_layer=2, n_head=4),
        # Heads that are no power of two take the second half of the ALiBi slopes' formula. One layer: it is larger.
        "bloom-6heads": BloomConfig(**COMMON, **NO_DROPOUT, hidden_size=48, n_layer=1, n_head=6),
        "llama-yarn": LlamaConfig(
            **{**SMALL, "max_position_embeddings": 256},
            rope_parameters=YARN_ROPE,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        ),
        "olmo2": Olmo2Config(
            **SMALL, rope_parameters=PLAIN_ROPE, rms_norm_eps=1e-6, tie_word_embeddings=False
        ),
        # Queries of the first layer see 6 keys; rotations of the second are scaled.
        "olmo3": Olmo3Config(
            **{**SMALL, "max_position_embeddings": 256},
            sliding_window=6,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": YARN_ROPE["rope_theta"]},
                "full_attention": YARN_ROPE,
            },
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
        ),
        "mixtral": MixtralConfig(
            **{**SMALL, "intermediate_size": 24},
            num_local_experts=4,
            num_experts_per_tok=2,
            rope_parameters=PLAIN_ROPE,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        ),
        # The second of three layers is dense.
        "qwen3-moe": Qwen3MoeConfig(
            **{**SMALL, "num_hidden_layers": 3},
            head_dim=16,
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=16,
            mlp_only_layers=[1],
            norm_topk_prob=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
        ),
        "olmoe": OlmoeConfig(
            **{**SMALL, "intermediate_size": 16, "num_key_value_heads": 4},
            num_experts=6,
            num_experts_per_tok=2,
            rope_parameters=PLAIN_ROPE,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        ),
        # The first layer is dense. Weights are scaled, and a bias takes part in the choice.
        "dots1": Dots1Config(
            **SMALL,
            head_dim=8,
            **SIGMOID,
            n_group=1,
            topk_group=1,
            rope_parameters=PLAIN_ROPE,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        ),
        "glm4-moe": Glm4MoeConfig(
            **SMALL,
            head_dim=8,
            **SIGMOID,
            n_group=1,
            topk_group=1,
            attention_bias=True,
            use_qk_norm=False,
            rope_parameters={**PLAIN_ROPE, "partial_rotary_factor": 0.5},
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        ),
        # Latent attention with YaRN, and groups of experts.
        "deepseek-v3": DeepseekV3Config(
            **{**SMALL, "num_key_value_heads": 4},
            **{**SIGMOID, "n_routed_experts": 8},
            n_group=4,
            topk_group=2,
            q_lora_rank=20,
            kv_lora_rank=12,
            qk_nope_head_dim=6,
            qk_rope_head_dim=4,
            v_head_dim=8,
            rope_parameters={**YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 1.0},
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
        ),
    }


def build(config, seed):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for _, parameter in model.named_parameters():  # biases and norms too: no path may be trivial
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(torch.randn_like(buffer), alpha=0.1)
    return model


def save(model, directory, **options):
    model.save_pretrained(directory, **options)
    for file in directory.iterdir():
        if file.name != "config.json" and not file.name.startswith("model"):
            file.unlink()


# Gradients by the names of the files: those have a tensor for each matrix of an expert.
def gradients(model):
    for name, parameter in model.named_parameters():  # a tied head appears once, as the embedding
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
        if ".experts." not in name:
            yield name.replace(".mlp.gate", ".block_sparse_moe.gate") if mixtral(model) else name, parameter.grad
            continue
        layer = name[: name.index(".mlp.")]
        for expert, gradient in enumerate(parameter.grad):
            assert gradient.abs().max() > 0, (name, expert)
            if mixtral(model):
                prefix, words = f"{layer}.block_sparse_moe.experts.{expert}.", ("w1", "w3", "w2")
            else:
                prefix, words = f"{layer}.mlp.experts.{expert}.", ("gate_proj", "up_proj", "down_proj")
            if name.endswith("gate_up_proj"):
                gate, up = gradient.chunk(2)
                yield f"{prefix}{words[0]}.weight", gate
                yield f"{prefix}{words[1]}.weight", up
            else:
                assert name.endswith("down_proj"), name
                yield f"{prefix}{words[2]}.weight", gradient


def mixtral(model):
    return model.config.model_type == "mixtral"


def expected(model, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (SEQUENCES, LENGTH), generator=generator)
    logits = model(input_ids=ids, use_cache=False).logits
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].double().flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    ).view(SEQUENCES, LENGTH - 1)
    loss = losses.mean()
    loss.backward()
    tensors = {
        "input_ids": ids.to(torch.int32),
        "logits": logits.detach().float(),
        "losses": losses.detach().float(),
        "loss": loss.detach().float().view(1),
    }
    for name, gradient in gradients(model):
        tensors["grad." + name] = gradient
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


def check_llama3_rope(model):
    plain = LLAMA3_ROPE["rope_theta"] ** (-torch.arange(0, 8, 2) / 8)
    ratio = model.model.rotary_emb.inv_freq / plain
    stretched = 1 / LLAMA3_ROPE["factor"]
    assert abs(ratio[0] - 1) < 1e-5 and stretched * 1.1 < ratio[1] < 0.9, ratio
    assert (abs(ratio[2:] - stretched) < 1e-5).all(), ratio


RETNET = {
    "architectures": ["RetNetForCausalLM"],
    "model_type": "retnet",
    "vocab_size": VOCABULARY,
    "decoder_embed_dim": 32,
    "decoder_value_embed_dim": 48,
    "decoder_ffn_embed_dim": 40,
    "decoder_layers": 2,
    "decoder_retention_heads": 2,
    "max_position_embeddings": 64,
    "activation_fn": "swish",
    "layernorm_eps": 1e-6,
    "no_scale_embedding": True,
    "share_decoder_input_output_embed": False,
}


# transformers has no RetNet: the model of retnet_reference.py, and its logits in fp64.
def make_retnet(directory):
    directory.mkdir(parents=True, exist_ok=True)
    model = RetNet(RETNET, 50)
    ids = torch.randint(0, VOCABULARY, (SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(150))
    logits = model(ids)
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    ).view(SEQUENCES, LENGTH - 1)
    losses.mean().backward()
    tensors = {
        "input_ids": ids.to(torch.int32),
        "logits": logits.detach().float(),
        "logits64": logits.detach(),
        "losses": losses.detach().float(),
        "loss": losses.mean().detach().float().view(1),
    }
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
        tensors["grad." + name] = parameter.grad.float()
    save_file({name: x.contiguous().clone() for name, x in tensors.items()}, directory / "expected.safetensors")
    weights = {name: parameter.detach().float().contiguous() for name, parameter in model.named_parameters()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(RETNET, indent=2) + "\n")


def main():
    output = pathlib.Path(sys.argv[1])
    torch.use_deterministic_algorithms(True)
    if len(sys.argv) == 2 or "retnet" in sys.argv[2:]:
        make_retnet(output / "retnet")
    for seed, (name, config) in enumerate(cases().items(), start=1):
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        directory = output / name
        directory.mkdir(parents=True, exist_ok=True)
        model = build(config, seed)
        save(model, directory)
        save_file(expected(model, 100 + seed), directory / "expected.safetensors")
        if name == "llama":
            check_llama3_rope(model)
            save(model, output / "llama-sharded", max_shard_size="40KB")
            save(copy.deepcopy(model).to(torch.bfloat16), output / "llama-bf16")
            save(copy.deepcopy(model).to(torch.float16), output / "llama-fp16")
        print(name, sum(file.stat().st_size for file in directory.iterdir()), "bytes")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main()
