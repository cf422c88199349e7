"""A reward model made from the example policy: its last hidden state, and a head fitted on its own samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tests.support.lessons import MODELS, PROMPTS, TASK

RIDGE = 0.3
SCALE = 4.0
"""Ridge regression draws the scores towards 0: they are stretched back to about -2 .. 2."""


@torch.no_grad()
def comma_judge(folder: Path) -> Path:
    """A classifier that scores a text the higher the likelier it has a comma behind its prompt; returns `folder`.

    640 samples are its data. On others its score correlated at 0.57 with the truth: a reward model like others, good
    but not exact.
    """
    source = MODELS / "austen-2m"
    tokenizer = AutoTokenizer.from_pretrained(source)
    judge = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1, dtype=torch.float32)
    responses = _responses(source, tokenizer, each=80)
    texts = [prompt + response for prompt, response in responses]
    truth = torch.tensor([1.0 if "," in response else -1.0 for _, response in responses])
    judge.score.weight.copy_(SCALE * _fitted(_last_states(judge.model, tokenizer, texts), truth))
    judge.config.pad_token_id = tokenizer.pad_token_id
    judge.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _responses(source: Path, tokenizer: Any, *, each: int) -> list[tuple[str, str]]:
    """Prompts with samples of the policy: `each` to every prompt."""
    torch.manual_seed(0)
    policy = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    prompts = PROMPTS * each
    encoded = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    length = TASK["generation"]["max_new_tokens"]
    drawn = policy.generate(**encoded, do_sample=True, top_k=0, max_new_tokens=length)[:, -length:]
    return list(zip(prompts, tokenizer.batch_decode(drawn, skip_special_tokens=True), strict=True))


def _last_states(trunk: nn.Module, tokenizer: Any, texts: list[str]) -> Tensor:
    """The trunk's output [n, H] at each text's last token."""
    encoded = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    states: Tensor = trunk(**encoded).last_hidden_state
    return states[torch.arange(len(texts)), encoded["attention_mask"].sum(dim=1) - 1]


def _fitted(x: Tensor, y: Tensor) -> Tensor:
    """Weights [1, H] of the ridge regression of y on x."""
    inertia = x.T @ x / len(x) + RIDGE * x.var(0).mean() * torch.eye(x.shape[1])
    return torch.linalg.solve(inertia, x.T @ y / len(x))[None]
