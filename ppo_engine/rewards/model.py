"""A sequence classifier with one label as a reward: its logit is the score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from ppo_engine.config import ModelReward, ModelSource
from ppo_engine.errors import InvalidConfig, ModelUnavailable, RewardFailed
from ppo_engine.models.loading import locate
from ppo_engine.rewards.exchange import Exchange, RewardFn

_LOAD_ERRORS = (OSError, ValueError, RuntimeError, KeyError, ImportError, SafetensorError)


class SequenceClassifierReward:
    """Scores texts with a classifier; loaded by `load_reward_model`."""

    def __init__(self, model: Any, tokenizer: Any, spec: ModelReward, device: torch.device) -> None:
        self._model = model.to(device).eval()
        self._tokenizer = tokenizer
        self._include_prompt, self._chat = spec.include_prompt, spec.chat
        self._batch_size = spec.batch_size
        self._max_tokens = min(spec.max_tokens, tokenizer.model_max_length, _positions(model))
        self._device = device

    def __call__(self, exchanges: Sequence[Exchange]) -> list[float]:
        """Return one logit per response."""
        texts = [self._text(exchange) for exchange in exchanges]
        # Texts of like length share a batch, so that little of it is padding.
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        scores = [0.0] * len(texts)
        for start in range(0, len(order), self._batch_size):
            chosen = order[start : start + self._batch_size]
            for index, score in zip(chosen, self._score([texts[index] for index in chosen]), strict=True):
                scores[index] = score
        return scores

    def _text(self, exchange: Exchange) -> str:
        if self._chat:
            return chat_text(self._tokenizer, exchange)
        return exchange.prompt + exchange.response if self._include_prompt else exchange.response

    @torch.no_grad()
    def _score(self, texts: list[str]) -> list[float]:
        blank = self._tokenizer.eos_token or self._tokenizer.pad_token  # a text of no token has no position to score
        encoded = self._tokenizer(
            [text or blank for text in texts],
            padding=True,
            truncation=True,
            add_special_tokens=not self._chat,  # a template writes them itself
            max_length=self._max_tokens,
            return_token_type_ids=False,  # all 0 for one text; GPT-2 would add the embedding of token 0 for them
            return_tensors="pt",
        ).to(self._device)
        with _last_tokens_told_from_padding(self._model.config.get_text_config(), encoded):
            logits: torch.Tensor = self._model(**encoded).logits
        if logits.shape != (len(texts), 1):
            raise RewardFailed(f"the model returned logits of shape {list(logits.shape)} for {len(texts)} texts")
        return [float(logit) for logit in logits[:, 0].float().cpu()]


def load_reward_model(spec: ModelReward, roots: Sequence[Path], device: torch.device) -> RewardFn:
    """Load the classifier and its own tokenizer; only safetensors weights, never code from the model's folder.

    Raises:
        ModelUnavailable: not found, not loadable, or its scoring head was never trained.
        RewardFailed: it has another number of labels than one.
        InvalidConfig: `chat` without a chat template.
    """
    name, options = _locate(spec.source, roots)
    try:
        config = AutoConfig.from_pretrained(name, **options)
        _check_labels(name, config.num_labels)
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        model, loading = AutoModelForSequenceClassification.from_pretrained(
            name, **options, dtype=_dtype(device), use_safetensors=True, output_loading_info=True
        )
    except _LOAD_ERRORS as error:
        raise ModelUnavailable(f"reward model `{_label(spec.source)}` cannot be loaded: {error}") from error
    if loading["missing_keys"]:
        missing = ", ".join(sorted(loading["missing_keys"]))
        raise ModelUnavailable(f"reward model `{_label(spec.source)}` lacks weights: {missing}")
    _set_padding(model, tokenizer, _label(spec.source))
    if spec.chat:
        _check_template(tokenizer, _label(spec.source))
    return SequenceClassifierReward(model, tokenizer, spec, device)


@contextmanager
def _last_tokens_told_from_padding(config: Any, encoded: Any) -> Iterator[None]:
    """Pad a batch with another token for once, if one of its texts ends with the pad token.

    Decoders score the last token that is not the pad token. Where that is the end token too, and a chat template ends
    with it, they would take the token before. Attention does not see the padding, so any token will do.
    """
    ids, mask, usual = encoded["input_ids"], encoded["attention_mask"], config.pad_token_id
    last = set(ids.gather(1, mask.sum(dim=1, keepdim=True) - 1).flatten().tolist())
    if usual in last:
        config.pad_token_id = next(token for token in count() if token not in last)
        ids.masked_fill_(mask == 0, config.pad_token_id)
    try:
        yield
    finally:
        config.pad_token_id = usual


def chat_text(tokenizer: Any, exchange: Exchange) -> str:
    """One exchange in the tokenizer's own chat template: its conversation, then the response."""
    asked = exchange.messages or ({"role": "user", "content": exchange.prompt},)
    messages = [*asked, {"role": "assistant", "content": exchange.response}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False))


def _check_template(tokenizer: Any, label: str) -> None:
    if not tokenizer.chat_template:
        raise InvalidConfig(f"reward model `{label}` has no chat template of its own, which `chat` needs")
    try:
        text = chat_text(tokenizer, Exchange("a prompt", "a response", {}, 1))
    except Exception as error:  # templates are programs
        raise ModelUnavailable(f"the chat template of reward model `{label}` fails: {error}") from error
    if "a prompt" not in text or "a response" not in text:
        raise ModelUnavailable(f"the chat template of reward model `{label}` leaves out the prompt or the response")


def _locate(source: ModelSource, roots: Sequence[Path]) -> tuple[str, dict[str, Any]]:
    """Folder and options for from_pretrained."""
    try:
        folder, options = locate(source, roots)
    except ModelUnavailable as error:
        raise ModelUnavailable(f"reward model: {error}") from error
    return folder, {**options, "trust_remote_code": False}


def _label(source: ModelSource) -> str:
    return source.path or source.hub or ""


def _check_labels(name: str, num_labels: int) -> None:
    if num_labels != 1:
        raise RewardFailed(
            f"reward model `{Path(name).name}` has {num_labels} labels; a reward is one number, so it needs exactly 1"
        )


def _dtype(device: torch.device) -> torch.dtype | str:
    """The weights' own type on a GPU; float32 on a CPU, where half precision is slow or missing."""
    return torch.float32 if device.type == "cpu" else "auto"


def _positions(model: Any) -> int:
    """Longest input in tokens, where the architecture has a limit."""
    return int(getattr(model.config, "max_position_embeddings", None) or 1_000_000)


def _set_padding(model: Any, tokenizer: Any, label: str) -> None:
    """Pad on the right, which moves no position; cut on the left, because the end of a text decides."""
    tokenizer.padding_side, tokenizer.truncation_side = "right", "left"
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ModelUnavailable(f"the tokenizer of reward model `{label}` has neither a pad nor an end token")
        tokenizer.pad_token = tokenizer.eos_token
    if model.config.pad_token_id is None:  # decoders find the last token of a text by it
        model.config.pad_token_id = tokenizer.pad_token_id
