"""Responses end where they should, are heard of as they end, and reach the rewards as a person would read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ppo_engine.config import GenerationConfig, ModelSource, PromptsConfig
from ppo_engine.data.prompts import PromptSource, load_prompts
from ppo_engine.errors import InvalidConfig
from ppo_engine.experience.generation import Sampling, StopTexts, _draw, sample, sample_in_parts, uniform_numbers
from ppo_engine.experience.rollout import Responder, repeated
from ppo_engine.maths.logprobs import Distribution
from ppo_engine.models.loading import load_language_model
from ppo_engine.models.policy import LanguageModel
from ppo_engine.rewards import Component, Scorer
from ppo_engine.summary import Stopwatch
from tests.support.tiny_models import byte_tokenizer, tiny_llama
from tests.support.tolerances import assert_close

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    root = tmp_path_factory.mktemp("model")
    tiny_llama(root / "policy", max_position_embeddings=512)
    return load_language_model(ModelSource(path="policy"), [root])


def how(seed: int = 0, **changes: object) -> Sampling:
    usual = {
        "distribution": Distribution(eos_ids=(256,)),
        "max_new_tokens": 40,
        "pad_id": 257,
        "uniform": torch.rand((8, 40), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)),
    }
    return Sampling(**(usual | changes))  # type: ignore[arg-type]


def prompts(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.arange(count * 3).reshape(count, 3) % 200
    return ids, torch.ones_like(ids).bool()


def test_a_stop_text_ends_a_response_at_the_token_that_completes_it(language: LanguageModel) -> None:
    tokenizer = byte_tokenizer()
    plain = sample(language, *prompts(6), how(distribution=Distribution()))
    texts = [tokenizer.decode(row) for row in plain.ids]
    stop = texts[2][4:7]  # three characters that row 2 says
    found = sample(language, *prompts(6), how(distribution=Distribution(), stop=StopTexts([stop], tokenizer)))
    for row, ids in enumerate(found.ids[found.mask.any(dim=1)]):
        said = tokenizer.decode(ids[found.mask[row]])
        assert said.count(stop) == int(bool(found.ended[row]))
        assert said.endswith(stop) or not bool(found.ended[row])
    assert bool(found.ended[2])


def test_a_stop_text_may_span_tokens_and_characters_of_several_bytes() -> None:
    tokenizer = byte_tokenizer()
    stop = StopTexts(["é€"], tokenizer)
    ids = tokenizer("ab é€", add_special_tokens=False)["input_ids"]
    assert [stop.reached(ids[: n + 1]) for n in range(len(ids))] == [False] * (len(ids) - 1) + [True]
    assert stop.cut("ab é€ cd é€") == "ab "
    assert stop.cut("ab") == "ab"


def test_every_response_is_heard_of_once_and_early_ones_first(language: LanguageModel) -> None:
    heard: list[tuple[int, Sequence[int]]] = []
    found = sample(
        language,
        *prompts(8),
        how(distribution=Distribution(eos_ids=tuple(range(0, 258, 9)))),
        lambda row, ids: heard.append((row, ids)),
    )
    assert sorted(row for row, _ in heard) == list(range(8))
    assert [len(ids) for _, ids in heard] == sorted(len(ids) for _, ids in heard)
    assert len({len(ids) for _, ids in heard}) > 1
    for row, ids in heard:
        assert list(ids) == found.ids[row][found.mask[row]].tolist()


@pytest.mark.parametrize("parts", [2, 3, 8, 20])
def test_responses_sampled_in_turns_are_the_same(language: LanguageModel, parts: int) -> None:
    heard: dict[int, Sequence[int]] = {}
    early = how(distribution=Distribution(eos_ids=tuple(range(0, 258, 9))))
    whole = sample(language, *prompts(8), early)
    found = sample_in_parts(language, *prompts(8), early, heard.__setitem__, parts=parts)
    assert torch.equal(found.ids, whole.ids)
    assert torch.equal(found.mask, whole.mask)
    assert torch.equal(found.ended, whole.ended)
    assert_close(found.logprobs, whole.logprobs)
    assert heard == {row: whole.ids[row][whole.mask[row]].tolist() for row in range(8)}


def test_greedy_takes_the_likeliest_token(language: LanguageModel) -> None:
    ids, mask = prompts(2)
    found = sample(language, ids, mask, how(max_new_tokens=3, distribution=Distribution(), uniform=None))
    expected = language.model.generate(ids, max_new_tokens=3, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(found.ids, expected[:, 3:])


def test_rewards_see_the_text_without_the_stop_and_the_line_of_the_prompt(
    language: LanguageModel, tmp_path: Path
) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "abc", "answer": "7"}\n{"prompt": "xyz", "answer": "8"}\n')
    tokenizer = byte_tokenizer()
    lines = load_prompts(PromptsConfig.model_validate({"file": {"path": "p.jsonl"}}), [tmp_path])
    source = PromptSource(lines, tokenizer, max_tokens=None, shuffle=False, seed=0)
    letters = list("abcdefghijklmnop")
    responder = Responder(
        language=language,
        tokenizer=tokenizer,
        config=GenerationConfig(max_new_tokens=400, stop=letters),
        distribution=Distribution(),
        generator=torch.Generator().manual_seed(0),
    )
    scorer = Scorer([Component(name="answer", reward=lambda e: [float(x.record["answer"]) for x in e])])
    rollout = responder.collect(repeated(source.draw(2), 2, 3), scorer, Stopwatch())
    assert [exchange.prompt for exchange in rollout.exchanges] == ["abc", "abc", "xyz"]
    assert rollout.scores.total == [7.0, 7.0, 8.0]
    assert rollout.finished == [True] * 3
    for exchange, mask in zip(rollout.exchanges, rollout.sequences.response_mask, strict=True):
        assert not any(letter in exchange.response for letter in letters)
        assert exchange.response_tokens == int(mask.sum())


def test_chat_prompts_go_through_the_policys_template(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    talk = '{"q": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, '
    talk += '{"role": "user", "content": "Why?"}], "id": 3}'
    (tmp_path / "p.jsonl").write_text('{"q": "Hello"}\n' + talk)
    config = PromptsConfig.model_validate({"file": {"path": "p.jsonl", "field": "q"}, "chat": {"system": "Be brief."}})
    source = PromptSource(
        load_prompts(config, [tmp_path]), tokenizer, max_tokens=None, shuffle=False, seed=0, chat=config.chat
    )
    first, second = source.draw(2)
    assert tokenizer.decode(list(first.ids)) == "<system>Be brief.<user>Hello<bot>"
    assert tokenizer.decode(list(second.ids)) == "<system>Be brief.<user>Hi<assistant>Yes?<user>Why?<bot>"
    assert (first.text, second.text) == ("Hello", "Why?")
    assert second.record["id"] == 3
    assert first.messages == ()
    assert [message["content"] for message in second.messages] == ["Hi", "Yes?", "Why?"]


def test_chat_needs_a_template() -> None:
    config = PromptsConfig.model_validate({"inline": ["Hello"], "chat": {}})
    with pytest.raises(InvalidConfig, match="no chat template"):
        PromptSource(
            load_prompts(config, []), byte_tokenizer(), max_tokens=None, shuffle=False, seed=0, chat=config.chat
        )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"prompt": [{"role": "user"}]}', "message 0 of `prompt` has no `role` and `content`"),
        ('{"prompt": []}', "does not end with a message for the model to answer"),
        ('{"prompt": [{"role": "assistant", "content": "x"}]}', "does not end with a message for the model"),
    ],
)
def test_a_conversation_is_checked_line_by_line(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "p.jsonl").write_text(line)
    config = PromptsConfig.model_validate({"file": {"path": "p.jsonl"}, "chat": {}})
    with pytest.raises(Exception, match="line 1: .*" + reason):
        load_prompts(config, [tmp_path])


def test_draws_follow_the_distribution_and_never_take_a_token_of_probability_0() -> None:
    torch.manual_seed(0)
    size, draws = 700, 100_000  # three blocks of 256, the last one not full
    logits = torch.randn(size)
    never = [0, 7, 255, 256, 511, *range(512, 560), 699]
    logits[never] = -1e9
    probabilities = logits.softmax(-1)
    uniform = uniform_numbers(draws, 1, torch.Generator().manual_seed(3))[:, 0]
    uniform[:2] = torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64)
    drawn, logprobs = _draw(logits.expand(draws, -1), uniform)
    frequency = torch.bincount(drawn[:, 0], minlength=size) / draws
    assert frequency[never].tolist() == [0.0] * len(never)
    assert_close(logprobs, logits.log_softmax(-1)[drawn])
    spread = (probabilities * (1 - probabilities) / draws).sqrt()
    assert bool(((frequency - probabilities).abs() <= 5 * spread + 1e-9).all())
