"""What an operator can set for a worker: environment variables with the prefix PPO_."""

from __future__ import annotations

import os
import socket
import sys
import uuid
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, StringConstraints, field_validator, model_validator

from jobs.settings import DomainSettings
from ppo_engine.errands import ErrandKind
from ppo_engine.rundir import RunDir

_ENGINE_ENV = frozenset(
    {
        "PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHASHSEED",
        "LD_LIBRARY_PATH", "LD_PRELOAD", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
        "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
        "XDG_CACHE_HOME", "WANDB_API_KEY", "WANDB_BASE_URL",
    }
)  # fmt: skip
_ENGINE_ENV_PREFIXES = (
    "LC_", "CUDA_", "NVIDIA_", "NCCL_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "TORCH", "PYTORCH_",
    "ACCELERATE_", "THP_", "OMP_", "GOMP_", "MKL_", "OPENBLAS_", "CUBLAS_", "TRITON_",
)  # fmt: skip
_SECRET_ENV = ("HF_TOKEN", "HUGGINGFACE_TOKEN", "HUGGINGFACE_HUB_TOKEN", "WANDB_API_KEY")

Seconds = Annotated[float, Field(gt=0)]


def _new_worker_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


class WorkerSettings(DomainSettings):
    """Settings of one worker process; the defaults are the embedded profile."""

    worker_id: str = Field(default_factory=_new_worker_id)
    """Name of this worker. Default: host, process and a random part; two workers must not share one."""
    broker_url: SecretStr = SecretStr("memory://")
    """Where wake-ups come from: `memory://` (embedded: this process feeds itself) or `redis://…`."""
    queues: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]+(,[a-z0-9_-]+)*$")] = "default"
    """Queues this worker serves, comma separated."""
    slots: int = Field(1, ge=1, le=256)
    """Jobs at once: one per device share."""

    metrics_host: str = "127.0.0.1"
    """Address that `/metrics` of this worker listens on."""
    metrics_port: int = Field(0, ge=0, le=65535)
    """0: any free port."""
    metrics_advertise_host: str | None = None
    """The host name Prometheus reaches this worker by. Default: metrics_host, or the machine's name behind 0.0.0.0."""

    poll_seconds: Seconds | None = None
    """How often the database is asked for work. Default: 0.5 embedded, 5 with a broker."""
    rewake_seconds: Seconds = 30
    """The relay wakes a job again that is still queued after this long."""
    lease_seconds: Seconds = 60
    """A job whose worker has not been heard of for this long goes to another one."""
    heartbeat_seconds: Seconds = 3
    """Its answer brings the wish to cancel, so this is also how soon a cancel is heard."""
    fence_seconds: Seconds = 40
    """An engine is killed this long after the last heartbeat that succeeded was sent; less than the lease."""
    reap_seconds: Seconds = 10
    """How often jobs whose lease ran out are looked for."""
    audit_days: float = Field(365, gt=0)
    """Days after which entries of the audit log are forgotten."""
    prune_days: float | None = Field(None, gt=0)
    """Days after its end that a job loses checkpoints, logs and samples, as by `jobs.admin prune`. Default: never."""
    prune_keep_best: bool = True
    """Whether each job then keeps its best checkpoint."""
    presence_seconds: Seconds = 10
    """How often the worker says that it lives, for the list of workers and Prometheus' discovery."""
    grace_seconds: Seconds = 10
    """Time to checkpoint after a stop, beyond the step in progress; then SIGKILL."""
    loading_seconds: Seconds = 3600
    """Longest silence before the first step: a model may have to be downloaded."""
    silence_seconds: Seconds = 1800
    """Longest silence in training; never less than ten times the longest step so far."""

    engine_command: list[str] = Field(default_factory=lambda: [sys.executable, "-m", "ppo_engine"])
    """Program that trains, as a JSON list. Default: `python -m ppo_engine`."""
    engine_threads: int | None = Field(None, ge=1)
    """CPU threads of one engine. Default: the machine's cores divided by the slots."""
    reward_token_file: Path | None = None
    """File with a bearer token for the hosts in reward_hosts; no other host ever gets it."""
    errands: bool = True
    """Do reward previews and generations beside the jobs, one at a time, in a process of their own. Off: a worker whose
    device has no memory to spare."""
    errand_seconds: Seconds = 120
    """An errand's process is killed after this long."""
    verify_seconds: Seconds = 1800
    """The same for a replay of steps (`ppo verify-resume`), which trains; this worker's other errands wait."""
    errand_poll_seconds: Seconds = 0.5
    """How often the database is asked for errands: somebody waits for the answer."""
    warm_engine: bool = True
    """Keep one engine process waiting while a slot is free: a job or an errand starts seconds sooner, for 400 MB."""
    engine_log_bytes: int = Field(64 * 2**20, ge=4096)
    """Size at which an engine's log is rotated; one older part is kept."""

    webhook_poll_seconds: Seconds = 1
    """How often the outbox of webhooks is looked at, by the relay, or by the worker of an embedded service."""
    webhook_timeout_seconds: Seconds = 15
    """Longest wait for a receiver's answer, lookup and connection included."""
    webhook_first_retry_seconds: Seconds = 5
    """Pause after the first failed delivery of a message; every further one is four times as long, up to 4 h."""
    webhook_retry_hours: Seconds = 24
    """A message that could not be delivered for this long is given up."""
    webhook_disable_hours: Seconds = 72
    """A webhook of which nothing could be delivered for this long is disabled."""
    webhook_keep_days: Seconds = 30
    """Messages and their delivery log are removed when they are older."""

    @field_validator("broker_url")
    @classmethod
    def _known_broker(cls, url: SecretStr) -> SecretStr:
        if not url.get_secret_value().startswith(("memory://", "redis://", "rediss://")):
            raise ValueError("must begin with memory://, redis:// or rediss://")
        return url

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.heartbeat_seconds < self.fence_seconds < self.lease_seconds:
            raise ValueError("heartbeat_seconds < fence_seconds < lease_seconds must hold")
        return self

    @property
    def embedded(self) -> bool:
        """Whether this process is its own broker."""
        return self.broker_url.get_secret_value().startswith("memory://")

    @property
    def advertised_host(self) -> str:
        """The host in the URL of this worker's metrics."""
        anywhere = self.metrics_host in ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
        return self.metrics_advertise_host or (socket.gethostname() if anywhere else self.metrics_host)

    @property
    def queue_names(self) -> list[str]:
        return self.queues.split(",")

    @property
    def poll_interval_seconds(self) -> float:
        return self.poll_seconds or (0.5 if self.embedded else 5.0)

    @property
    def threads_per_engine(self) -> int:
        return self.engine_threads or max(1, (os.cpu_count() or 1) // self.slots)

    def run_arguments(
        self, run_dir: RunDir, *, attempt: int, checkpoint: str | None, threads: int, parts: int = 1
    ) -> list[str]:
        """What follows `engine_command run`."""
        resume = ["--resume", str(run_dir.root / checkpoint)] if checkpoint else []
        how = ["--attempt", str(attempt), "--threads", str(threads), "--keep-checkpoints"]
        how += ["--parts", str(parts)] if parts > 1 else []
        return [str(run_dir.spec), "--out", str(run_dir.root), *how, *resume, *self._sources(self.datasets_dir)]

    def errand_arguments(self, kind: str, request: Path) -> list[str]:
        """What follows `engine_command errand`."""
        how = ["--runs", str(self.runs_dir), "--threads", str(self.threads_per_engine)]
        datasets = kind in (ErrandKind.PROBE, ErrandKind.VERIFY_RESUME)  # those were found to be the owner's
        folders = [self.datasets_dir] if datasets else []
        return [kind, str(request), *how, *self._sources(*folders)]

    def errand_limit_seconds(self, kind: str) -> float:
        """How long an errand may take."""
        return self.verify_seconds if kind == ErrandKind.VERIFY_RESUME else self.errand_seconds

    def _sources(self, *folders: Path) -> list[str]:
        """What an engine may read and call; `folders` beside the model roots."""
        roots = [part for root in [*self.model_roots, *folders] for part in ("--root", str(root))]
        hosts = [part for host in self.reward_hosts for part in ("--reward-host", host)]
        token = ["--reward-token-file", str(self.reward_token_file.resolve())] if self.reward_token_file else []
        return [*roots, *hosts, *token]

    def engine_env(self, threads: int) -> dict[str, str]:
        """The environment of an engine: nothing of the service's own, so no database or broker credentials."""
        passed = {
            name: value
            for name, value in os.environ.items()
            if name in _ENGINE_ENV or name.startswith(_ENGINE_ENV_PREFIXES)
        }
        return {**passed, "OMP_NUM_THREADS": str(threads), "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}

    def engine_secrets(self) -> list[str]:
        """Values in the engine's environment that must never reach a log."""
        return [os.environ[name] for name in _SECRET_ENV if os.environ.get(name)]
