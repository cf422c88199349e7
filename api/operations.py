"""Every operation of both doors in one table: what it is called, which scope it needs, its route and its rpc.

A route and an rpc in one row are twins: they cannot need different scopes. What is in no row needs `admin`, so that
something new is never open by mistake; a test names what is missing here.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobs.principal import Scope


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that can be asked of the service."""

    action: str
    """Its name in the audit log."""
    scope: Scope | None
    """What the key must allow; None: any key will do."""
    route: str | None = None
    """Method and path template."""
    rpc: str | None = None
    """Service and method; of our own package without its name."""

    @property
    def changes(self) -> bool:
        """Whether it is one whose refusals belong into the audit log."""
        return self.scope not in (None, Scope.READ)


READ, SUBMIT, CONTROL, KEYS, ADMIN = Scope.READ, Scope.SUBMIT, Scope.CONTROL, Scope.KEYS, Scope.ADMIN

OPERATIONS = (
    Operation("job.submit", SUBMIT, "POST /v1/jobs", "JobService/CreateJob"),
    Operation("job.plan", SUBMIT, "POST /v1/jobs/plan", "JobService/PlanJob"),
    Operation("job.list", READ, "GET /v1/jobs", "JobService/ListJobs"),
    Operation("job.get", READ, "GET /v1/jobs/{job_id}", "JobService/GetJob"),
    Operation("job.cancel", CONTROL, "POST /v1/jobs/{job_id}/cancel", "JobService/CancelJob"),
    Operation("job.pause", CONTROL, "POST /v1/jobs/{job_id}/pause", "JobService/PauseJob"),
    Operation("job.stop", CONTROL, "POST /v1/jobs/{job_id}/stop", "JobService/StopJob"),
    Operation("job.retry", SUBMIT, "POST /v1/jobs/{job_id}/retry", "JobService/RetryJob"),
    Operation("job.fork", SUBMIT, "POST /v1/jobs/{job_id}/fork", "JobService/ForkJob"),
    Operation("job.update", CONTROL, "PATCH /v1/jobs/{job_id}", "JobService/UpdateJob"),
    Operation("job.wait", READ, "GET /v1/jobs/{job_id}/wait", "JobService/WaitJob"),
    Operation("job.attempts", READ, "GET /v1/jobs/{job_id}/attempts", "JobService/ListAttempts"),
    Operation("job.health", READ, "GET /v1/jobs/{job_id}/health", "JobService/GetHealth"),
    Operation("job.resume", CONTROL, "POST /v1/jobs/{job_id}/resume", "JobService/ResumeJob"),
    Operation("job.events", READ, "GET /v1/jobs/{job_id}/events", "JobService/ListEvents"),
    Operation("job.watch", READ, None, "JobService/WatchJob"),
    Operation("job.metrics", READ, "GET /v1/jobs/{job_id}/metrics", "JobService/QueryMetrics"),
    Operation("job.samples", READ, "GET /v1/jobs/{job_id}/samples", "JobService/ListSamples"),
    Operation("job.logs", READ, "GET /v1/jobs/{job_id}/logs", "JobService/ListLogs"),
    Operation("checkpoint.list", READ, "GET /v1/jobs/{job_id}/checkpoints", "JobService/ListCheckpoints"),
    Operation(
        "checkpoint.download",
        READ,
        "GET /v1/jobs/{job_id}/checkpoints/{step}/archive",
        "JobService/DownloadCheckpoint",
    ),
    Operation("model.export", READ, "GET /v1/jobs/{job_id}/export", "JobService/ExportModel"),
    Operation(
        "tensorboard.download", READ, "GET /v1/jobs/{job_id}/tensorboard/archive", "JobService/DownloadTensorBoard"
    ),
    Operation("dataset.create", SUBMIT, "POST /v1/datasets", "DatasetService/UploadDataset"),
    Operation("dataset.list", READ, "GET /v1/datasets", "DatasetService/ListDatasets"),
    Operation("dataset.get", READ, "GET /v1/datasets/{dataset_id}", "DatasetService/GetDataset"),
    Operation("dataset.delete", CONTROL, "DELETE /v1/datasets/{dataset_id}", "DatasetService/DeleteDataset"),
    Operation("webhook.create", CONTROL, "POST /v1/webhooks", "WebhookService/CreateWebhook"),
    Operation("webhook.list", READ, "GET /v1/webhooks", "WebhookService/ListWebhooks"),
    Operation("webhook.get", READ, "GET /v1/webhooks/{webhook_id}", "WebhookService/GetWebhook"),
    Operation("webhook.update", CONTROL, "PATCH /v1/webhooks/{webhook_id}", "WebhookService/UpdateWebhook"),
    Operation("webhook.delete", CONTROL, "DELETE /v1/webhooks/{webhook_id}", "WebhookService/DeleteWebhook"),
    Operation(
        "webhook.rotate_secret",
        CONTROL,
        "POST /v1/webhooks/{webhook_id}/rotate-secret",
        "WebhookService/RotateWebhookSecret",
    ),
    Operation("webhook.test", CONTROL, "POST /v1/webhooks/{webhook_id}/test", "WebhookService/TestWebhook"),
    Operation(
        "webhook.deliveries", READ, "GET /v1/webhooks/{webhook_id}/deliveries", "WebhookService/ListWebhookDeliveries"
    ),
    Operation(
        "webhook.redeliver",
        CONTROL,
        "POST /v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver",
        "WebhookService/RedeliverWebhook",
    ),
    Operation("reward.preview", SUBMIT, "POST /v1/rewards/preview", "JobService/PreviewReward"),
    Operation("job.generate", SUBMIT, "POST /v1/jobs/{job_id}/generate", "JobService/Generate"),
    Operation("job.verify_resume", SUBMIT, "POST /v1/jobs/{job_id}/verify-resume", "JobService/VerifyResume"),
    Operation("errand.get", READ, "GET /v1/errands/{errand_id}", "JobService/GetErrand"),
    Operation("errand.list", READ, "GET /v1/errands", "JobService/ListErrands"),
    Operation("errand.cancel", CONTROL, "POST /v1/errands/{errand_id}/cancel", "JobService/CancelErrand"),
    Operation("schema.job", None, "GET /v1/schemas/job", "CatalogueService/GetJobSchema"),
    Operation("capabilities", None, "GET /v1/capabilities", "CatalogueService/GetCapabilities"),
    Operation("problem.list", None, None, "CatalogueService/ListProblems"),
    Operation("problem.get", None, None, "CatalogueService/GetProblem"),
    Operation("reflection", None, None, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"),
    Operation("me", None, "GET /v1/me", "AccessService/GetMe"),
    Operation("key.create", KEYS, "POST /v1/keys", "AccessService/CreateKey"),
    Operation("key.list", KEYS, "GET /v1/keys", "AccessService/ListKeys"),
    Operation("key.revoke", KEYS, "DELETE /v1/keys/{key_id}", "AccessService/RevokeKey"),
    Operation("quota.get", ADMIN, "GET /v1/quotas/{owner:path}", "AccessService/GetQuota"),
    Operation("quota.set", ADMIN, "PUT /v1/quotas/{owner:path}", "AccessService/SetQuota"),
    Operation("audit.list", ADMIN, "GET /v1/audit", "AccessService/ListAuditEntries"),
)

_UNKNOWN = Operation("unknown", ADMIN)
_BY_ROUTE = {operation.route: operation for operation in OPERATIONS}
_BY_RPC = {operation.rpc: operation for operation in OPERATIONS}


def of_route(method: str, path: str) -> Operation:
    """The operation behind a method and a path template; HEAD is a GET without its body."""
    return _BY_ROUTE.get(f"{'GET' if method == 'HEAD' else method} {path}", _UNKNOWN)


def of_rpc(method: str) -> Operation:
    """The operation behind a full method name, `/ppo.v1.JobService/GetJob`."""
    return _BY_RPC.get(method.removeprefix("/ppo.v1."), _UNKNOWN)
