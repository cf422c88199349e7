"""The spec has one shape: pydantic's JSON and the protobuf messages, field by field, both ways."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, get_args, get_origin

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pydantic import BaseModel

from api.rpc import convert
from api.rpc.v1 import dataset_service_pb2
from api.rpc.v1 import job_service_pb2 as pb
from jobs.errand_views import ErrandView
from jobs.errors import Problem
from jobs.plan_views import Eta, PlanView, Work
from jobs.spec import JobSpec, parse_spec, spec_hash
from jobs.states import JobState
from jobs.views import (
    AttemptView,
    ColumnView,
    DatasetView,
    FindingView,
    HealthView,
    JobError,
    JobEventView,
    JobView,
    ParentView,
    Progress,
    Queue,
)
from ppo_engine import plans, verification
from ppo_engine.errands import (
    ComponentPreview,
    Finding,
    GeneratedBy,
    GeneratedResponse,
    Generation,
    GenerationRequest,
    PreviewRequest,
    RewardPreview,
    Spread,
    TextScore,
)
from tests.support.specs import spec_document

VERIFIED = (
    "Verification",
    "StepVerification",
    "ScalarDifference",
    "SampleDifference",
    "KeyDifference",
    "CheckpointVerification",
    "TensorDifference",
    "NotCompared",
    "Note",
)
PLANNED = (
    "Probe",
    "Remark",
    "ModelFacts",
    "PromptFacts",
    "Quantiles",
    "RewardTrial",
    "MemoryFacts",
    "MemoryParts",
    "DiskFacts",
)
STRUCT = "google.protobuf.Struct"
SCALARS = {
    str: FieldDescriptor.TYPE_STRING,
    bool: FieldDescriptor.TYPE_BOOL,
    int: FieldDescriptor.TYPE_INT64,
    float: FieldDescriptor.TYPE_DOUBLE,
}


def differences(model: type[BaseModel], message: Descriptor, where: str = "spec") -> Iterator[str]:
    """Every place where the two shapes differ."""
    ours, theirs = set(model.model_fields), {field.name for field in message.fields}
    yield from (f"{where}.{name} is not in the proto" for name in sorted(ours - theirs))
    yield from (f"{where}.{name} is only in the proto" for name in sorted(theirs - ours))
    for name in sorted(ours & theirs):
        yield from _field_differences(
            model.model_fields[name].annotation, message.fields_by_name[name], f"{where}.{name}"
        )


def _field_differences(annotation: Any, field: FieldDescriptor, where: str) -> Iterator[str]:
    kind = _without_none(annotation)
    if get_origin(kind) in (list, tuple):
        if not field.is_repeated:
            yield f"{where} is a list only in JSON"
        kind = _without_none(get_args(kind)[0])
        if get_origin(kind) is dict:
            if field.message_type is None or field.message_type.full_name != STRUCT:
                yield f"{where} is a list of objects of free keys only in JSON"
            return
    elif get_origin(kind) is dict:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if not is_map and (field.message_type is None or field.message_type.full_name != STRUCT):
            yield f"{where} is an object of free keys only in JSON"
        return
    elif field.is_repeated:
        yield f"{where} is a list only in the proto"
    yield from _value_differences(kind, field, where)


def _value_differences(kind: Any, field: FieldDescriptor, where: str) -> Iterator[str]:
    if issubclass(kind, BaseModel):
        if field.message_type is None:
            yield f"{where} is an object only in JSON"
        else:
            yield from differences(kind, field.message_type, where)
        return
    wanted = SCALARS[str if issubclass(kind, StrEnum) else kind]
    if field.type != wanted:
        yield f"{where} has another scalar type in the proto"
    if not field.is_repeated and not field.has_presence:
        yield f"{where} cannot be absent in the proto, so its default would be lost"


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) is typing.Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (typing.Union, types.UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not type(None))
        return _without_none(annotation)
    return annotation


def test_the_spec_has_the_same_fields_and_types_in_json_and_proto():
    assert list(differences(JobSpec, pb.JobSpec.DESCRIPTOR)) == []


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (PreviewRequest, pb.PreviewRequest),
        (GenerationRequest, pb.GenerationRequest),
        (verification.VerificationRequest, pb.VerificationRequest),
    ],
)
def test_what_an_errand_asks_has_the_same_fields_and_types(model: type[BaseModel], message: Any):
    assert list(differences(model, message.DESCRIPTOR)) == []


def test_the_walk_notices_a_missing_field_on_either_side():
    class Extra(JobSpec):
        invented: int = 0

    assert list(differences(Extra, pb.JobSpec.DESCRIPTOR)) == ["spec.invented is not in the proto"]
    assert "spec.after is only in the proto" in differences(JobSpec, pb.WatchJobRequest.DESCRIPTOR)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (JobView, pb.Job),
        (JobEventView, pb.JobEvent),
        (JobError, pb.JobError),
        (Progress, pb.Progress),
        (Queue, pb.Queue),
        (ErrandView, pb.Errand),
        (RewardPreview, pb.RewardPreview),
        (ComponentPreview, pb.ComponentPreview),
        (Spread, pb.Spread),
        (TextScore, pb.TextScore),
        (Finding, pb.Finding),
        (DatasetView, dataset_service_pb2.Dataset),
        (ColumnView, dataset_service_pb2.Column),
        (Generation, pb.Generation),
        (GeneratedBy, pb.GeneratedBy),
        (GeneratedResponse, pb.GeneratedResponse),
        *((getattr(verification, name), getattr(pb, name)) for name in VERIFIED),
        (PlanView, pb.PlanJobResponse),
        (Problem, pb.Problem),
        (Work, pb.Work),
        (Eta, pb.Eta),
        *((getattr(plans, name), getattr(pb, name)) for name in PLANNED),
        (AttemptView, pb.Attempt),
        (FindingView, pb.HealthFinding),
        (HealthView, pb.GetHealthResponse),
        (ParentView, pb.Parent),
    ],
)
def test_what_comes_back_has_the_same_fields(view: type[BaseModel], message: Any):
    assert set(view.model_fields) == {field.name for field in message.DESCRIPTOR.fields}


def test_every_state_has_its_number_on_the_wire():
    names = {f"JOB_STATE_{state.name}" for state in JobState} | {"JOB_STATE_UNSPECIFIED"}
    assert set(pb.JobState.keys()) == names
    assert convert.states([convert.state(state) for state in JobState]) == list(JobState)


SPECS = {
    "small": spec_document(),
    "everything": spec_document(
        model={
            "policy": {"hub": "org/model", "revision": "main"},
            "value": {"shared": {"init": "normal"}},
            "reference": {"source": {"path": "models/ref"}},
        },
        prompts={"file": {"path": "p.jsonl", "field": "text"}, "max_tokens": 100, "shuffle": False},
        rewards=[
            {"name": "words", "weight": -0.5, "rule": {"name": "length", "params": {"target": 5}}},
            {"name": "judge", "model": {"source": {"hub": "org/rm"}, "max_tokens": 64, "include_prompt": False}},
        ],
        kl={"penalty": "full", "init_kl_coef": 0, "fixed": {}},
        ppo={"steps": 7, "batch_size": 8, "whiten_rewards": True, "score_scaling": "scale", "target_kl": 0.1},
        optimizer={"learning_rate": 1e-5, "betas": [0.9, 0.95], "schedule": "cosine"},
        resources={"queue": "gpu", "priority": -3, "threads": 2, "device": "cpu"},
        labels={"team": "demo"},
        seed=2**32 - 1,
    ),
    "datasets": spec_document(
        prompts={"dataset": {"id": "ds_" + "0" * 26, "field": "text"}},
        evaluation={"prompts": {"dataset": {"id": "ds_" + "0" * 26}}},
    ),
    "no reference": spec_document(model__reference={"none": {}}, kl={"init_kl_coef": 0.0}),
    "nested parameters": spec_document(
        rewards=[{"name": "k", "rule": {"name": "keyword", "params": {"words": ["good", "great"]}}}]
    ),
}


@pytest.mark.parametrize("document", SPECS.values(), ids=SPECS.keys())
def test_a_spec_means_the_same_job_through_either_door(document: dict[str, Any]):
    over_rest = parse_spec(document)
    message = json_format.ParseDict(json.loads(json.dumps(document)), pb.JobSpec())
    on_the_wire = pb.JobSpec.FromString(message.SerializeToString())
    over_grpc = parse_spec(convert.spec_document(on_the_wire))
    assert over_grpc == over_rest
    assert spec_hash(over_grpc) == spec_hash(over_rest)


@pytest.mark.parametrize("document", SPECS.values(), ids=SPECS.keys())
def test_a_stored_spec_goes_out_and_comes_back_unchanged(document: dict[str, Any]):
    stored = parse_spec(document).document()
    message = json_format.ParseDict(stored, pb.JobSpec())
    assert parse_spec(convert.spec_document(message)).document() == stored


def test_absent_fields_reach_pydantic_as_absent_and_zeros_as_zeros():
    absent = convert.spec_document(pb.JobSpec(name="x"))
    assert absent == {"name": "x"}
    zero = convert.spec_document(pb.JobSpec(seed=0, generation=pb.GenerationConfig(top_k=0)))
    assert zero == {"seed": 0, "generation": {"top_k": 0}}


def test_an_integer_field_cannot_outgrow_the_wire():
    biggest = spec_document(checkpoint={"every_steps": 2**63 - 1})
    assert json_format.ParseDict(parse_spec(biggest).document(), pb.JobSpec()).checkpoint.every_steps == 2**63 - 1
