"""The reward model's script learns what separates pairs, and what it saves is a reward of the engine."""

from __future__ import annotations

import math
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from examples.package_files import extract, sha256, verify
from examples.train_reward_model import Judged, bradley_terry, pair_accuracy, read_tweets, split, train
from ppo_engine.config import ModelReward, ModelSource
from ppo_engine.rewards.exchange import Exchange
from ppo_engine.rewards.model import load_reward_model

NOUNS = [f"noun{number}" for number in range(12)]
WORDS = ["[PAD]", "[UNK]", "good", "bad", "the", "is", *NOUNS]
TEXTS = Judged([f"the {noun} is good" for noun in NOUNS], [f"the {noun} is bad" for noun in NOUNS])


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


@pytest.fixture
def encoder() -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=1,
    )
    return BertForSequenceClassification(config)


def test_the_loss_is_that_of_bradley_and_terry() -> None:
    preferred, rejected = [1.0, -2.0, 0.5], [0.0, 1.0, 0.5]
    chances = [math.exp(a) / (math.exp(a) + math.exp(b)) for a, b in zip(preferred, rejected, strict=True)]
    expected = -sum(map(math.log, chances)) / 3
    assert bradley_terry(torch.tensor(preferred), torch.tensor(rejected)).item() == pytest.approx(expected, rel=1e-6)


def test_it_learns_what_separates_the_pairs_and_the_engine_scores_with_it(
    encoder: BertForSequenceClassification, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    learn, judge = split(TEXTS, 4)
    losses = train(encoder, tokenizer, learn, steps=60, pairs=6, peak_rate=1e-2)
    assert losses[0] == pytest.approx(math.log(2), abs=0.1)  # equal scores
    assert losses[-1] < 0.1
    assert pair_accuracy(encoder, tokenizer, judge) == 1.0
    for part in (encoder, tokenizer):
        part.save_pretrained(tmp_path / "reward-model")
    spec = ModelReward(source=ModelSource(path="reward-model"))
    good, bad = load_reward_model(spec, [tmp_path], torch.device("cpu"))(
        [Exchange("the noun3 is", f" {word}", {}, 1) for word in ("good", "bad")]
    )
    assert isinstance(good, float)
    assert isinstance(bad, float)
    assert good > bad + 1


def test_accuracy_counts_all_pairs(tokenizer: PreTrainedTokenizerFast) -> None:
    """A model whose score is a word's number: 3 of the 4 pairs are in order."""

    class Numbers(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, **_: torch.Tensor) -> object:
            return type("Output", (), {"logits": input_ids[:, :1].float()})

    texts = Judged(["noun9", "noun2"], ["noun1", "noun5"])
    assert pair_accuracy(Numbers(), tokenizer, texts) == 0.75


def test_only_sure_and_consistent_judgements_are_read(tmp_path: Path) -> None:
    rows = [
        "positive,0.9,@ann I love this very much indeed https://example.org/x",
        "positive,0.9,I love   this very much indeed",
        "negative,0.9,I do not like it in the least",
        "negative,0.3,I am not sure about this at all",
        "negative,,nobody said how sure they were",
        "neutral,1,The meeting begins at ten o'clock",
        "positive,0.9,some called this good and some bad",
        "negative,0.9,some called this good and some bad",
        "negative,0.9,too short",
    ]
    (tmp_path / "tweets.csv").write_text("\n".join(["sentiment,confidence,text", *rows]))
    assert read_tweets(tmp_path / "tweets.csv") == Judged(
        ["I love this very much indeed"], ["I do not like it in the least"]
    )


def test_held_out_texts_are_not_learned_from() -> None:
    learn, judge = split(TEXTS, 5)
    assert (len(judge.preferred), len(judge.rejected)) == (5, 5)
    assert [*judge.preferred, *learn.preferred] == TEXTS.preferred
    assert [*judge.rejected, *learn.rejected] == TEXTS.rejected


def test_a_package_is_unpacked_and_a_wrong_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("words")
    with zipfile.ZipFile(tmp_path / "some.whl", "w") as archive:
        archive.write(tmp_path / "data.txt", "some/inner/data.txt")
    out = tmp_path / "out"
    out.mkdir()
    path = extract(tmp_path / "some.whl", "some/inner/data.txt", out)
    assert path == out / "data.txt"
    assert path.read_text() == "words"
    shutil.copy(path, tmp_path / "copy.txt")
    verify(path, sha256(tmp_path / "copy.txt"))
    with pytest.raises(SystemExit, match=r"data\.txt is not the expected file"):
        verify(path, "0" * 64)
