"""A spec is read once, and everything wrong with it is said at once."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from jobs.errors import InvalidSpec, Problem
from jobs.spec import JobSpec, json_schema, parse_spec, spec_hash
from ppo_engine.config import TrainConfig
from tests.support.specs import make_spec, spec_document


def problems(document: Any) -> dict[str, Problem]:
    """Problems of a document by pointer."""
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(document)
    found = {problem.pointer: problem for problem in caught.value.problems}
    assert len(found) == len(caught.value.problems), "one problem per place"
    return found


def codes(document: Any) -> dict[str, str]:
    return {pointer: problem.code for pointer, problem in problems(document).items()}


def test_a_valid_spec_keeps_what_was_given_and_fills_in_the_rest() -> None:
    spec = make_spec(labels={"team": "demo"}, resources={"queue": "gpu", "priority": 3})
    assert (spec.name, spec.ppo.steps, spec.labels) == ("small", 5, {"team": "demo"})
    assert (spec.resources.queue, spec.resources.priority, spec.resources.max_runtime_seconds) == ("gpu", 3, 86_400)
    assert spec.retry.max_attempts == 3


def test_the_document_of_a_spec_reads_back_as_the_same_spec() -> None:
    spec = make_spec(kl={"fixed": {}}, rewards=[{"name": "n", "rule": {"name": "length", "params": {"target": 5}}}])
    assert parse_spec(json.loads(json.dumps(spec.document()))) == spec


def test_the_engine_gets_its_part_and_nothing_of_the_service() -> None:
    config = make_spec(resources={"queue": "gpu", "threads": 2}).train_config()
    assert type(config) is TrainConfig
    assert config.resources.threads == 2
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config
    assert {"name", "labels", "retry"}.isdisjoint(config.model_dump())


def test_the_hash_is_of_the_meaning_not_of_the_text() -> None:
    document = spec_document()
    shuffled = dict(reversed(document.items()))
    explicit = spec_document(seed=0, kl={"init_kl_coef": 0.2})
    assert spec_hash(parse_spec(document)) == spec_hash(parse_spec(shuffled)) == spec_hash(parse_spec(explicit))
    assert spec_hash(parse_spec(document)) != spec_hash(make_spec(seed=1))


# --- one problem --------------------------------------------------------------------------------------------------

ONE_PROBLEM: list[tuple[str, Any, str, str]] = [
    ("name", "", "/name", "too_short"),
    ("name", "a" * 129, "/name", "too_long"),
    ("name", "two\nlines", "/name", "bad_format"),
    ("name", "nul\x00", "/name", "bad_character"),
    ("name", "\ud800", "/name", "bad_character"),
    ("ppo__steps", 0, "/ppo/steps", "out_of_range"),
    ("ppo__steps", "40", "/ppo/steps", "wrong_type"),
    ("ppo__steps", 1.5, "/ppo/steps", "wrong_type"),
    ("ppo__steps", True, "/ppo/steps", "wrong_type"),
    ("ppo__steps", 10**30, "/ppo/steps", "out_of_range"),
    ("ppo__gamma", float("nan"), "/ppo/gamma", "not_finite"),
    ("ppo__gamma", float("inf"), "/ppo/gamma", "not_finite"),
    ("ppo", [], "/ppo", "wrong_type"),
    ("kl__penalty", "k1", "/kl/penalty", "unknown_value"),
    ("kl", {"adaptive": {}, "fixed": {}}, "/kl", "invalid"),
    ("model__policy", {"path": "a", "hub": "b"}, "/model/policy", "invalid"),
    ("model__policy", {}, "/model/policy", "invalid"),
    ("model__policy", {"hub": "a b"}, "/model/policy/hub", "bad_format"),
    ("prompts", {"inline": []}, "/prompts/inline", "too_short"),
    ("prompts", {"inline": ["ok", 5]}, "/prompts/inline/1", "wrong_type"),
    ("rewards", [], "/rewards", "too_short"),
    ("rewards", "sentiment", "/rewards", "wrong_type"),
    ("generation__min_new_tokens", 9, "/generation/min_new_tokens", "min_above_max"),
    ("generation__top_p", 0.9, "/generation/top_p", "truncated_sampling"),
    ("ppo__minibatch_size", 8, "/ppo/minibatch_size", "minibatch_too_large"),
    ("model__reference", {"none": {}}, "/kl/init_kl_coef", "kl_without_reference"),
    ("labels", {"bad key": "x"}, "/labels/bad key", "bad_format"),
    ("labels", {"a/b": 5}, "/labels/a~1b", "wrong_type"),
    ("labels", {f"k{i}": "" for i in range(33)}, "/labels", "too_long"),
    ("resources__priority", 101, "/resources/priority", "out_of_range"),
    ("retry__max_attempts", 0, "/retry/max_attempts", "out_of_range"),
    ("optimizer__betas", [0.9], "/optimizer/betas/1", "required"),
]


@pytest.mark.parametrize(("path", "value", "pointer", "code"), ONE_PROBLEM)
def test_one_wrong_thing_is_one_problem_at_its_place(path: str, value: Any, pointer: str, code: str) -> None:
    assert codes(spec_document(**{path: value})) == {pointer: code}


@pytest.mark.parametrize("document", [None, 5, "text", [], [{}]])
def test_what_is_no_object_is_refused(document: Any) -> None:
    assert codes(document) == {"": "wrong_type"}


def test_an_empty_object_lacks_every_required_field() -> None:
    assert codes({}) == dict.fromkeys(("/name", "/model", "/prompts", "/rewards", "/ppo"), "required")


def test_whole_numbers_may_be_written_with_a_fraction_of_zero() -> None:
    assert parse_spec(spec_document(ppo__steps=5.0)) == make_spec()


def test_numbers_of_rule_parameters_may_come_as_floats() -> None:
    """Protobuf's Struct has no other numbers."""
    rule = {"name": "length", "params": {"target": 20.0}}
    assert parse_spec(spec_document(rewards=[{"name": "n", "rule": rule}])).rewards[0].rule is not None


# --- suggestions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "pointer", "suggestion"),
    [
        ("promts", "/promts", "prompts"),
        ("ppo__minibatchsize", "/ppo/minibatchsize", "minibatch_size"),
        ("resources__que", "/resources/que", "queue"),
        ("model__policy__pth", "/model/policy/pth", "path"),
        ("kl__initial_kl_coef", "/kl/initial_kl_coef", "init_kl_coef"),
    ],
)
def test_an_unknown_field_gets_the_nearest_name_at_every_level(path: str, pointer: str, suggestion: str) -> None:
    problem = problems(spec_document(**{path: "x"}))[pointer]
    assert (problem.code, problem.suggestion) == ("unknown_field", suggestion)
    assert problem.allowed is not None
    assert suggestion in problem.allowed
    assert suggestion in problem.detail


def test_unknown_fields_inside_lists_are_found() -> None:
    document = spec_document()
    document["rewards"][0]["wieght"] = 2
    problem = problems(document)["/rewards/0/wieght"]
    assert (problem.code, problem.suggestion) == ("unknown_field", "weight")


def test_unknown_values_of_an_enumeration_get_the_nearest() -> None:
    problem = problems(spec_document(optimizer__schedule="cosin"))["/optimizer/schedule"]
    assert (problem.given, problem.suggestion) == ("cosin", "cosine")
    assert problem.allowed == ["constant", "linear", "cosine"]


def test_unknown_rules_and_their_parameters_get_the_nearest() -> None:
    rewards = [
        {"name": "a", "rule": {"name": "sentimnt"}},
        {"name": "b", "rule": {"name": "length", "params": {"targt": 5}}},
        {"name": "c", "rule": {"name": "keyword", "params": {"words": []}}},
        {"name": "d", "rule": {"name": "regex", "params": {"pattern": "(a"}}},
        {"name": "e", "rule": {"name": "json_schema", "params": {"json_schema": {"type": "objekt"}}}},
        {"name": "f", "rule": {"name": "json_schema", "params": {"json_schema": {"$ref": "file:///etc/passwd"}}}},
    ]
    found = problems(spec_document(rewards=rewards))
    assert found["/rewards/0/rule/name"].suggestion == "sentiment"
    assert found["/rewards/1/rule/params/targt"].suggestion == "target"
    assert found["/rewards/1/rule/params/target"].code == "required"
    assert found["/rewards/2/rule/params/words"].code == "too_short"
    assert "bad pattern: missing )" in found["/rewards/3/rule/params/pattern"].detail
    assert "not a JSON Schema: 'objekt'" in found["/rewards/4/rule/params/json_schema"].detail
    assert "refers to another document" in found["/rewards/5/rule/params/json_schema"].detail


LINES, PLAIN = {"file": {"path": "sums.jsonl"}}, {"file": {"path": "sums.txt"}}


@pytest.mark.parametrize("rule", [{"name": "exact"}, {"name": "numeric"}])
def test_rules_with_answers_need_prompts_that_have_them(rule: dict[str, Any]) -> None:
    rewards = [{"name": "a", "rule": rule}]
    assert codes(spec_document(rewards=rewards)) == {"/rewards/0/rule": "answers_needed"}
    assert codes(spec_document(rewards=rewards, prompts=PLAIN)) == {"/rewards/0/rule": "answers_needed"}
    assert parse_spec(spec_document(rewards=rewards, prompts=LINES)).rewards[0].rule is not None
    unanswered = spec_document(rewards=rewards, prompts=LINES, evaluation={"prompts": {"inline": ["x"]}})
    assert codes(unanswered) == {"/rewards/0/rule": "answers_needed"}


def test_a_chat_reward_model_sees_the_prompt() -> None:
    model = {"source": {"path": "judge"}, "chat": True, "include_prompt": False}
    found = codes(spec_document(rewards=[{"name": "a", "model": model}]))
    assert found == {"/rewards/0/model/include_prompt": "chat_without_prompt"}


# --- all at once --------------------------------------------------------------------------------------------------


def test_everything_wrong_is_reported_together_with_the_rules_over_several_fields() -> None:
    document = spec_document(
        nmae="x",
        ppo={"steps": -1, "batch_size": 4, "minibatch_size": 8},
        generation={"top_k": 50, "max_new_tokens": "8"},
        rewards=[
            {"name": "a", "rule": {"name": "sentiment"}},
            {"name": "a", "weight": "1", "rule": {"name": "lenght"}},
        ],
    )
    assert codes(document) == {
        "/nmae": "unknown_field",
        "/ppo/steps": "out_of_range",
        "/ppo/minibatch_size": "minibatch_too_large",
        "/generation/top_k": "truncated_sampling",
        "/generation/max_new_tokens": "wrong_type",
        "/rewards/1/weight": "wrong_type",
        "/rewards/1/name": "duplicate_name",
        "/rewards/1/rule/name": "unknown_rule",
    }


@pytest.mark.parametrize(
    "overrides",
    [
        {"ppo": {"steps": 5, "batch_size": "64", "minibatch_size": 512}},
        {"ppo": {"minibatch_size": 8, "batch_size": 8}, "optimizer": {"warmup_steps": 50}},
        {"generation": {"max_new_tokens": None, "min_new_tokens": 50}},
    ],
)
def test_no_rule_is_reported_that_hangs_on_a_broken_field(overrides: dict[str, Any]) -> None:
    """Nobody knows what batch_size was meant to be, so minibatch_size may well be right."""
    assert len(problems(spec_document(**overrides))) == 1


def test_missing_parts_do_not_hide_the_rules() -> None:
    document = spec_document(generation__top_p=0.5)
    del document["model"]
    del document["rewards"]
    assert codes(document) == {
        "/model": "required",
        "/rewards": "required",
        "/generation/top_p": "truncated_sampling",
    }


# --- hostile ------------------------------------------------------------------------------------------------------


def test_absurd_depth_is_refused_and_does_not_crash() -> None:
    nested: Any = "x"
    for _ in range(100_000):
        nested = [nested]
    found = problems(spec_document(rewards=[{"name": "a", "rule": {"name": "length", "params": {"target": nested}}}]))
    assert "too_deep" in {problem.code for problem in found.values()}
    while isinstance(nested, list):  # free it without recursion
        nested = nested.pop()


def test_names_that_are_no_text_are_refused() -> None:
    assert codes({**spec_document(), 5: "x"}) == {"": "wrong_type"}


def test_values_that_are_no_json_are_refused() -> None:
    assert codes(spec_document(name=b"bytes")) == {"/name": "wrong_type"}


def test_many_problems_are_cut_off() -> None:
    found = problems(spec_document(**{f"unknown{index}": 1 for index in range(5000)}))
    assert len(found) == 200


def test_long_values_are_cut_and_secrets_are_not_repeated() -> None:
    key = "ppo_" + "A" * 43
    document = spec_document(kl__penalty="x" * 10_000, optimizer__schedule=key, model__policy__hub="http://u:pw@host/x")
    document["wandb_api_key"] = "hunter2"
    text = json.dumps([problem.model_dump() for problem in problems(document).values()])
    assert len(text) < 4000
    assert "hunter2" not in text
    assert key not in text
    assert "pw@" not in text


def test_parsing_leaves_the_document_as_it_was() -> None:
    document = spec_document(ppo__steps=-1, generation__top_k=3)
    before = copy.deepcopy(document)
    problems(document)
    assert document == before


def test_messages_are_sentences_without_pydantic_words() -> None:
    document = spec_document(x=1, ppo__steps="a", kl__penalty="b", name=5, rewards={}, labels=[], seed=-1, model=5)
    for problem in problems(document).values():
        assert not {"Input", "input", "extra", "validation"} & set(problem.detail.split()), problem


def test_the_schema_describes_what_is_accepted() -> None:
    schema = json_schema()
    assert set(schema["required"]) == {"name", "model", "prompts", "rewards", "ppo"}
    assert set(schema["properties"]) == set(JobSpec.model_fields)
    rule = schema["$defs"]["RuleReward"]
    assert "sentiment" in rule["properties"]["name"]["enum"]
    assert {branch["if"]["properties"]["name"]["const"] for branch in rule["allOf"]} >= {"length", "regex"}


# --- where a misplaced field belongs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "pointer", "suggestion"),
    [
        ({"learning_rate": 1e-5}, "/learning_rate", "optimizer.learning_rate"),
        ({"batch_size": 8}, "/batch_size", "ppo.batch_size"),
        ({"mini_batch_size": 8}, "/mini_batch_size", "ppo.minibatch_size"),  # TRL's name
        ({"kl_coef": 0.1}, "/kl_coef", "kl.init_kl_coef"),
        ({"generation": {"max_tokens": 8}}, "/generation/max_tokens", "max_new_tokens"),  # near beats far
        ({"guards": [{"metric": "kl", "above": 9.0, "action": "pause"}]}, "/guards/0/metric", "objective/kl"),
        ({"early_stop": {"metric": "eval/reward"}, "evaluation": {"prompts": {"inline": ["a"]}, "every_steps": 1}},
         "/early_stop/metric", "eval/reward_mean"),
    ],
)  # fmt: skip
def test_a_misplaced_or_foreign_name_is_told_where_it_belongs(
    change: dict[str, Any], pointer: str, suggestion: str
) -> None:
    problem = problems(spec_document(**change))[pointer]
    assert problem.suggestion == suggestion
    assert f"`{suggestion}`" in problem.detail


@pytest.mark.parametrize("name", ["path", "dtype", "password", "x" * 100_000])
def test_a_name_that_could_mean_anything_gets_no_guess(name: str) -> None:
    problem = next(iter(problems(spec_document(**{name: 1})).values()))
    assert (problem.code, problem.suggestion) == ("unknown_field", None)


def test_something_else_in_the_place_of_an_object_is_told_what_the_object_needs() -> None:
    found = problems(spec_document(model={"policy": "gpt2"}, prompts=["a"]))
    assert found["/model/policy"].detail == "must be an object with exactly one of `path`, `hub`"
    assert found["/prompts"].detail.startswith("must be an object with exactly one of `inline`, `file`, `dataset`")
    assert problems(spec_document(model="gpt2"))["/model"].detail == "must be an object with at least `policy`"


def test_an_empty_text_or_list_is_called_empty() -> None:
    found = problems(spec_document(name="", rewards=[]))
    assert {found[place].detail for place in ("/name", "/rewards")} == {"must not be empty"}
