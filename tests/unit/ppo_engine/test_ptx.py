"""The texts of the ptx loss: cut, ended, drawn in a resumable order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ppo_engine.batch import Sequences
from ppo_engine.errors import CheckpointCorrupt, InvalidConfig, PromptsUnusable
from ppo_engine.update.ptx import TextSource, tokenize
from tests.support.trainers import Letters

END = Letters.eos_token_id


def source(texts: list[str] | None = None, **options: Any) -> TextSource:
    settings: dict[str, Any] = {"max_tokens": 5, "shuffle": True, "seed": 0}
    return TextSource(texts or ["ab", "abc", "abcd", "abcdefg"], Letters(), **settings | options)


def rows(drawn: Sequences) -> list[list[int]]:
    """Tokens of each text, padding left out."""
    return [
        [int(first), *ids[mask].tolist()]
        for (first,), ids, mask in zip(drawn.prompt_ids, drawn.response_ids, drawn.response_mask, strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("ab", [1, 2, END]),
        ("abcd", [1, 2, 3, 4, END]),
        ("abcde", [1, 2, 3, 4, 5]),  # cut: its end is not there
        ("abcdefg", [1, 2, 3, 4, 5]),
        ("abv", [1, 2, END]),  # ends by itself
    ],
)
def test_a_text_is_cut_or_ended(text: str, ids: list[int]) -> None:
    assert tokenize(text, Letters(), 5) == ids


def test_a_tokenizer_without_an_end_token_ends_nothing() -> None:
    tokenizer = Letters()
    tokenizer.eos_token_id = None  # type: ignore[misc, assignment]
    assert tokenize("ab", tokenizer, 5) == [1, 2]


def test_each_pass_gives_every_text_once() -> None:
    texts = source()
    one, two = rows(texts.draw(4)), rows(texts.draw(4))
    assert sorted(one) == sorted(two) == [[1, 2, 3, 4, 5], [1, 2, 3, 4, END], [1, 2, 3, END], [1, 2, END]]
    orders = [rows(source(seed=seed).draw(4)) for seed in range(4)]
    assert any(order != orders[0] for order in orders)
    in_order = [[1, 2, END], [1, 2, 3, END], [1, 2, 3, 4, END], [1, 2, 3, 4, 5]]
    assert rows(source(shuffle=False).draw(6)) == [*in_order, *in_order[:2]]


def test_it_goes_on_where_its_state_was_taken() -> None:
    one, other = source(), source()
    one.draw(3)
    state = json.loads(json.dumps(one.state_dict()))
    other.load_state_dict(state)
    for _ in range(5):
        assert rows(one.draw(3)) == rows(other.draw(3))


def test_a_state_of_other_texts_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="ptx texts"):
        source().load_state_dict(source(["abc", "ab"]).state_dict())
    with pytest.raises(CheckpointCorrupt):
        source().load_state_dict(source().state_dict() | {"position": 99})
    with pytest.raises(CheckpointCorrupt):
        source().load_state_dict(source().state_dict() | {"pass": "x"})


def test_texts_without_anything_to_predict_are_left_out() -> None:
    assert len(source(["", "ab"])) == 1
    with pytest.raises(PromptsUnusable):
        source([""])
