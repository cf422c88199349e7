"""Presets in a submitted spec: they fill in what its author left out, once, and never what he decided."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format

from api.rpc import convert
from api.rpc.v1 import job_service_pb2 as pb
from jobs.errors import InvalidSpec
from jobs.spec import JobSpec, parse_spec, spec_hash
from ppo_engine.__main__ import _read_spec
from ppo_engine.config import PRESETS, KLPenalty, Preset, TrainConfig, expand_preset
from ppo_engine.rundir import RunDir
from tests.support.specs import spec_document
from worker import run_files

NEEDS = {Preset.INSTRUCTGPT: {"ptx": {"texts": {"inline": ["Once upon a time."]}}}}
"""What a preset cannot know."""


def document(preset: Any, **overrides: Any) -> dict[str, Any]:
    """A spec that says nothing of the algorithm but its preset."""
    made = spec_document(**overrides)
    given = {key.removeprefix("ppo__"): value for key, value in overrides.items() if key.startswith("ppo__")}
    needs = NEEDS.get(preset, {}) if isinstance(preset, str) else {}
    return {**needs, **made, "ppo": {"steps": 50, "preset": preset, **given}}


def problems(spec: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(spec)
    return {problem.pointer: problem.detail for problem in caught.value.problems}


def leaves(fragment: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(fragment, dict):
        return {path: fragment}
    found = {} if fragment else {path: {}}
    for name, part in fragment.items():
        found |= leaves(part, (*path, name))
    return found


def at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value[name]
    return value


@pytest.mark.parametrize("preset", Preset)
def test_every_value_of_a_preset_arrives(preset: Preset) -> None:
    dumped = parse_spec(document(preset)).model_dump(mode="json")
    for path, value in leaves(dict(PRESETS[preset].fragment)).items():
        if value == {}:
            assert at(dumped, path) is not None
        else:
            assert at(dumped, path) == value, path


def test_the_authors_values_win_over_the_presets() -> None:
    spec = parse_spec(document("ppo-max", ppo__ppo_epochs=3, kl__init_kl_coef=0.5, optimizer={"max_grad_norm": None}))
    assert (spec.ppo.ppo_epochs, spec.kl.init_kl_coef, spec.optimizer.max_grad_norm) == (3, 0.5, None)
    assert (spec.ppo.vf_coef, spec.kl.penalty, spec.optimizer.learning_rate) == (1.0, KLPenalty.KL, 5e-7)


def test_another_alternative_replaces_the_presets_wholly() -> None:
    spec = parse_spec(document("ppo-max", model__value={"shared": {}}, kl={"adaptive": {"target": 3.0}}))
    assert spec.model.value.separate is None
    assert spec.kl.fixed is None
    assert spec.kl.adaptive is not None
    same = parse_spec(document("trl-classic", model__value={"shared": {}}))
    assert same.model.value.shared is not None
    assert same.model.value.shared.init == "normal"


@pytest.mark.parametrize("batch", [64, 64.0, 1])
def test_a_small_batch_is_not_broken_by_the_presets_minibatch(batch: float) -> None:
    spec = parse_spec(document("trl-classic", ppo__batch_size=batch))
    assert spec.minibatch_size == batch


@pytest.mark.parametrize("batch", [0, "many", None, True, {}])
def test_a_wrong_batch_is_one_problem_at_its_place(batch: Any) -> None:
    assert list(problems(document("instructgpt", ppo__batch_size=batch))) == ["/ppo/batch_size"]


@pytest.mark.parametrize("name", ["ppo-min", 7, ["ppo-max"], {"a": 1}])
def test_a_name_that_is_no_preset_is_one_problem_at_its_place(name: Any) -> None:
    assert list(problems(document(name))) == ["/ppo/preset"]


def test_problems_of_a_presets_values_say_whose_they_are() -> None:
    found = problems(document("ppo-max", ppo__steps=5))
    assert found == {
        "/ppo/critic_warmup_steps": "must be below ppo.steps (5); the preset `ppo-max` sets it: give a value of your "
        "own, or null"
    }
    spec = document("instructgpt")
    del spec["ptx"]
    assert problems(spec) == {"/ptx/texts": "is required; the preset `instructgpt` needs it"}
    spec = document("ppo-max")
    del spec["model"]
    assert problems(spec) == {"/model/policy": "is required"}


OVERRULED: list[tuple[str, dict[str, Any]]] = [
    ("ppo-max", {"optimizer": {"max_grad_norm": None}}),
    ("ppo-max", {"kl": {"fixed": None}}),
    ("ppo-max", {"ppo__score_clip": None}),
    ("instructgpt", {"ptx": None, "model__ema_decay": None}),
    ("n-details", {"ppo__missing_eos_penalty": None}),
    ("trl-classic", {"ppo__batch_size": 8}),
]


@pytest.mark.parametrize(("preset", "overrides"), OVERRULED)
def test_what_was_overruled_does_not_come_back(preset: str, overrides: dict[str, Any], tmp_path) -> None:
    """Neither when the stored document is read, nor in the engine, nor when the document is submitted again."""
    spec = parse_spec(document(preset, **overrides))
    stored = json.loads(json.dumps(spec.document()))
    assert JobSpec.model_validate(stored) == spec
    assert parse_spec(stored) == spec
    assert spec_hash(parse_spec(stored)) == spec_hash(spec)
    run = RunDir(tmp_path)
    run_files.prepare(run, spec.train_config(), attempt=1, kept=[])
    assert _read_spec(run.spec) == spec.train_config()


def test_a_hand_written_spec_of_the_engine_is_expanded_too(tmp_path) -> None:
    spec = {key: part for key, part in document("ppo-max").items() if key in TrainConfig.model_fields}
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec))
    config = _read_spec(path)
    assert (config.ppo.vf_coef, config.optimizer.max_grad_norm) == (1.0, 1.0)
    path.write_text(config.model_dump_json())
    assert _read_spec(path) == config


def test_a_preset_means_the_same_as_its_values_written_out_but_is_another_request() -> None:
    short = parse_spec(document("ppo-max"))
    long = parse_spec(expand_preset(document("ppo-max")))
    assert spec_hash(short) == spec_hash(long)
    assert spec_hash(short) != spec_hash(parse_spec(document("n-details")))


def test_a_preset_comes_through_grpc() -> None:
    given = document("ppo-max", optimizer={"learning_rate": 1e-6})
    message = json_format.ParseDict(given, pb.JobSpec())
    assert parse_spec(convert.spec_document(message)) == parse_spec(given)
    overruled = parse_spec(document("ppo-max", optimizer={"max_grad_norm": None})).document()
    json_format.ParseDict(overruled, pb.JobSpec())
