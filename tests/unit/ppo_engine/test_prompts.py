"""Prompts: what a file may contain, and an order that is complete, seeded and resumable."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppo_engine.config import PromptsConfig
from ppo_engine.data import prompts as prompts_module
from ppo_engine.data.prompts import PromptSource, load_prompts
from ppo_engine.datasets.lines import Line
from ppo_engine.errors import CheckpointCorrupt, InvalidConfig, PromptsUnusable
from tests.support.tiny_models import byte_tokenizer

TOKENIZER = byte_tokenizer()
TEXTS = ["one", "two", "three", "four", "five"]


def load(root: Path, name: str, content: bytes, **options: object) -> list[str]:
    (root / name).write_bytes(content)
    config = PromptsConfig.model_validate({"file": {"path": name, **options}})
    return [line.text for line in load_prompts(config, [root])]


def source(
    texts: list[str] = TEXTS, *, max_tokens: int | None = None, shuffle: bool = True, seed: int = 7
) -> PromptSource:
    lines = [Line(text) for text in texts]
    return PromptSource(lines, TOKENIZER, max_tokens=max_tokens, shuffle=shuffle, seed=seed)


def drawn(prompts: PromptSource, count: int) -> list[str]:
    return [prompt.text for prompt in prompts.draw(count)]


# --- loading ------------------------------------------------------------------------------------------------------


def test_inline_prompts_come_back_as_they_are() -> None:
    lines = load_prompts(PromptsConfig(inline=["a ", " b", "a "]), [])
    assert [line.text for line in lines] == ["a ", " b", "a "]


def test_a_text_file_has_one_prompt_a_line(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfThe movie was\r\n\n  indented \n\t\ntwo\xe2\x80\xa8halves\nlast"
    assert load(tmp_path, "p.txt", content) == ["The movie was", "  indented ", "two\u2028halves", "last"]


def test_json_lines_take_the_named_field(tmp_path: Path) -> None:
    content = b'{"q": "a\\nb", "x": 1}\n\n{"q": "\\u00e9\\ud83d\\ude00"}\r\n'
    assert load(tmp_path, "p.jsonl", content, field="q") == ["a\nb", "é😀"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"prompt": "a"}\n{"prompt": }\n', "line 2: not JSON: Expecting value at column 12"),
        (b'{"prompt": "a"}\n["a"]\n', "line 2: not a JSON object"),
        (b'"prompt"', "line 1: not a JSON object"),
        (b'\n\n{"text": "a"}\n', "line 3: no field `prompt`"),
        (b'{"prompt": null}\n', "line 1: field `prompt` is not a string"),
        (b'{"prompt": "  "}\n', "line 1: field `prompt` is empty"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}\n', "line 2: not UTF-8"),
        (b'{"prompt": "\\ud800"}', "line 1: half of a surrogate pair"),
        (b'{"prompt": "' + b"a" * 100_001 + b'"}', "line 1: longer than 100000 characters"),
        (b"[" * 100_000, "line 1: nested too deeply"),
        (b'{"prompt": ' + b"1" * 5000 + b"}", "line 1: "),
        (b"", "has no prompt"),
        (b"\n \n", "has no prompt"),
    ],
)
def test_a_bad_line_is_named_with_its_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(PromptsUnusable) as caught:
        load(tmp_path, "p.jsonl", content)
    assert "`p.jsonl`" in caught.value.message
    assert reason in caught.value.message


def test_a_bad_file_is_named_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.txt").mkdir()
    for path, reason in [
        ("missing.jsonl", "not under"),
        ("../p.txt", "not under"),
        ("folder.txt", "not a file"),
    ]:
        with pytest.raises(PromptsUnusable, match=reason):
            load_prompts(PromptsConfig.model_validate({"file": {"path": path}}), [tmp_path])
    with pytest.raises(PromptsUnusable, match="neither"):
        load(tmp_path, "p.csv", b"a")
    monkeypatch.setattr(prompts_module, "MAX_FILE_BYTES", 10)
    assert load(tmp_path, "p.txt", b"a" * 10) == ["a" * 10]
    with pytest.raises(PromptsUnusable, match="larger than 10 bytes"):
        load(tmp_path, "p.txt", b"a" * 11)


def test_a_dataset_of_the_service_is_none_of_the_engines() -> None:
    dataset = {"dataset": {"id": "ds_" + "0" * 26}}
    with pytest.raises(PromptsUnusable, match="name a `file`"):
        load_prompts(PromptsConfig.model_validate(dataset), [])


# --- drawing ------------------------------------------------------------------------------------------------------


def test_a_prompt_carries_its_place_text_and_tokens() -> None:
    prompt = source(["ab", "né"], shuffle=False).draw(2)[1]
    assert (prompt.index, prompt.text) == (1, "né")
    assert TOKENIZER.decode(prompt.ids) == "né"
    assert len(prompt.ids) == 3


def test_long_prompts_are_left_out_and_counted() -> None:
    prompts = source(max_tokens=4, shuffle=False)
    assert (len(prompts), prompts.left_out) == (4, 1)
    assert drawn(prompts, 5) == ["one", "two", "four", "five", "one"]
    assert [prompt.index for prompt in prompts.draw(2)] == [1, 3]


def test_no_prompt_short_enough_is_an_error() -> None:
    with pytest.raises(PromptsUnusable, match="none of the 5 prompts has between 1 and 2 tokens"):
        source(max_tokens=2)


@given(counts=st.lists(st.integers(0, 13), max_size=12), seed=st.integers(0, 2**32 - 1))
def test_every_pass_gives_every_prompt_once_however_it_is_drawn(counts: list[int], seed: int) -> None:
    prompts = source(seed=seed)
    order = [text for count in counts for text in drawn(prompts, count)]
    assert order == drawn(source(seed=seed), len(order))
    for start in range(0, len(order) - 4, 5):
        assert sorted(order[start : start + 5]) == sorted(TEXTS)


def test_passes_and_seeds_differ_and_orders_are_all_likely() -> None:
    letters = list("abcdefgh")
    assert drawn(source(letters), 8) != drawn(source(letters, seed=8), 8)
    order = drawn(source(letters), 24)
    assert order[:8] != order[8:16] != order[16:] != order[:8]
    orders = Counter(tuple(drawn(source(["a", "b", "c"], seed=seed), 3)) for seed in range(600))
    assert len(orders) == 6
    assert min(orders.values()) > 60  # 100 expected, standard deviation 9


@given(before=st.integers(0, 17), after=st.integers(0, 17), shuffle=st.booleans())
def test_a_state_continues_exactly(before: int, after: int, *, shuffle: bool) -> None:
    original, resumed = source(shuffle=shuffle), source(shuffle=shuffle)
    original.draw(before)
    state = json.loads(json.dumps(original.state_dict()))
    resumed.draw(3)
    resumed.load_state_dict(state)
    assert resumed.draw(after) == original.draw(after)
    assert resumed.state_dict() == original.state_dict()


def test_another_set_or_seed_is_refused() -> None:
    state = source().state_dict()
    others = [source([*TEXTS, "six"]), source(TEXTS[::-1]), source(seed=8), source(shuffle=False), source(max_tokens=4)]
    for other in others:
        with pytest.raises(InvalidConfig, match="not those that this run began with"):
            other.load_state_dict(state)


@pytest.mark.parametrize("damage", [{"pass": -1}, {"position": 6}, {"position": -1}, {"pass": "x"}, {"position": None}])
def test_a_damaged_state_is_corrupt(damage: dict[str, int | str]) -> None:
    with pytest.raises(CheckpointCorrupt, match="prompt cursor"):
        source().load_state_dict(source().state_dict() | damage)
