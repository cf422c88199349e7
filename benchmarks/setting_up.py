"""What the benchmarks need: TRL 0.11.4 in an environment of its own, and the models."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

REPOSITORY = Path(__file__).resolve().parent.parent
WORK = REPOSITORY / "var" / "bench"
TRL_PACKAGES = (
    "torch==2.13.0",
    "trl==0.11.4",
    "transformers==4.46.3",
    "accelerate==1.1.1",
    "numpy<2",
    "pyarrow<20",
    "rich",
    "peft==0.13.2",
)
END = "<|end|>"


def make_trl_environment() -> Path:
    """Python of an environment with TRL 0.11.4; made the first time."""
    folder = WORK / "trl-venv"
    python = folder / "bin" / "python"
    done = folder / ".complete"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *TRL_PACKAGES], check=True)
        done.touch()
    return python


def make_models() -> Path:
    """Folder with the models of `workloads`; made the first time."""
    folder = WORK / "models"
    if not (folder / "smollm2-135m").exists():
        script = REPOSITORY / "examples" / "fetch_smollm2.py"
        subprocess.run([sys.executable, str(script), str(folder / "smollm2-135m")], check=True)
    tell_old_transformers(folder / "smollm2-135m" / "config.json")
    if not (folder / "gpt2-124m").exists():
        make_gpt2(folder / "gpt2-124m")
    return folder


def tell_old_transformers(path: Path) -> None:
    """Write the base of the rotary positions where transformers 4 looks for it too: it would take 10,000 instead."""
    config = json.loads(path.read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    path.write_text(json.dumps(config, indent=2))


def make_gpt2(folder: Path) -> None:
    """GPT-2's 124M shape with random weights, without dropout, and a tokenizer of one token per byte."""
    torch.manual_seed(0)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_ = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_.decoder = decoders.ByteLevel()
    bytes_.add_special_tokens([AddedToken(END, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_, eos_token=END, pad_token=END)
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=256, eos_token_id=256)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
