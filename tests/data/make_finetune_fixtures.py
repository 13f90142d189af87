#!/usr/bin/env python3
"""Writes reference runs of fine-tuning: python3 make_finetune_fixtures.py MODELS OUTPUT

MODELS has the directories of make_fixtures.py (llama, gpt2). All runs are in fp32 with AdamW: lr 1e-3,
betas (0.9, 0.95), eps 1e-8, weight decay 0.1 on parameters of two dimensions, gradients clipped to norm 1.
S steps, B examples per step, rows of at most T tokens, padded with id 0 on the right.

sft.safetensors             ids (S, B, T), lengths (S, B), labels (S, B, T) (-100: no loss for this token),
                            losses (S) = sum / number of labels, norms (S) before clipping
dpo.safetensors             ids (S, B, 2, T) chosen and rejected, lengths, masks (S, B, 2, T) (1: completion),
                            reference (S, B, 2) log-probabilities of the initial model, losses (S) with beta 0.1,
                            norms (S), chosen and rejected (S): mean rewards, accuracy (S)
classification-FAMILY.safetensors
                            ids (S, B, T), lengths (S, B), labels (S, B), score.weight (initial), losses (S), norms (S),
                            class_weights (C), weighted_losses (S) and weighted_norms (S) of a second run with them,
                            logits (B, C) of the first step's rows before training; hidden_mean, hidden_last (B, H):
                            last_hidden_state pooled over the tokens of a row
lora-NAME/                  adapter_config.json and adapter_model.safetensors as PEFT's save_pretrained writes them, with
                            a random B; expected.safetensors: ids (2, T), logits of base and adapter, and a run of
                            supervised steps from there: step_ids (S, B, T), step_lengths, losses (S), norms (S);
                            final.<name>: the adapter after it

Made with PyTorch 2.11, transformers 5.17 and peft 0.21.
"""

import copy
import json
import pathlib
import sys

import torch
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

STEPS, ROWS, LENGTH, VOCABULARY = 20, 4, 20, 67
torch.manual_seed(0)
random = torch.Generator().manual_seed(7)


def integers(low, high, shape):
    return torch.randint(low, high, shape, generator=random)


def rows(*shape):
    """Rows of different lengths: ids and lengths."""
    lengths = integers(6, LENGTH + 1, shape)
    ids = integers(1, VOCABULARY, (*shape, LENGTH))
    return torch.where(torch.arange(LENGTH) < lengths[..., None], ids, 0), lengths


def load(directory, kind=AutoModelForCausalLM, **options):
    return kind.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32, **options).train()


def causal_mask_inputs(ids, lengths):
    return dict(input_ids=ids, attention_mask=(torch.arange(ids.shape[-1]) < lengths[..., None]).long())


def token_losses(model, ids, lengths):
    """Of token t + 1 at index t."""
    logits = model(**causal_mask_inputs(ids, lengths), use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    ).view(ids.shape[0], -1)


class Optimizer:
    def __init__(self, model):
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        groups = [
            dict(params=[p for p in self.parameters if p.dim() > 1], weight_decay=0.1),
            dict(params=[p for p in self.parameters if p.dim() == 1], weight_decay=0.0),
        ]
        self.adamw = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)

    def step(self, loss):
        self.adamw.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in self.parameters if p.grad is not None))
        for p in self.parameters:
            if p.grad is not None:
                p.grad.mul_(min(1.0, 1.0 / norm.item()))
        self.adamw.step()
        return norm.item()


def run(model, loss_of):
    optimizer, losses, norms, others = Optimizer(model), [], [], []
    for step in range(STEPS):
        loss, *other = loss_of(model, step)
        losses.append(loss.item())
        others.append([float(x) for x in other])
        norms.append(optimizer.step(loss))
    return torch.tensor(losses), torch.tensor(norms), torch.tensor(others)


def save(path, tensors):
    tensors = {name: t.to(torch.int32) if t.dtype == torch.int64 else t for name, t in tensors.items()}
    save_file({name: t.detach().float() if t.is_floating_point() else t for name, t in
               {n: t.contiguous().clone() for n, t in tensors.items()}.items()}, path)


def make_sft(models, output):
    ids, lengths = rows(STEPS, ROWS)
    trained = (torch.arange(LENGTH) >= 3) & (torch.arange(LENGTH) < lengths[..., None])
    trained &= integers(0, 4, trained.shape) > 0
    labels = torch.where(trained, ids, -100)

    def loss_of(model, step):
        losses = token_losses(model, ids[step], lengths[step])
        counts = (labels[step][:, 1:] >= 0).float()
        return ((losses * counts).sum() / counts.sum(),)

    losses, norms, _ = run(load(models / "llama"), loss_of)
    save(output / "sft.safetensors", dict(ids=ids, lengths=lengths, labels=labels, losses=losses, norms=norms))


def make_dpo(models, output):
    ids, lengths = rows(STEPS, ROWS, 2)
    prompts = integers(2, 5, (STEPS, ROWS, 1))
    ids[:, :, 1, :4] = ids[:, :, 0, :4]
    where = torch.arange(LENGTH)
    masks = ((where >= prompts[..., None]) & (where < lengths[..., None])).long()
    beta = 0.1

    def log_probabilities(model, step):
        flat = ids[step].flatten(0, 1)
        losses = token_losses(model, flat, lengths[step].flatten())
        return -(losses * masks[step].flatten(0, 1)[:, 1:]).sum(-1).view(ROWS, 2)

    base = load(models / "llama")
    with torch.no_grad():
        reference = torch.stack([log_probabilities(base, step) for step in range(STEPS)])

    def loss_of(model, step):
        rewards = beta * (log_probabilities(model, step) - reference[step])
        margin = rewards[:, 0] - rewards[:, 1]
        loss = -torch.nn.functional.logsigmoid(margin).mean()
        return loss, rewards[:, 0].mean(), rewards[:, 1].mean(), (margin > 0).float().mean()

    losses, norms, others = run(load(models / "llama"), loss_of)
    save(output / "dpo.safetensors", dict(
        ids=ids, lengths=lengths, masks=masks, reference=reference, losses=losses, norms=norms,
        chosen=others[:, 0], rejected=others[:, 1], accuracy=others[:, 2]))


def make_classification(models, output, family, classes):
    ids, lengths = rows(STEPS, ROWS)
    labels = integers(0, classes, (STEPS, ROWS))
    torch.manual_seed(3)
    first = load(models / family, AutoModelForSequenceClassification, num_labels=classes, pad_token_id=0)
    weights = torch.tensor([1.0, 2.5, 0.5, 3.0][:classes])

    def loss_with(class_weights):
        def loss_of(model, step):
            logits = model(**causal_mask_inputs(ids[step], lengths[step])).logits
            return (torch.nn.functional.cross_entropy(logits, labels[step], weight=class_weights),)
        return loss_of

    tensors = dict(ids=ids, lengths=lengths, labels=labels, class_weights=weights)
    tensors["score.weight"] = first.score.weight
    with torch.no_grad():
        inputs = causal_mask_inputs(ids[0], lengths[0])
        tensors["logits"] = first(**inputs).logits
        hidden = first.base_model(**inputs).last_hidden_state
        mask = inputs["attention_mask"][..., None]
        tensors["hidden_mean"] = (hidden * mask).sum(1) / mask.sum(1)
        tensors["hidden_last"] = hidden[torch.arange(ROWS), lengths[0] - 1]
    tensors["losses"], tensors["norms"], _ = run(copy.deepcopy(first), loss_with(None))
    tensors["weighted_losses"], tensors["weighted_norms"], _ = run(copy.deepcopy(first), loss_with(weights))
    save(output / f"classification-{family}.safetensors", tensors)


def make_lora(models, output, name, family, classes=0, **options):
    directory = output / f"lora-{name}"
    torch.manual_seed(11)
    if classes:
        base = load(models / family, AutoModelForSequenceClassification, num_labels=classes, pad_token_id=0)
    else:
        base = load(models / family)
    model = get_peft_model(base, LoraConfig(
        r=4, lora_alpha=8, task_type="SEQ_CLS" if classes else "CAUSAL_LM", **options))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.2)
    model.peft_config["default"].base_model_name_or_path = family
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    ids, lengths = rows(2)
    step_ids, step_lengths = rows(STEPS, ROWS)
    labels = integers(0, max(classes, 1), (STEPS, ROWS))
    tensors = dict(ids=ids, lengths=lengths, step_ids=step_ids, step_lengths=step_lengths)
    if classes:
        tensors["step_labels"] = labels
    with torch.no_grad():
        tensors["logits"] = model(**causal_mask_inputs(ids, lengths)).logits
        with model.disable_adapter():
            tensors["base_logits"] = model(**causal_mask_inputs(ids, lengths)).logits

    def loss_of(model, step):
        if classes:
            logits = model(**causal_mask_inputs(step_ids[step], step_lengths[step])).logits
            return (torch.nn.functional.cross_entropy(logits, labels[step]),)
        losses = token_losses(model, step_ids[step], step_lengths[step])
        counts = (torch.arange(1, LENGTH) < step_lengths[step][:, None]).float()
        return ((losses * counts).sum() / counts.sum(),)

    tensors["losses"], tensors["norms"], _ = run(model, loss_of)
    for key, value in get_peft_model_state_dict(model).items():
        tensors["final." + key] = value
    save(directory / "expected.safetensors", tensors)
    print(name, json.loads((directory / "adapter_config.json").read_text()))


def main():
    models, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    output.mkdir(parents=True, exist_ok=True)
    make_sft(models, output)
    make_dpo(models, output)
    make_classification(models, output, "llama", 3)
    make_classification(models, output, "gpt2", 2)
    every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    make_lora(models, output, "llama", "llama", target_modules=every)
    make_lora(models, output, "rs", "llama", target_modules=["q_proj", "v_proj"], use_rslora=True)
    make_lora(models, output, "gpt2", "gpt2", target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
    make_lora(models, output, "bloom", "bloom", target_modules=["query_key_value"])
    make_lora(models, output, "classifier", "llama", classes=3, target_modules=every)
    for file in sorted(output.rglob("*")):
        if file.is_file():
            print(file.relative_to(output), file.stat().st_size)


main()
