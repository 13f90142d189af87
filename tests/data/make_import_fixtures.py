#!/usr/bin/env python3
"""Writes the checkpoints of other programs that the tests import: python3 make_import_fixtures.py DATA OUTPUT

DATA is tests/data, OUTPUT tests/data/import. Layouts and names are those of PyTorch's distributed checkpoints,
torchtitan and Megatron-LM (sources of August 2026); the bytes of tensors are torch.save's own. Made with Debian's
PyTorch 1.13, which has no torch.distributed.checkpoint: `.metadata` is Python's pickle of classes with the modules,
names and attributes of PyTorch 2. No file here was written by Megatron or torchtitan.

dcp-llama, torch-dist-qwen3, megatron-gpt2    from the models llama, qwen3 and gpt2 of DATA
dcp-qwen3, torch-dist-llama, torch-dist-gpt2, megatron-qwen2
                                              from tiny-FAMILY, which have random bf16 weights and are written, too
hostile.pt                                    a torch.save whose pickle would execute a command
"""

import enum
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import sys
import types

import numpy
import torch
from foreign_names import arguments_of, sharded_dimension, to_megatron, to_torchtitan

DATA, OUTPUT = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16}
NUMPY = {"F32": numpy.uint32, "BF16": numpy.uint16}
random = torch.Generator().manual_seed(5)


# ---- models


def read_model(directory):
    data = (directory / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + x for x in entry["data_offsets"])
        raw = bytearray(data[begin:end])
        tensors[name] = torch.frombuffer(raw, dtype=TYPES[entry["dtype"]]).reshape(entry["shape"])
    return json.loads((directory / "config.json").read_text()), tensors


def write_model(directory, config, tensors):
    header, blobs, at = {}, [], 0
    for name, tensor in tensors.items():
        blobs.append(tensor.contiguous().view(torch.int16).numpy().tobytes())
        header[name] = dict(dtype="BF16", shape=list(tensor.shape), data_offsets=[at, at + len(blobs[-1])])
        at += len(blobs[-1])
    text = json.dumps(header).encode()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def values(*shape):
    return torch.randn(shape, generator=random).to(torch.bfloat16)


def tiny_llama_like(kind, name, layers, tied, head=4, **more):
    config = dict(
        architectures=[name], model_type=kind, vocab_size=31, hidden_size=16, intermediate_size=24,
        num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, head_dim=head, hidden_act="silu",
        max_position_embeddings=64, rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=tied,
        torch_dtype="bfloat16", **more,
    )  # fmt: skip
    q, kv = 4 * head, 2 * head
    tensors = {"model.embed_tokens.weight": values(31, 16)}
    for i in range(layers):
        layer = f"model.layers.{i}."
        for part, rows in (("q", q), ("k", kv), ("v", kv)):
            tensors[f"{layer}self_attn.{part}_proj.weight"] = values(rows, 16)
            if kind == "qwen2":
                tensors[f"{layer}self_attn.{part}_proj.bias"] = values(rows)
            if kind == "qwen3" and part != "v":
                tensors[f"{layer}self_attn.{part}_norm.weight"] = values(head)
        tensors[layer + "self_attn.o_proj.weight"] = values(16, q)
        for part in ("gate", "up"):
            tensors[f"{layer}mlp.{part}_proj.weight"] = values(24, 16)
        tensors[layer + "mlp.down_proj.weight"] = values(16, 24)
        for part in ("input", "post_attention"):
            tensors[f"{layer}{part}_layernorm.weight"] = values(16)
    tensors["model.norm.weight"] = values(16)
    if not tied:
        tensors["lm_head.weight"] = values(31, 16)
    return config, tensors


def tiny_gpt2(layers):
    config = dict(
        architectures=["GPT2LMHeadModel"], model_type="gpt2", vocab_size=31, n_embd=16, n_head=4, n_layer=layers,
        n_positions=12, activation_function="gelu_new", layer_norm_epsilon=1e-5, tie_word_embeddings=True,
        torch_dtype="bfloat16",
    )  # fmt: skip
    tensors = {"transformer.wte.weight": values(31, 16), "transformer.wpe.weight": values(12, 16)}
    for i in range(layers):
        layer = f"transformer.h.{i}."
        for part, inputs, outputs in (
            ("attn.c_attn", 16, 48), ("attn.c_proj", 16, 16), ("mlp.c_fc", 16, 64), ("mlp.c_proj", 64, 16)
        ):  # fmt: skip
            tensors[f"{layer}{part}.weight"] = values(inputs, outputs)
            tensors[f"{layer}{part}.bias"] = values(outputs)
        for part in ("ln_1", "ln_2"):
            for end in ("weight", "bias"):
                tensors[f"{layer}{part}.{end}"] = values(16)
    tensors["transformer.ln_f.weight"] = values(16)
    tensors["transformer.ln_f.bias"] = values(16)
    return config, tensors


# ---- classes with the names of other programs

METADATA = "torch.distributed.checkpoint.metadata"


def named_class(module, name, base=object, **members):
    for i, part in enumerate(module.split(".")):
        parent = ".".join(module.split(".")[: i + 1])
        sys.modules.setdefault(parent, types.ModuleType(parent))
    made = type(name, (base,), dict(members, __module__=module, __qualname__=name))
    setattr(sys.modules[module], name, made)
    return made


def instance(cls, **attributes):
    made = cls.__new__(cls)
    made.__dict__.update(attributes)
    return made


class _MEM_FORMAT_ENCODING(enum.Enum):
    TORCH_CONTIGUOUS_FORMAT = 0


named_class(METADATA, "_MEM_FORMAT_ENCODING")
_MEM_FORMAT_ENCODING.__module__ = METADATA
sys.modules[METADATA]._MEM_FORMAT_ENCODING = _MEM_FORMAT_ENCODING

TensorProperties = named_class(METADATA, "TensorProperties", __getstate__=lambda self: self.state)
ChunkStorageMetadata = named_class(METADATA, "ChunkStorageMetadata")
TensorStorageMetadata = named_class(METADATA, "TensorStorageMetadata")
BytesStorageMetadata = named_class(METADATA, "BytesStorageMetadata")
MetadataIndex = named_class(METADATA, "MetadataIndex", __hash__=lambda self: hash((self.fqn, self.offset)))
StorageMeta = named_class(METADATA, "StorageMeta")
Metadata = named_class(METADATA, "Metadata")
StorageInfo = named_class("torch.distributed.checkpoint.filesystem", "_StorageInfo")


# ---- torch DCP


def save_dcp(directory, chunks, objects=()):
    """chunks: name -> (whole shape, list of (offsets, tensor, file)); objects: names of values that are no tensors."""
    directory.mkdir(parents=True)
    files, tensors, storage = {}, {}, {}

    def store(name, offsets, value, file):
        blob, stream = io.BytesIO(), files.setdefault(file, io.BytesIO())
        torch.save(value, blob)
        index = instance(MetadataIndex, fqn=name, offset=None if offsets is None else torch.Size(offsets), index=0)
        storage[index] = instance(
            StorageInfo, relative_path=f"__{file}_0.distcp", offset=stream.tell(), length=blob.tell()
        )
        stream.write(blob.getvalue())

    for name, (shape, parts) in chunks.items():
        state = (parts[0][1].dtype, torch.strided, False, _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT, False)
        tensors[name] = instance(
            TensorStorageMetadata, properties=instance(TensorProperties, state=state), size=torch.Size(shape),
            chunks=[instance(ChunkStorageMetadata, offsets=torch.Size(o), sizes=t.shape) for o, t, _ in parts],
        )  # fmt: skip
        for offsets, tensor, file in parts:
            store(name, offsets, tensor, file)
    for name in objects:
        tensors[name] = instance(BytesStorageMetadata)
        store(name, None, {"step": 7}, 0)
    for file, stream in files.items():
        (directory / f"__{file}_0.distcp").write_bytes(stream.getvalue())
    metadata = instance(
        Metadata, state_dict_metadata=tensors, planner_data={name: tuple(name.split(".")) for name in tensors},
        storage_data=storage, storage_meta=instance(StorageMeta, checkpoint_id=pathlib.PosixPath("c"), modules=[]),
    )  # fmt: skip
    with open(directory / ".metadata", "wb") as file:
        pickle.dump(metadata, file)


def row_chunks(tensor, ranks):
    """As FSDP shards it: rows, the last rank with fewer or none."""
    size = -(-len(tensor) // ranks)
    parts, at = [], 0
    for rank, part in enumerate(torch.split(tensor, size)):
        parts.append(([at] + [0] * (tensor.dim() - 1), part.clone(), rank))
        at += len(part)
    return tensor.shape, parts


def save_torchtitan(directory, tensors, prefix=""):
    chunks = {prefix + name: row_chunks(tensor, 2) for name, tensor in tensors.items()}
    norm = tensors["norm.weight"]
    chunks["optimizer.state.norm.weight.exp_avg"] = row_chunks(torch.zeros_like(norm), 2)
    # A column-major tensor, as a transposed view is saved.
    for name in list(chunks):
        if name.endswith("layers.1.feed_forward.w2.weight"):
            shape, _ = chunks[name]
            chunks[name] = (shape, [([0, 0], tensors[name.removeprefix(prefix)].T.clone().T, 1)])
    save_dcp(directory, chunks, ["train_state", "dataloader.dp_rank_0"])


def save_torch_dist(directory, config, tensors, ranks, stacked, halves_named):
    """Shards of `ranks` tensor ranks. stacked: all layers in one tensor; halves_named: keys …_w and …_v for gate and up."""
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    gated = config["model_type"] != "gpt2"
    iteration = directory / "iter_0000020"
    chunks = {}

    def add(name, tensor):
        dimension = sharded_dimension(name)
        layer = None
        if stacked and name.startswith("decoder.layers."):
            _, _, number, rest = name.split(".", 3)
            layer, name = int(number), "decoder.layers." + rest
        # [gate; up] of the ranks are twice as many chunks.
        is_fc1 = gated and name.endswith("linear_fc1.weight")
        parts = 2 * ranks if is_fc1 and not halves_named else ranks
        if halves_named and is_fc1:
            for end, half in zip(("_w", "_v"), tensor.chunk(2)):
                chunks[name + end] = (half.shape, [([i * len(p), 0], p.clone(), i) for i, p in enumerate(half.chunk(ranks))])
            return
        pieces = [tensor] if dimension is None else tensor.chunk(parts, dim=dimension)
        shape, own = chunks.setdefault(name, (tensor.shape if layer is None else (layers, *tensor.shape), []))
        at = 0
        for i, piece in enumerate(pieces):
            offsets = [at if d == dimension else 0 for d in range(tensor.dim())]
            at += piece.shape[dimension] if dimension is not None else 0
            piece = piece.clone()
            if layer is not None:
                offsets, piece = [layer, *offsets], piece[None]
            own.append((offsets, piece, i % ranks))

    for name, tensor in tensors.items():
        add(name, tensor)
    chunks["optimizer.state.exp_avg.decoder.final_layernorm.weight"] = row_chunks(torch.zeros(4), 1)
    save_dcp(iteration, chunks, ["decoder.layers.self_attention.linear_proj._extra_state/shard_0_2", "rng_state/shard_0.0_1.1"])
    torch.save(dict(args=arguments_of(config), checkpoint_version=3.0, iteration=20), iteration / "common.pt")
    (iteration / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    (directory / "latest_checkpointed_iteration.txt").write_text("20")


# ---- Megatron's files of ranks


def save_megatron(directory, config, tensors, tensor_ranks, stages, virtual=1, copy_head=False):
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    gated = config["model_type"] != "gpt2"
    own = layers // (stages * virtual)
    for stage in range(stages):
        for rank in range(tensor_ranks):
            models = []
            for chunk in range(virtual):
                first = (chunk * stages + stage) * own
                is_first, is_last = first == 0, first + own == layers
                model = {}
                for name, tensor in tensors.items():
                    if name.startswith("embedding.") and not is_first:
                        continue
                    if name.startswith(("decoder.final", "output_layer")) and not is_last:
                        continue
                    if name.startswith("decoder.layers."):
                        _, _, number, rest = name.split(".", 3)
                        if not first <= int(number) < first + own:
                            continue
                        name = f"decoder.layers.{int(number) - first}.{rest}"
                    dimension = sharded_dimension(name)
                    if dimension is None:
                        part = tensor
                    elif gated and name.endswith("linear_fc1.weight"):
                        part = torch.cat([half.chunk(tensor_ranks)[rank] for half in tensor.chunk(2)])
                    else:
                        part = tensor.chunk(tensor_ranks, dim=dimension)[rank]
                    model[name] = part.clone()
                    if name.endswith("linear_proj.weight"):
                        model[name.removesuffix("weight") + "_extra_state"] = io.BytesIO(b"fp8")
                if copy_head and is_last:
                    table = tensors["embedding.word_embeddings.weight"]
                    model["output_layer.weight"] = table.chunk(tensor_ranks)[rank].clone()
                models.append(model)
            state = dict(args=arguments_of(config), checkpoint_version=3.0, iteration=7)
            if virtual == 1:
                state["model"] = models[0]
            else:
                state.update({f"model{i}": model for i, model in enumerate(models)})
            state["optimizer"] = dict(state=dict(exp_avg=torch.zeros(3)), param_groups=[dict(lr=1e-3, betas=(0.9, 0.95))])
            state["rng_state"] = [dict(np_rng_state=("MT19937", numpy.arange(4, dtype=numpy.uint32), 1, 0, 0.0))]
            name = f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if stages > 1 else "")
            target = directory / "iter_0000007" / name
            target.mkdir(parents=True)
            torch.save(state, target / "model_optim_rng.pt")
    (directory / "latest_checkpointed_iteration.txt").write_text("7\n")


# ---- hostile


class Hostile:
    def __reduce__(self):
        return os.system, ("touch executed",)


def main():
    shutil.rmtree(OUTPUT, ignore_errors=True)
    tiny = dict(
        qwen3=tiny_llama_like("qwen3", "Qwen3ForCausalLM", 2, True, head=8),
        llama=tiny_llama_like("llama", "LlamaForCausalLM", 2, True),
        qwen2=tiny_llama_like("qwen2", "Qwen2ForCausalLM", 4, False),
        gpt2=tiny_gpt2(2),
    )
    for name, (config, tensors) in tiny.items():
        write_model(OUTPUT / f"tiny-{name}", config, tensors)
    config, tensors = read_model(DATA / "llama")
    save_torchtitan(OUTPUT / "dcp-llama", to_torchtitan(config, tensors))
    config, tensors = tiny["qwen3"]
    titan = to_torchtitan(config, tensors, "attention.qkv_linear.")
    titan["lm_head.weight"] = titan["tok_embeddings.weight"]
    save_torchtitan(OUTPUT / "dcp-qwen3", titan, "model.")
    config, tensors = read_model(DATA / "qwen3")
    save_torch_dist(OUTPUT / "torch-dist-qwen3", config, to_megatron(config, tensors, vocabulary=72), 2, True, False)
    config, tensors = tiny["llama"]
    save_torch_dist(OUTPUT / "torch-dist-llama", config, to_megatron(config, tensors, vocabulary=32), 2, False, True)
    config, tensors = tiny["gpt2"]
    save_torch_dist(OUTPUT / "torch-dist-gpt2", config, to_megatron(config, tensors, vocabulary=32), 1, True, False)
    config, tensors = read_model(DATA / "gpt2")
    megatron = to_megatron(config, tensors, fused=False, vocabulary=68)
    save_megatron(OUTPUT / "megatron-gpt2", config, megatron, 2, 2, copy_head=True)
    config, tensors = tiny["qwen2"]
    save_megatron(OUTPUT / "megatron-qwen2", config, to_megatron(config, tensors, vocabulary=32), 2, 2, virtual=2)
    torch.save({"weight": torch.ones(2), "other": Hostile()}, OUTPUT / "hostile.pt")


main()
