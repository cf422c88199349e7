"""What a worker may do to a job: the worker's face of the domain.

Every write of an attempt is fenced by its lease and raises LeaseLost when another attempt owns the job, or nobody does.
"""

from __future__ import annotations

from jobs.audit import prune as prune_audit
from jobs.checkpoints import discard_checkpoint, record_checkpoint, record_rollback
from jobs.claiming import Claim, claim
from jobs.ending import USER_PAUSE, cancelled, fail, halve_microbatch, pause, reap, requeue, stop, succeed
from jobs.fleet import beat_worker, due_wakeups, forget_worker
from jobs.inheriting import forks_to_serve, record_inheritance
from jobs.lease import Lease, Wishes, heartbeat
from jobs.lineage import Inherited
from jobs.recording import record_guard, record_phase, record_started, record_step

__all__ = [
    "USER_PAUSE",
    "Claim",
    "Inherited",
    "Lease",
    "Wishes",
    "beat_worker",
    "cancelled",
    "claim",
    "discard_checkpoint",
    "due_wakeups",
    "fail",
    "forget_worker",
    "forks_to_serve",
    "halve_microbatch",
    "heartbeat",
    "pause",
    "prune_audit",
    "reap",
    "record_checkpoint",
    "record_guard",
    "record_inheritance",
    "record_phase",
    "record_rollback",
    "record_started",
    "record_step",
    "requeue",
    "stop",
    "succeed",
]
