"""A classifier as a reward: each score is what the bare model gives that text alone, however it was batched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from ppo_engine.config import ModelReward, RewardComponent
from ppo_engine.errors import InvalidConfig, ModelUnavailable, RewardFailed
from ppo_engine.rewards import Exchange, RewardFn, build_scorer
from ppo_engine.rewards.model import load_reward_model
from tests.support.exchanges import exchange
from tests.support.tiny_models import byte_tokenizer, tiny_classifier, tiny_llama

CPU = torch.device("cpu")
PROMPTS = ["The movie was", "A", "My dear", "It is a truth universally acknowledged", ""]
RESPONSES = [" good", " rather long response, longer than all others here.", "", " that", "x"]


def load(root: Path, **options: object) -> RewardFn:
    return load_reward_model(ModelReward.model_validate({"source": {"path": "rm"}, **options}), [root], CPU)


def pairs(prompts: list[str], responses: list[str]) -> list[Exchange]:
    return [exchange(response, prompt=prompt) for prompt, response in zip(prompts, responses, strict=True)]


def alone(root: Path, text: str) -> float:
    """The bare model on one text: no padding, no batch, no tokenizer but one id per byte."""
    model = AutoModelForSequenceClassification.from_pretrained(root / "rm").eval()
    ids = torch.tensor([byte_tokenizer().convert_tokens_to_ids(byte_tokenizer().tokenize(text))])
    with torch.no_grad():
        return model(input_ids=ids).logits.item()


@pytest.mark.parametrize("batch_size", [1, 2, 32])
@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_scores_do_not_depend_on_the_batch(tmp_path: Path, family: str, batch_size: int) -> None:
    tiny_classifier(tmp_path / "rm", family=family)
    scores = load(tmp_path, batch_size=batch_size)(pairs(PROMPTS, RESPONSES))
    expected = [alone(tmp_path, prompt + response) for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
    assert scores == pytest.approx(expected, abs=1e-5)
    assert max(scores) - min(scores) > 0.1


def test_the_response_alone_is_scored_when_asked(tmp_path: Path) -> None:
    tiny_classifier(tmp_path / "rm")
    (score,) = load(tmp_path, include_prompt=False)(pairs(["The movie was"], [" good"]))
    assert score == pytest.approx(alone(tmp_path, " good"), abs=1e-5)


def test_an_empty_text_has_a_score(tmp_path: Path) -> None:
    tiny_classifier(tmp_path / "rm")
    scores = load(tmp_path, include_prompt=False)(pairs(["a", "b"], ["", "some words"]))
    assert scores == pytest.approx([alone(tmp_path, "<|end|>"), alone(tmp_path, "some words")], abs=1e-5)


def test_a_long_text_loses_its_beginning(tmp_path: Path) -> None:
    tiny_classifier(tmp_path / "rm")
    (score,) = load(tmp_path, max_tokens=8)(pairs(["0123456789"], ["abcdef"]))
    assert score == pytest.approx(alone(tmp_path, "89abcdef"), abs=1e-5)


def test_a_text_beyond_the_models_positions_is_cut(tmp_path: Path) -> None:
    tiny_classifier(tmp_path / "rm", family="gpt2")
    (score,) = load(tmp_path, max_tokens=10_000)(pairs(["x" * 5000], ["the end"]))
    assert score == pytest.approx(alone(tmp_path, "x" * 249 + "the end"), abs=1e-5)


def test_a_tokenizer_without_a_pad_token_pads_with_the_end(tmp_path: Path) -> None:
    tiny_classifier(tmp_path / "rm", pad=None)
    scores = load(tmp_path)(pairs(PROMPTS, RESPONSES))
    assert scores[1] == pytest.approx(alone(tmp_path, PROMPTS[1] + RESPONSES[1]), abs=1e-5)
    assert scores[4] == pytest.approx(alone(tmp_path, "x"), abs=1e-5)


def test_token_types_of_a_generic_tokenizer_do_not_reach_the_model(tmp_path: Path) -> None:
    folder = tiny_classifier(tmp_path / "rm", family="gpt2")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (score,) = load(tmp_path)(pairs(["The movie was"], [" good"]))
    assert score == pytest.approx(alone(tmp_path, "The movie was good"), abs=1e-5)


def test_two_labels_are_no_reward(tmp_path: Path) -> None:
    tiny_classifier(tmp_path / "rm", labels=2)
    with pytest.raises(RewardFailed, match="has 2 labels; a reward is one number"):
        load(tmp_path)


def test_nan_weights_fail_with_the_components_name(tmp_path: Path) -> None:
    tiny_classifier(tmp_path / "rm", nan=True)
    component = RewardComponent.model_validate({"name": "helpful", "model": {"source": {"path": "rm"}}})
    scorer = build_scorer([component], roots=[tmp_path], device=CPU)
    with pytest.raises(
        RewardFailed, match="reward `helpful` could not score response 0 of 2: nan is not a finite number"
    ):
        scorer.score(pairs(["a", "b"], ["c", "d"]))


def test_a_language_model_has_no_trained_scoring_head(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "rm", num_labels=1)
    with pytest.raises(ModelUnavailable, match=r"lacks weights: score\.weight"):
        load(tmp_path)


def test_a_missing_folder_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="`rm` is not under"):
        load(tmp_path)


def test_a_folder_outside_the_roots_is_unavailable(tmp_path: Path) -> None:
    tiny_classifier(tmp_path / "elsewhere")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "rm").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelUnavailable, match="`rm` is not under"):
        load(tmp_path / "root")


def test_pickled_weights_are_not_loaded(tmp_path: Path) -> None:
    folder = tiny_classifier(tmp_path / "rm")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match="cannot be loaded"):
        load(tmp_path)


def test_a_model_with_its_own_code_is_not_run(tmp_path: Path) -> None:
    folder = tiny_classifier(tmp_path / "rm")
    ran = tmp_path / "ran"
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(ran)!r}).touch()\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelUnavailable, match="cannot be loaded"):
        load(tmp_path)
    assert not ran.exists()


@pytest.mark.parametrize("damage", ["truncated", "config", "shapes"])
def test_a_damaged_folder_is_unavailable(tmp_path: Path, damage: str) -> None:
    folder = tiny_classifier(tmp_path / "rm")
    weights = folder / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif damage == "config":
        (folder / "config.json").write_text("{")
    else:
        tensors = load_file(weights)
        save_file(tensors | {"score.weight": torch.zeros(1, 3)}, weights, metadata={"format": "pt"})
    with pytest.raises(ModelUnavailable, match="reward model `rm`"):
        load(tmp_path)


TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<|end|>{% endfor %}"


def with_template(folder: Path, template: str = TEMPLATE) -> Path:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    return folder


def test_chat_uses_the_reward_models_own_template(tmp_path: Path) -> None:
    with_template(tiny_classifier(tmp_path / "rm"))
    scores = load(tmp_path, chat=True)(pairs(["Hi", "Who?"], ["Ho, and more.", ""]))
    expected = [
        alone(tmp_path, "<user>Hi<|end|><assistant>Ho, and more.<|end|>"),
        alone(tmp_path, "<user>Who?<|end|><assistant><|end|>"),
    ]
    assert scores == pytest.approx(expected, abs=1e-5)


def test_chat_shows_a_conversation_whole(tmp_path: Path) -> None:
    with_template(tiny_classifier(tmp_path / "rm"))
    messages = (
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Ho"},
        {"role": "user", "content": "?"},
    )
    (score,) = load(tmp_path, chat=True)([Exchange("?", "!", {}, 1, messages)])
    wanted = "<user>Hi<|end|><assistant>Ho<|end|><user>?<|end|><assistant>!<|end|>"
    assert score == pytest.approx(alone(tmp_path, wanted), abs=1e-5)


def test_a_template_writes_its_special_tokens_itself(tmp_path: Path) -> None:
    """A tokenizer that puts [CLS] and [SEP] around every text must not put them around a finished template."""
    folder = with_template(tiny_classifier(tmp_path / "rm"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {"id": "<|pad|>", "ids": [257], "tokens": ["<|pad|>"]}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|pad|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|pad|>": special},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (plain,) = load(tmp_path)(pairs(["Hi"], ["Ho"]))
    assert plain == pytest.approx(alone(tmp_path, "<|pad|>HiHo"), abs=1e-5)
    (chat,) = load(tmp_path, chat=True)(pairs(["Hi"], ["Ho"]))
    assert chat == pytest.approx(alone(tmp_path, "<user>Hi<|end|><assistant>Ho<|end|>"), abs=1e-5)


def test_chat_without_a_template_is_refused_with_the_reason(tmp_path: Path) -> None:
    tiny_classifier(tmp_path / "rm")
    with pytest.raises(InvalidConfig, match="reward model `rm` has no chat template of its own"):
        load(tmp_path, chat=True)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no assistants') }}", "fails: no assistants"),
        ("{% if", "fails"),
        ("{{ messages[0]['content'] }}", "leaves out the prompt or the response"),
    ],
)
def test_a_template_that_does_not_work_is_found_at_once(tmp_path: Path, template: str, reason: str) -> None:
    with_template(tiny_classifier(tmp_path / "rm"), template)
    with pytest.raises(ModelUnavailable, match=reason):
        load(tmp_path, chat=True)
