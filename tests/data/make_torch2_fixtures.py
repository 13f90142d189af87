#!/usr/bin/env python3
"""Writes checkpoints with PyTorch 2, and the models that they are: python3 make_torch2_fixtures.py OUTPUT [NAME…]

Needs PyTorch 2.9 or newer, transformers 5 and safetensors; neither a GPU nor a network, nor torchtitan or Megatron.
Each model directory has config.json and model.safetensors as `save_pretrained` writes them, and expected.safetensors:
input_ids (2, T) and logits (2, T, V) of eager attention in fp32. Those with an optimizer also have, by the names of
the model, AdamW's exp_avg.NAME and exp_avg_sq.NAME after one step, and next.NAME, the weights after a second step
without weight decay on input_ids, of which the losses of all tokens but the last have the same weight.

  llama, qwen3 (tied), qwen2, llama-adamw, qwen3-adamw (tied)    the models
  dcp-llama           torch.distributed.checkpoint, one process, torchtitan's names
  dcp-llama-2d        FSDP2 of 2 over tensor parallelism of 2
  dcp-llama-adamw     with AdamW, one process, by PyTorch's get_optimizer_state_dict, as torchtitan had it
  dcp-qwen3-adamw     with AdamW, FSDP2 of 2 processes, as torchtitan has it; rows do not divide evenly
  torch-dist-llama    Megatron's names, two tensor ranks, all layers in one tensor, common.pt
  torch-dist-qwen3    the same with a tensor for each layer, halves of linear_fc1, common_state: as Megatron now has it
  megatron-llama      mp_rank_TT/model_optim_rng.pt of two tensor ranks, whose parameters are views of one buffer
  megatron-qwen2      mp_rank_TT_PPP/model_optim_rng.pt of two tensor and two pipeline ranks
"""

import datetime
import io
import itertools
import os
import pathlib
import random
import shutil
import sys
import tempfile
import traceback

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import numpy
import torch
import torch.nn.functional as F
from foreign_names import arguments_of, sharded_dimension, to_megatron, to_torchtitan

VOCABULARY, LENGTH, SEQUENCES = 31, 12, 2
SMALL = dict(
    initializer_range=0.15, bos_token_id=1, eos_token_id=2, vocab_size=VOCABULARY, hidden_size=16,
    intermediate_size=22, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
)  # fmt: skip
ROPE = dict(rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
SEEDS = {"llama": 1, "qwen3": 2, "qwen2": 3, "llama-adamw": 5, "qwen3-adamw": 6}
ADAMW = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


# ---- models


def configurations():
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    llama = dict(SMALL, **ROPE, vocab_size=32, intermediate_size=24, rms_norm_eps=1e-5, tie_word_embeddings=False)
    qwen3 = dict(SMALL, **ROPE, head_dim=8, rms_norm_eps=1e-6, tie_word_embeddings=True)
    return {
        "llama": LlamaConfig(**llama),
        "qwen3": Qwen3Config(**qwen3),
        "qwen2": Qwen2Config(**SMALL, **ROPE, rms_norm_eps=1e-6, tie_word_embeddings=False),
        "llama-adamw": LlamaConfig(**{**llama, "num_hidden_layers": 1}),
        "qwen3-adamw": Qwen3Config(**{**qwen3, "num_hidden_layers": 1}),
    }


def step(model, optimizer, ids):
    """One step of the mean loss; returns the gradients."""
    optimizer.zero_grad()
    logits = model(input_ids=ids, use_cache=False).logits
    F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    gradients = values_of(model, lambda p: p.grad)
    optimizer.step()
    return gradients


def values_of(model, value):
    return {name: value(p).detach().clone() for name, p in model.named_parameters()}


def make_model(output, name, config, seed):
    """Writes the model. Returns its configuration and weights, and the weights and gradients before the step."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    ids = torch.randint(0, config.vocab_size, (2, SEQUENCES, LENGTH))
    before = gradients = optimizer = None
    if name.endswith("-adamw"):
        optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
        before = values_of(model, lambda p: p)
        gradients = step(model, optimizer, ids[0])
    weights = values_of(model, lambda p: p)
    folder = output / name
    model.save_pretrained(folder)
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    expected = {"input_ids": ids[1].to(torch.int32)}
    with torch.no_grad():
        expected["logits"] = model(input_ids=ids[1], use_cache=False).logits.float()
    if optimizer:
        for key in ("exp_avg", "exp_avg_sq"):
            moments = values_of(model, lambda p: optimizer.state[p][key])
            expected.update({f"{key}.{n}": moment for n, moment in moments.items()})
        optimizer.param_groups[0]["weight_decay"] = 0.0
        step(model, optimizer, ids[1])
        expected.update({f"next.{n}": weight for n, weight in values_of(model, lambda p: p).items()})
    save_file({n: tensor.contiguous() for n, tensor in expected.items()}, folder / "expected.safetensors")
    config = config.to_dict()
    config["head_dim"] = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    made = dict(config=config, weights=weights, before=before, gradients=gradients)
    check_model(made, expected)
    return made


def check_model(made, expected):
    """The names of torchtitan and Megatron stand for the same model: its own arithmetic gives the same logits."""
    config, ids = made["config"], expected["input_ids"].long()
    if config["model_type"] in ("llama", "qwen3"):
        difference = (titan_logits(config, titan(config, made["weights"]), ids) - expected["logits"]).abs().max()
        assert difference < 1e-5, f"torchtitan's arithmetic differs by {difference}"


def titan_logits(config, tensors, ids):
    """As torchtitan computes it: Llama's rotation multiplies adjacent pairs as complex numbers."""
    d = config["head_dim"]
    norm = lambda x, weight: F.rms_norm(x, (x.shape[-1],), weight, config["rms_norm_eps"])
    theta = config["rope_parameters"]["rope_theta"]
    angles = torch.outer(torch.arange(ids.shape[1]).float(), 1 / theta ** (torch.arange(0, d, 2).float() / d))

    def rotate(x):
        if config["model_type"] == "llama":
            pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
            return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    x = F.embedding(ids, tensors["tok_embeddings.weight"])
    for i in range(config["num_hidden_layers"]):
        weight = lambda name: tensors[f"layers.{i}.{name}.weight"]
        y = norm(x, weight("attention_norm"))
        heads = lambda part: F.linear(y, weight(f"{ATTENTION}.{part}")).unflatten(-1, (-1, d)).transpose(1, 2)
        q, k, v = heads("wq"), heads("wk"), heads("wv")
        if config["model_type"] == "qwen3":
            q, k = norm(q, weight("attention.q_norm")), norm(k, weight("attention.k_norm"))
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (rotate(k), v))
        y = F.scaled_dot_product_attention(rotate(q), k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + F.linear(y, weight("attention.wo"))
        y = norm(x, weight("ffn_norm"))
        y = F.silu(F.linear(y, weight("feed_forward.w1"))) * F.linear(y, weight("feed_forward.w3"))
        x = x + F.linear(y, weight("feed_forward.w2"))
    return F.linear(norm(x, tensors["norm.weight"]), tensors.get("output.weight", tensors["tok_embeddings.weight"]))


# ---- modules and processes

ATTENTION = "attention.qkv_linear"


def titan(config, tensors):
    return to_torchtitan(config, tensors, ATTENTION + ".")


def module_of(tensors):
    """A module whose state_dict has these tensors."""
    root = torch.nn.Module()
    for name, tensor in tensors.items():
        *path, leaf = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, torch.nn.Module())
            module = module._modules[part]
        module.register_parameter(leaf, torch.nn.Parameter(tensor))
    return root


def in_processes(function, count, output, made):
    """Calls function(rank, count, output, made) in processes of one gloo group."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(made, folder + "/made.pt")
        torch.multiprocessing.spawn(process, (function, count, output, folder), nprocs=count)


def process(rank, function, count, output, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=count,
        timeout=datetime.timedelta(seconds=60),
    )  # fmt: skip
    function(rank, count, output, torch.load(folder + "/made.pt", weights_only=False))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


# ---- torchtitan


def train_state(count, rank=0):
    return {
        "train_state": {"step": 1, "ntokens_seen": SEQUENCES * LENGTH},
        "lr_scheduler": {"base_lrs": [ADAMW["lr"]], "last_epoch": 1},
        "dataloader": {f"dp_rank_{rank}": b"position", "world_size": count},
    }


def save(states, folder, **options):
    import torch.distributed.checkpoint as dcp

    dcp.save(states, checkpoint_id=str(folder), **options)


def dcp_single(output, made):
    save({**module_of(titan(made["config"], made["weights"])).state_dict(), **train_state(1)}, output)


def dcp_single_adamw(output, made):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    module = module_of(titan(made["config"], made["before"]))
    optimizer = torch.optim.AdamW(module.parameters(), **ADAMW)
    gradients = titan(made["config"], made["gradients"])
    for name, parameter in module.named_parameters():
        parameter.grad = gradients[name]
    optimizer.step()
    check_weights(module, made)
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    states = {**module.state_dict(), "optimizer": get_optimizer_state_dict(module, optimizer, options=options)}
    save({**states, **train_state(1)}, output)


def check_weights(module, made):
    for name, tensor in titan(made["config"], made["weights"]).items():
        parameter = module.state_dict()[name]
        parameter = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        difference = (parameter - tensor).abs().max()
        assert difference < 1e-6, f"{name} differs by {difference} after the step"


def shard(module, mesh):
    from torch.distributed.fsdp import fully_shard

    for layer in module.layers.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)


def dcp_fsdp_adamw(rank, count, output, made):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    module = module_of(titan(made["config"], made["before"]))
    shard(module, init_device_mesh("cpu", (count,)))
    optimizer = torch.optim.AdamW(module.parameters(), **ADAMW, foreach=True)
    gradients = titan(made["config"], made["gradients"])
    names = {}
    for name, parameter in module.named_parameters():
        names[parameter] = name
        parameter.grad = distribute_tensor(gradients[name], parameter.device_mesh, parameter.placements)
    optimizer.step()
    check_weights(module, made)
    flat = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[parameter]
            flat.update({f"state.{name}.{key}": value for key, value in optimizer.state[parameter].items()})
            flat.update({f"param_groups.{name}.{key}": value for key, value in group.items() if key != "params"})
    save({**module.state_dict(), "optimizer": flat, **train_state(count, rank)}, output)


def dcp_2d(rank, count, output, made):
    """Tensor parallelism by torchtitan's plan, then FSDP2 over the other dimension."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "tp"))
    tensors = {}
    for name, tensor in titan(made["config"], made["weights"]).items():
        placement = Shard(1) if name.endswith(("wo.weight", "w2.weight")) else Shard(0)
        placement = Replicate() if "norm" in name else placement
        tensors[name] = distribute_tensor(tensor, mesh["tp"], [placement])
    module = module_of(tensors)
    shard(module, mesh["dp_shard"])
    save({**module.state_dict(), **train_state(count, rank)}, output)


# ---- Megatron


def tensor_parallel(name, tensor, rank, ranks):
    """The part of a tensor that a tensor rank has: of linear_fc1 [gate; up]."""
    dimension = sharded_dimension(name)
    if dimension is None:
        return tensor.clone()
    halves = tensor.chunk(2) if name.endswith("linear_fc1.weight") else [tensor]
    return torch.cat([half.chunk(ranks, dim=dimension)[rank] for half in halves])


def megatron_of(made, fused=True):
    config, tensors = made["config"], made["weights"]
    return to_megatron(config, tensors, fused, vocabulary=-(-config["vocab_size"] // 4) * 4 + 4)


def sharded_tensors(config, tensors, rank, ranks, stacked):
    """What Megatron's sharded_state_dict says: key -> (whole shape, [(offsets, chunk of this rank)])."""
    layers, result = config["num_hidden_layers"], {}
    for name, whole in tensors.items():
        dimension = sharded_dimension(name)
        if dimension is None and rank != 0:
            continue  # the first rank saves what all have
        part = tensor_parallel(name, whole, rank, ranks)
        chunks, key, shape = [(part, rank, "")], name, list(whole.shape)
        if name.endswith("linear_fc1.weight"):
            gate, up = part.chunk(2)
            chunks = [(gate, rank, ""), (up, rank + ranks, "")]
            if not stacked:
                chunks, shape[0] = [(gate, rank, "_w"), (up, rank, "_v")], shape[0] // 2
        layer = None
        if stacked and name.startswith("decoder.layers."):
            _, _, number, rest = name.split(".", 3)
            layer, key = int(number), "decoder.layers." + rest
            shape.insert(0, layers)
        for chunk, index, end in chunks:
            offsets = [index * chunk.shape[i] if i == dimension else 0 for i in range(chunk.dim())]
            if layer is not None:
                offsets, chunk = [layer, *offsets], chunk[None]
            result.setdefault(key + end, (shape, []))[1].append((offsets, chunk.contiguous()))
    return result


def as_sharded_tensor(shape, chunks, rank, ranks):
    from torch.distributed._shard.metadata import ShardMetadata
    from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata, TensorProperties

    size, own = chunks[0][1].shape, {tuple(offsets) for offsets, _ in chunks}
    shards = [Shard.from_tensor_and_offsets(chunk, list(offsets), rank) for offsets, chunk in chunks]
    metadata = []
    for at in itertools.product(*(range(0, whole, part) for whole, part in zip(shape, size))):
        owner = rank if at in own else (rank + 1) % ranks
        metadata.append(ShardMetadata(list(at), list(size), f"rank:{owner}/cpu"))
    properties = TensorProperties(
        dtype=chunks[0][1].dtype, layout=torch.strided, requires_grad=False, memory_format=torch.contiguous_format,
        pin_memory=False,
    )  # fmt: skip
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        shards, sharded_tensor_metadata=ShardedTensorMetadata(metadata, torch.Size(shape), properties)
    )


def object_bytes(value):
    """As Megatron stores an object of a rank."""
    stream = io.BytesIO()
    torch.save([value], stream)
    return stream


def planner():
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.planner import SavePlan
    from torch.distributed.checkpoint.planner_helpers import _create_write_items

    class MegatronPlanner(DefaultSavePlanner):
        """Megatron's: objects are bytes already, and those of all ranks are saved."""

        def create_local_plan(self):
            items = [item for name, value in self.state_dict.items() for item in _create_write_items(name, value)]
            self.plan = SavePlan(items=items, planner_data=self.mappings)
            return self.plan

        def transform_object(self, write_item, object):
            return object

    return MegatronPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)


def torch_dist(rank, count, output, made, stacked=True):
    config, folder = made["config"], output / "iter_0000020"
    sharded = sharded_tensors(config, megatron_of(made), rank, count, stacked)
    states = {key: as_sharded_tensor(*value, rank, count) for key, value in sharded.items()}
    states[f"rng_state/shard_0.{rank}_1.{count}"] = object_bytes({"random_rng_state": random.getstate()[:1]})
    layer = "decoder.layers." if stacked else "decoder.layers.0."
    if rank == 0:
        moments = as_sharded_tensor([4], [([0], torch.zeros(4))], 0, count)
        states["optimizer.state.exp_avg.decoder.final_layernorm.weight"] = moments
        states[layer + "self_attention.linear_proj._extra_state/shard_0_1"] = object_bytes(io.BytesIO(b"fp8"))
    common = dict(args=arguments_of(config), checkpoint_version=3.0, iteration=20)
    if not stacked and rank == 0:
        states["common_state/shard_0_1"] = object_bytes(common)
    save(states, folder, planner=planner())
    if rank == 0:
        if stacked:
            torch.save(common, folder / "common.pt")
        (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
        (output / "latest_checkpointed_iteration.txt").write_text("20")


def torch_dist_layers(rank, count, output, made):
    torch_dist(rank, count, output, made, stacked=False)


def in_one_buffer(tensors):
    """The same tensors as views of one storage, as the gradients' buffers of Megatron have them."""
    buffer, views, at = torch.empty(sum(t.numel() for t in tensors.values())), {}, 0
    for name, tensor in tensors.items():
        views[name] = buffer[at : at + tensor.numel()].view(tensor.shape).copy_(tensor)
        at += tensor.numel()
    return views


def legacy(output, made, stages, buffer):
    config, ranks = made["config"], 2
    layers = config["num_hidden_layers"] // stages
    for rank, stage in itertools.product(range(ranks), range(stages)):
        tensors = {}
        for name, tensor in megatron_of(made, fused=buffer).items():
            if name.startswith("embedding.") and stage > 0:
                continue
            if name.startswith(("decoder.final", "output_layer")) and stage + 1 < stages:
                continue
            if name.startswith("decoder.layers."):
                _, _, number, rest = name.split(".", 3)
                if int(number) // layers != stage:
                    continue
                name = f"decoder.layers.{int(number) % layers}.{rest}"
            tensors[name] = tensor_parallel(name, tensor, rank, ranks)
        model = module_of(in_one_buffer(tensors) if buffer else tensors)
        optimizer = torch.optim.AdamW(model.parameters())
        state = dict(args=arguments_of(config), checkpoint_version=3.0, iteration=7, model=model.state_dict())
        state["optimizer"] = {"optimizer": optimizer.state_dict()}
        numbers = dict(random_rng_state=random.getstate()[:1], np_rng_state=numpy.random.RandomState(1).get_state())
        state["rng_state"] = [numbers]
        folder = output / "iter_0000007" / (f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if stages > 1 else ""))
        folder.mkdir(parents=True)
        torch.save(state, folder / "model_optim_rng.pt")
    (output / "latest_checkpointed_iteration.txt").write_text("7")


# name: model, function, processes (0: in this one)
CHECKPOINTS = {
    "dcp-llama": ("llama", dcp_single, 0),
    "dcp-llama-2d": ("llama", dcp_2d, 4),
    "dcp-llama-adamw": ("llama-adamw", dcp_single_adamw, 0),
    "dcp-qwen3-adamw": ("qwen3-adamw", dcp_fsdp_adamw, 2),
    "torch-dist-llama": ("llama", torch_dist, 2),
    "torch-dist-qwen3": ("qwen3", torch_dist_layers, 2),
    "megatron-llama": ("llama", lambda output, made: legacy(output, made, 1, True), 0),
    "megatron-qwen2": ("qwen2", lambda output, made: legacy(output, made, 2, False), 0),
}


def write_versions(output):
    import safetensors
    import transformers

    text = f"PyTorch {torch.__version__}, transformers {transformers.__version__}, "
    text += f"safetensors {safetensors.__version__}, numpy {numpy.__version__}, "
    text += f"Python {sys.version.split()[0]}: make_torch2_fixtures.py\n"
    (output / "versions.txt").write_text(text)
    print(text, end="")


def bytes_in(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main():
    output, asked = pathlib.Path(sys.argv[1]), sys.argv[2:]
    output.mkdir(parents=True, exist_ok=True)
    torch.use_deterministic_algorithms(True)
    write_versions(output)
    failed, made = [], {}

    def attempt(name, make):
        shutil.rmtree(output / name, ignore_errors=True)
        try:
            result = make()
            print(f"{name}: {bytes_in(output / name)} bytes", flush=True)
            return result
        except Exception:
            traceback.print_exc()
            print(f"{name}: FAILED", flush=True)
            failed.append(name)
            shutil.rmtree(output / name, ignore_errors=True)

    for name, config in configurations().items():
        made[name] = attempt(name, lambda: make_model(output, name, config, SEEDS[name]))
    for name, (model, function, count) in CHECKPOINTS.items():
        if not made[model] or (asked and name not in asked):
            continue
        folder = output / name
        if count:
            attempt(name, lambda: in_processes(function, count, folder, made[model]))
        else:
            attempt(name, lambda: function(folder, made[model]))
    print(f"{bytes_in(output)} bytes, {len(failed)} failed: {' '.join(failed) or 'none'}")
    sys.exit(1 if failed or not all(made.values()) else 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main()
