"""Every operation of the HTTP door with its twin of the gRPC door, and one example for both.

The pages in docs/api are made from this table, the OpenAPI document and the proto; a test runs every example through
both doors and compares the answers field by field. To add an operation:

1. Add a row here, keyed by its operation id: the name of its route function. Its twin is what `api/operations.py` has
   in the row of its route; an operation that exists over HTTP only gives the reason in `http_only`. A method without an
   operation goes into GRPC_ONLY with a reason.
2. `call` is the request as one would type it, `body` its JSON (or text), `request` the same as the JSON of the gRPC
   request (a list for a method that takes a stream; bytes as bytes). They may use the names of NAMES; the values that
   they have in the test are made in tests/support/example_values.py. Lists come last in their section: what is
   compared was read when all examples had run once.
3. Fields in which the answers of two calls may differ go into `differs`. A difference of shape that is meant goes
   into OTHER_SHAPES, one of the request's parameters into RENAMED, each with its reason.
4. `python docs/generate.py`, and commit the pages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from api.operations import OPERATIONS


def _twin_of(call: str) -> str:
    """`Service.Method` of the route that fits a call best: `plan` fits `{job_id}` too, but itself better."""
    asked = re.split("[ /]", call.partition("?")[0])
    found = {row.rpc: re.split("[ /]", row.route) for row in OPERATIONS if row.route and row.rpc}
    fits = {
        rpc: sum(not part.startswith("{") for part in parts)
        for rpc, parts in found.items()
        if len(parts) == len(asked)
        and all(part.startswith("{") or part == given for part, given in zip(parts, asked, strict=True))
    }
    return max(fits, key=lambda rpc: fits[rpc]).replace("/", ".") if fits else ""


@dataclass(frozen=True)
class Twin:
    """One operation."""

    call: str
    """Method and path as for curl, `GET /v1/jobs/$JOB`."""
    request: dict[str, Any] | list[dict[str, Any]] = field(default_factory=dict)
    body: dict[str, Any] | str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200
    also: tuple[str, ...] = ()
    """Further methods with the same meaning, without an example of their own."""
    differs: tuple[str, ...] = ()
    http_only: str = ""
    rpc: str = ""
    """Its twin, `Service.Method`: by default the one that `api.operations` names in the row of the route."""

    def __post_init__(self) -> None:
        if not self.rpc and not self.http_only:
            object.__setattr__(self, "rpc", _twin_of(self.call))

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The messages of the gRPC request, one unless it is a stream."""
        return self.request if isinstance(self.request, list) else [self.request]


SPEC = {
    "name": "first-try",
    "model": {"policy": {"path": "austen-2m"}},
    "prompts": {"inline": ["She was", "The evening was"]},
    "rewards": [{"name": "sentiment", "rule": {"name": "sentiment"}}],
    "generation": {"max_new_tokens": 8},
    "ppo": {"steps": 2, "batch_size": 4, "minibatch_size": 4, "ppo_epochs": 1},
    "checkpoint": {"every_steps": 1},
    "labels": {"team": "demo"},
}
ROWS = '{"prompt": "She was"}\n{"prompt": "The evening was"}\n'
PREVIEW = {
    "rewards": [{"name": "sentiment", "rule": {"name": "sentiment"}}],
    "texts": [{"prompt": "She was", "response": " happy."}, {"prompt": "She was", "response": " sad."}],
}
GENERATION = {"prompts": ["She was"], "compare_to": ["base"], "max_new_tokens": 8, "score": True}
_JOB = {"job_id": "$JOB"}
_MOVING = (
    *("etag", "state", "phase", "done", "allowed_actions", "attempt", "progress", "latest_metrics", "health"),
    *("stop_reason", "last_checkpoint_step", "best_checkpoint_step", "start_time", "end_time", "update_time", "queue"),
)
"""Fields of a job that change while it runs."""
_WEBHOOK = {"webhook_id": "$WEBHOOK"}
_WAITING = {"job_id": "$WAITING"}
_PROBES = "probes speak gRPC to grpc.health.v1"
_PROMETHEUS = "Prometheus reads HTTP"

NAMES = {
    "JOB": "the id of a job that has succeeded",
    "STEP": "one of its checkpoints",
    "WAITING": "the id of a queued job",
    "CANCELLED": "the id of a cancelled job",
    "DATASET": "the id of a dataset",
    "UNUSED_DATASET": "the id of one that no job needs",
    "URL": "an address of yours",
    "WEBHOOK": "the id of a webhook",
    "DELIVERY": "the id of one of its deliveries",
    "KEY": "the id of a key",
    "ERRAND": "the id of an errand",
    "UNWANTED": "the id of an errand that nobody needs any more",
}
"""What `$JOB` and so on stand for, in examples."""

TWINS: dict[str, Twin] = {
    # --- jobs ---
    "submit": Twin(
        "POST /v1/jobs",
        {"spec": SPEC, "request_id": "a-name-of-yours"},
        SPEC,
        {"Idempotency-Key": "a-name-of-yours"},
        201,
        # The second call finds the job of the first at its end.
        differs=_MOVING,
    ),
    "plan_job": Twin(
        "POST /v1/jobs/plan?timeout=120",
        {"spec": SPEC, "timeout_seconds": 120},
        SPEC,
        # What changes while jobs run: seconds of the rewards, free memory and disk, and earlier runs.
        differs=("rewards", "memory", "disk", "eta"),
    ),
    "get_job": Twin("GET /v1/jobs/$JOB", _JOB),
    "cancel": Twin("POST /v1/jobs/$WAITING/cancel", _WAITING),
    "pause": Twin("POST /v1/jobs/$WAITING/pause", _WAITING),
    "stop": Twin("POST /v1/jobs/$JOB/stop", _JOB),
    "retry": Twin(
        "POST /v1/jobs/$CANCELLED/retry",
        {"job_id": "$CANCELLED", "request_id": "once-more"},
        headers={"Idempotency-Key": "once-more"},
        status=201,
        differs=_MOVING,
    ),
    "fork": Twin(
        "POST /v1/jobs/$JOB/fork",
        {**_JOB, "from_step": "last", "overrides": {"ppo": {"steps": 4}}, "name": "longer", "request_id": "a-fork"},
        {"from_step": "last", "overrides": {"ppo": {"steps": 4}}, "name": "longer"},
        {"Idempotency-Key": "a-fork"},
        201,
        differs=_MOVING,
    ),
    "wait_for_end": Twin("GET /v1/jobs/$JOB/wait?timeout=10", {**_JOB, "timeout_seconds": 10}),
    "update_job": Twin(
        "PATCH /v1/jobs/$WAITING",
        {**_WAITING, "name": "a better name", "labels": {"team": "demo"}},
        {"name": "a better name", "labels": {"team": "demo"}},
        differs=("etag", "queue"),
    ),
    "resume": Twin("POST /v1/jobs/$WAITING/resume", _WAITING, differs=("etag", "update_time", "queue")),
    "list_jobs": Twin(
        "GET /v1/jobs?state=succeeded&label=team=demo&page_size=10",
        {"states": ["JOB_STATE_SUCCEEDED"], "labels": {"team": "demo"}, "page_size": 10},
    ),
    "attempts": Twin("GET /v1/jobs/$JOB/attempts?page_size=10", {**_JOB, "page_size": 10}),
    "health": Twin("GET /v1/jobs/$JOB/health", _JOB),
    # --- what a job tells ---
    "events": Twin(
        "GET /v1/jobs/$JOB/events?after_seq=1&limit=100",
        {**_JOB, "after_seq": 1, "limit": 100},
        also=("JobService.WatchJob",),
    ),
    "metrics": Twin(
        "GET /v1/jobs/$JOB/metrics?keys=ppo/mean_scores,objective/kl",
        {**_JOB, "keys": ["ppo/mean_scores", "objective/kl"]},
    ),
    "samples": Twin("GET /v1/jobs/$JOB/samples?limit=2", {**_JOB, "limit": 2}),
    "logs": Twin("GET /v1/jobs/$JOB/logs?tail=5", {**_JOB, "tail": 5}),
    # --- checkpoints ---
    "checkpoints": Twin("GET /v1/jobs/$JOB/checkpoints?page_size=10", {**_JOB, "page_size": 10}),
    "archive": Twin("GET /v1/jobs/$JOB/checkpoints/$STEP/archive", {**_JOB, "step": "$STEP"}),
    "export": Twin(
        "GET /v1/jobs/$JOB/export?step=last&form=merged",
        {**_JOB, "step": "last", "form": "merged"},
    ),
    "tensorboard": Twin("GET /v1/jobs/$JOB/tensorboard/archive", _JOB),
    # --- datasets ---
    "add_dataset": Twin(
        "POST /v1/datasets?name=openings.jsonl",
        [{"header": {"name": "openings.jsonl"}}, {"chunk": ROWS.encode()}],
        ROWS,
        {"Content-Type": "application/jsonl"},
        201,
    ),
    "get_dataset": Twin("GET /v1/datasets/$DATASET", {"dataset_id": "$DATASET"}),
    "delete_dataset": Twin(
        "DELETE /v1/datasets/$UNUSED_DATASET",
        {"dataset_id": "$UNUSED_DATASET"},
        status=204,
    ),
    "list_datasets": Twin("GET /v1/datasets?page_size=10", {"page_size": 10}),
    # --- webhooks ---
    "create_webhook": Twin(
        "POST /v1/webhooks",
        {"url": "$URL", "event_types": {"values": ["job.succeeded", "job.failed"]}},
        {"url": "$URL", "event_types": ["job.succeeded", "job.failed"]},
        status=201,
    ),
    "get_webhook": Twin("GET /v1/webhooks/$WEBHOOK", _WEBHOOK),
    "update_webhook": Twin(
        "PATCH /v1/webhooks/$WEBHOOK",
        {**_WEBHOOK, "description": "for the team"},
        {"description": "for the team"},
        differs=("update_time", "failing_since"),
    ),
    "delete_webhook": Twin("DELETE /v1/webhooks/$WEBHOOK", _WEBHOOK, status=204),
    "rotate_secret": Twin(
        "POST /v1/webhooks/$WEBHOOK/rotate-secret",
        _WEBHOOK,
        differs=("secret", "previous_until"),
    ),
    "send_test": Twin("POST /v1/webhooks/$WEBHOOK/test", _WEBHOOK, status=202, differs=("message_id",)),
    "redeliver": Twin(
        "POST /v1/webhooks/$WEBHOOK/deliveries/$DELIVERY/redeliver",
        {**_WEBHOOK, "delivery_id": "$DELIVERY"},
        status=202,
    ),
    "deliveries": Twin(
        "GET /v1/webhooks/$WEBHOOK/deliveries?page_size=10",
        {**_WEBHOOK, "page_size": 10},
    ),
    "list_webhooks": Twin("GET /v1/webhooks?page_size=10", {"page_size": 10}),
    # --- errands ---
    "preview_reward": Twin(
        "POST /v1/rewards/preview?timeout=120",
        {"request": PREVIEW, "timeout_seconds": 120},
        PREVIEW,
        # Two errands; get_errand compares all of one.
        differs=("id", "create_time", "start_time", "end_time", "preview"),
    ),
    "generate": Twin(
        "POST /v1/jobs/$JOB/generate?timeout=120",
        {**_JOB, "request": GENERATION, "timeout_seconds": 120},
        GENERATION,
        differs=("id", "create_time", "start_time", "end_time", "generation"),
    ),
    "verify_resume": Twin(
        "POST /v1/jobs/$JOB/verify-resume?timeout=120",
        {**_JOB, "request": {"steps": 1}, "timeout_seconds": 120},
        {"steps": 1},
        differs=("id", "create_time", "start_time", "end_time", "verification"),
    ),
    "get_errand": Twin("GET /v1/errands/$ERRAND", {"errand_id": "$ERRAND"}),
    "cancel_errand": Twin("POST /v1/errands/$UNWANTED/cancel", {"errand_id": "$UNWANTED"}),
    "list_errands": Twin(
        "GET /v1/errands?kind=generate&state=succeeded&job_id=$JOB&page_size=10",
        {"kind": "generate", "state": "succeeded", "job_id": "$JOB", "page_size": 10},
    ),
    # --- access ---
    "me": Twin("GET /v1/me"),
    "create_key": Twin(
        "POST /v1/keys",
        {"name": "notebook", "scopes": ["read", "submit"], "expire_seconds": 86400},
        {"name": "notebook", "scopes": ["read", "submit"], "expire_seconds": 86400},
        status=201,
    ),
    "revoke_key": Twin("DELETE /v1/keys/$KEY", {"key_id": "$KEY"}),
    "set_quota": Twin(
        "PUT /v1/quotas/team-a",
        {"owner": "team-a", "max_running_jobs": 4, "max_queued_jobs": 100},
        {"max_running_jobs": 4, "max_queued_jobs": 100},
    ),
    "get_quota": Twin("GET /v1/quotas/team-a", {"owner": "team-a"}),
    "list_audit": Twin("GET /v1/audit?target=$JOB", {"target": "$JOB"}),
    "list_keys": Twin("GET /v1/keys?page_size=1", {"page_size": 1}),
    # --- catalogue ---
    "job_schema": Twin("GET /v1/schemas/job"),
    "capabilities": Twin("GET /v1/capabilities"),
    "problems": Twin("GET /problems", rpc="CatalogueService.ListProblems"),
    "problem": Twin("GET /problems/not_found", {"code": "not_found"}, rpc="CatalogueService.GetProblem"),
    # --- operations ---
    "livez": Twin("GET /livez", http_only=_PROBES),
    "readyz": Twin("GET /readyz", http_only=_PROBES),
    "service_metrics": Twin("GET /metrics", http_only=_PROMETHEUS),
    "job_metrics": Twin("GET /metrics/jobs", http_only=_PROMETHEUS),
    "worker_targets": Twin("GET /sd/workers", http_only=_PROMETHEUS),
}

GRPC_ONLY: dict[str, str] = {}
"""Methods that no operation stands for, with the reason."""

OTHER_SHAPES = {
    "create_key": "JSON has the key among the fields of its entry, the proto beside them",
    "create_webhook": "JSON has the secret among the endpoint's fields, the proto beside the endpoint",
    "metrics": "JSON has columns with null where a step lacks a key, the proto has points: it has no null in a list",
}
"""Operations whose answers say the same in another form."""

RENAMED: dict[str, dict[str, str]] = {
    "submit": {"idempotency-key": "request_id"},
    "list_jobs": {"state": "states", "label": "labels"},
    "retry": {"idempotency-key": "request_id"},
    "fork": {"idempotency-key": "request_id"},
    "wait_for_end": {"timeout": "timeout_seconds"},
    "update_job": {"if-match": "etag"},
    "events": {"last-event-id": ""},
    "metrics": {"format": ""},
    "plan_job": {"timeout": "timeout_seconds"},
    "preview_reward": {"timeout": "timeout_seconds"},
    "generate": {"timeout": "timeout_seconds"},
    "verify_resume": {"timeout": "timeout_seconds"},
    "get_errand": {"timeout": "timeout_seconds"},
    "archive": {"range": "offset", "if-range": ""},
    "export": {"range": "offset", "if-range": ""},
    "tensorboard": {"range": "offset", "if-range": ""},
}
"""Parameters by operation whose gRPC field has another name; empty where HTTP alone has it: a stream is WatchJob's,
CSV is a form of the same answer, and a gRPC caller compares the header's digest itself."""
