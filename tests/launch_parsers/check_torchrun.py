"""Runs the script of the target `torchrun` for a few steps on two processes of this machine's CPU.

Reads from standard input a JSON list of {"files": {path: content}}, prints the losses of each: of a tiny Llama with
random weights on tokens that count, the same every time.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
from transformers import LlamaConfig, LlamaForCausalLM

STEPS = 3


def prepare(folder: Path) -> list[str]:
    """Model and tokens; the words that name them."""
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=256, **shape)).save_pretrained(folder / "model")
    (numpy.arange(20_000) % 256).astype(numpy.uint32).tofile(folder / "tokens.bin")
    return ["--model", str(folder / "model"), "--data", str(folder / "tokens.bin")]


def run(files: dict[str, str], words: list[str], folder: Path) -> dict[str, list[float] | list[str]]:
    folder.mkdir()
    for path, content in files.items():
        (folder / path).write_text(content)
    steps = ["--learning-rate", "0.001", "--steps", str(STEPS), "--save-interval", str(STEPS)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [*launcher, "train.py", *words, *steps]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    saved = sorted(path.name for path in (folder / "checkpoints" / str(STEPS)).iterdir())
    return {"losses": [float(found) for found in re.findall(r"loss ([\d.]+)", done.stdout)], "saved": saved}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        words = prepare(Path(place))
        jobs = json.load(sys.stdin)
        found = [run(job["files"], words, Path(place) / f"job{number}") for number, job in enumerate(jobs)]
    print("\n" + json.dumps(found))
