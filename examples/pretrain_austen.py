"""Pretrain a small language model on Jane Austen's six novels: a real model that trains and answers in seconds.

The novels are in the public domain; they come from Debian's package r-cran-janeaustenr (itself MIT), fetched with
`apt-get download`. One CPU core needs three to five minutes.

    python examples/pretrain_austen.py OUT [--steps 1500]
"""

from __future__ import annotations

import argparse
import math
import random
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from r_lazyload import read_variables
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PACKAGE = "r-cran-janeaustenr"
END = "<|endoftext|>"
VOCABULARY, WINDOW, BATCH, WARMUP, PEAK_RATE = 1024, 128, 8, 50, 4e-3
HELD_OUT_PARAGRAPHS, EVALUATED_WINDOWS = 400, 40


@dataclass(frozen=True)
class Corpus:
    """Sentences to learn from, and held-out ones."""

    train: list[str]
    held_out: list[str]


def fetch_novels(folder: Path) -> dict[str, list[str]]:
    """Download and unpack the Debian package; lines of each novel by its name."""
    try:
        subprocess.run(
            ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", PACKAGE],
            cwd=folder,
            check=True,
            stdout=sys.stderr,
        )
        (package,) = folder.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"cannot fetch {PACKAGE} with apt-get and dpkg-deb (Debian or Ubuntu): {error}") from error
    return read_variables(folder / "usr/lib/R/site-library/janeaustenr/data/Rdata")


def make_corpus(novels: dict[str, list[str]]) -> Corpus:
    """Paragraphs in random order, some held out, each split into its sentences."""
    text = "\n\n".join("\n".join(line or "" for line in novels[name]) for name in sorted(novels))
    paragraphs = [tidy for block in text.split("\n\n") if len(tidy := _tidy(block)) > 20]
    paragraphs = [text for text in paragraphs if not re.match(r"CHAPTER|VOLUME|Chapter|FINIS", text)]
    random.Random(0).shuffle(paragraphs)
    return Corpus(
        train=_sentences(paragraphs[HELD_OUT_PARAGRAPHS:]), held_out=_sentences(paragraphs[:HELD_OUT_PARAGRAPHS])
    )


def _tidy(block: str) -> str:
    return " ".join(block.replace("_", "").replace("--", " - ").split())


def _sentences(paragraphs: list[str]) -> list[str]:
    """One document per sentence, so that the model learns to end what it says."""
    boundary = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["']))(?<!Mr\.)(?<!Mrs\.)(?<!Dr\.)(?<!St\.)\s+(?=["'A-Z])""")
    return [sentence for paragraph in paragraphs for sentence in boundary.split(paragraph)]


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE; the end token also pads, as in GPT-2."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
        ),
    )
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=END, model_input_names=names)


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> torch.Tensor:
    """All texts in one row, an end token after each."""
    return torch.tensor([token for ids in tokenizer(texts)["input_ids"] for token in [*ids, tokenizer.eos_token_id]])


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of 2 million parameters."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def train(model: LlamaForCausalLM, tokens: torch.Tensor, steps: int) -> None:
    """AdamW on random windows; warm-up, then linear decay to a twentieth."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    norms = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95))
    start = time.process_time()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * min(1.0, (step + 1) / WARMUP) * (0.05 + 0.95 * (1 - step / steps))
        offsets = torch.randint(0, len(tokens) - WINDOW - 1, (BATCH,)).tolist()
        windows = torch.stack([tokens[offset : offset + WINDOW + 1] for offset in offsets])
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(windows[:, :-1]).logits
            loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), windows[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 99:
            print(
                f"step {step + 1}/{steps}  loss {loss.item():.3f}  {time.process_time() - start:.0f} CPU s", flush=True
            )


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, tokens: torch.Tensor) -> float:
    """Nats per token over the first windows of the held-out text."""
    windows = tokens[: EVALUATED_WINDOWS * WINDOW + 1]
    inputs, targets = windows[:-1].reshape(-1, WINDOW), windows[1:].reshape(-1, WINDOW)
    logits = model(inputs).logits.float()
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1)).item()


@torch.no_grad()
def sample(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str) -> str:
    """One continuation at temperature 0.8."""
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=40, do_sample=True, temperature=0.8, top_p=0.95)
    return str(tokenizer.decode(output[0], skip_special_tokens=True))


README = """# austen-2m

A {parameters:,}-parameter Llama (4 layers, width 192, byte-level BPE of {vocabulary:,} tokens, tied embeddings, bf16
weights) that writes like Jane Austen, with partly invented words. It serves tests and quick demonstrations: PPO moves
it visibly in seconds on one CPU core.

Made by `examples/pretrain_austen.py`: {steps:,} steps of {batch} x {window} tokens over Austen's six novels (public
domain; from Debian's package r-cran-janeaustenr), {seconds:.0f} CPU seconds on one core. Every training document is one
sentence, so it knows when to end: `<|endoftext|>` ends a text and pads. It was trained on windows of {window} tokens;
beyond that it is worse.

Held-out text (sentences of {paragraphs} paragraphs, first {scored:,} tokens, end tokens included): {loss:.3f}
nats/token, perplexity {perplexity:.1f}, {bits:.3f} bits/byte.

Samples (temperature 0.8, top-p 0.95):

{samples}
"""


def describe(out: Path, corpus: Corpus, steps: int, seconds: float) -> str:
    """The model card, measured on the folder as it was saved."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    tokens = encode(tokenizer, corpus.held_out)
    loss = held_out_loss(model, tokens)
    bytes_per_token = sum(len(text.encode()) for text in corpus.held_out) / len(tokens)
    prompts = ["She was", "It is a truth", "Mr. Darcy", '"My dear']
    return README.format(
        parameters=model.num_parameters(),
        vocabulary=VOCABULARY,
        steps=steps,
        batch=BATCH,
        window=WINDOW,
        seconds=seconds,
        paragraphs=HELD_OUT_PARAGRAPHS,
        scored=EVALUATED_WINDOWS * WINDOW,
        loss=loss,
        perplexity=math.exp(loss),
        bits=loss / math.log(2) / bytes_per_token,
        samples="\n".join(f"- {sample(model, tokenizer, prompt)}" for prompt in prompts),
    )


def main() -> None:
    """Fetch, train, save, measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for the model")
    parser.add_argument("--steps", type=int, default=1500)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_corpus(fetch_novels(Path(folder)))
    tokenizer = train_tokenizer(corpus.train)
    tokens = encode(tokenizer, corpus.train)
    model = new_model(tokenizer)
    print(f"{len(corpus.train)} sentences, {len(tokens)} tokens, {model.num_parameters()} parameters", flush=True)
    start = time.process_time()
    train(model, tokens, args.steps)
    seconds = time.process_time() - start
    model.eval().to(torch.bfloat16).save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    card = describe(args.out, corpus, args.steps, seconds)
    (args.out / "README.md").write_text(card)
    print(card)


if __name__ == "__main__":
    main()
