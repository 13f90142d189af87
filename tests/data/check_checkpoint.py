#!/usr/bin/env python3
"""Opens a checkpoint with transformers: python3 check_checkpoint.py CHECKPOINT FOLDER

FOLDER/logprobs.json holds {"token_ids": [n], "logprobs": [n - 1]}: Kintsugi's log-probability of every token but the
first. Prints the largest difference from transformers' in fp32; exits with 1 when it is over 1e-3.
"""

import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TOLERANCE = 1e-3


def main(checkpoint, folder):
    if (checkpoint / "tokenizer.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        text = "Kintsugi joins broken pieces with gold."
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        print("tokenizer:", len(tokenizer), "tokens;", text, "->", ids)
        if tokenizer.decode(ids) != text:
            print("warning: decoding gives", repr(tokenizer.decode(ids)))

    model, info = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    model.eval()
    unexpected, missing = info["unexpected_keys"], info["missing_keys"]
    if unexpected or missing:
        print("keys unexpected:", sorted(unexpected), "missing:", sorted(missing))
        return 1

    data = json.loads((folder / "logprobs.json").read_text())
    ids = torch.tensor(data["token_ids"])
    ours = torch.tensor(data["logprobs"], dtype=torch.float64)
    if ours.numel() != ids.numel() - 1:
        print(f"logprobs.json: {ids.numel()} tokens need {ids.numel() - 1} values, not {ours.numel()}")
        return 1
    with torch.no_grad():
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].double()
    theirs = torch.log_softmax(logits, dim=-1).gather(1, ids[1:, None])[:, 0]
    difference = (ours - theirs).abs().max().item()
    print(f"{ours.numel()} log-probabilities, largest difference {difference:.3g}")
    return 0 if difference <= TOLERANCE else 1  # NaN is a failure too


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
