"""The Celery application. Every setting is here for a reason that `docs/decisions` or a measurement gives."""

from __future__ import annotations

from celery import Celery

from worker.settings import WorkerSettings
from worker.tasks import wake_queue

_PUBLISHER_TIMEOUT_SECONDS = 1


def create_app(settings: WorkerSettings, *, publisher: bool = False) -> Celery:
    """Make the application of a worker, or of a `publisher` that must never wait long for the broker."""
    broker = "memory://localhost//" if settings.embedded else settings.broker_url.get_secret_value()
    app = Celery("ppo", broker=broker, set_as_current=False)
    app.conf.update(
        # A message is only a wake-up: acknowledged when taken, never redelivered by the broker, without a result.
        task_acks_late=False,
        task_reject_on_worker_lost=False,
        task_ignore_result=True,
        result_backend=None,
        task_store_errors_even_if_ignored=False,
        task_serializer="json",
        accept_content=["json"],
        task_queues=[wake_queue(name) for name in settings.queue_names],
        task_default_queue=wake_queue(settings.queue_names[0]).name,
        task_create_missing_queues=publisher,
        # A lost connection must not touch a running job (Celery 6 changes this default).
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        worker_soft_shutdown_timeout=0,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        **(_embedded() if settings.embedded else _redis(publisher)),
    )
    return app


def _embedded() -> dict[str, object]:
    return {
        # 1 would hold each message back up to 2 s with a thread pool, until the blocking loop flushes its acks.
        "worker_prefetch_multiplier": 0,
        "worker_enable_remote_control": False,
        "broker_transport_options": {"polling_interval": 0.05},
    }


def _redis(publisher: bool) -> dict[str, object]:
    timeout_seconds = _PUBLISHER_TIMEOUT_SECONDS if publisher else 10
    return {
        "worker_prefetch_multiplier": 1,
        # A busy worker must not hold a wake-up that an idle one could use.
        "worker_disable_prefetch": True,
        "worker_enable_remote_control": True,
        "broker_transport_options": {
            "global_keyprefix": "ppo:",
            "visibility_timeout": 3600,
            # Without these a half-open connection is never noticed.
            "socket_timeout": timeout_seconds,
            "socket_connect_timeout": min(timeout_seconds, 5),
            "socket_keepalive": True,
            "health_check_interval": 5,
            "retry_on_timeout": not publisher,
            **({"max_retries": 1, "interval_start": 0, "interval_step": 0} if publisher else {}),
        },
    }
