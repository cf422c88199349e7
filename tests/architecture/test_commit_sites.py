"""Every place that commits, and what asking again does where the commit was made and its answer was an error."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.source_tree import Source, sources

IN_HISTORIES = "random histories raise errors after this commit, and before it (tests/support/repository_machine.py)"
SITES = {
    **dict.fromkeys(
        (
            f"jobs.{name}"
            for name in [
                "checkpoints.discard_checkpoint",
                "checkpoints.record_checkpoint",
                "checkpoints.record_rollback",
                "claiming.claim",
                "dispatch.claim_due",
                "dispatch.prune",
                "dispatch.record_result",
                "ending._ending",
                "ending.reap",
                "errand_work._write",
                "errand_work.claim_errand",
                "errand_work.return_errand",
                "errand_work.tidy_errands",
                "inheriting.record_inheritance",
                "lease.heartbeat",
                "recording.record_guard",
                "recording.record_phase",
                "recording.record_started",
                "recording.record_step",
                "service._create",
                "verbs.cancel",
                "verbs.pause",
                "verbs.resume",
                "verbs.stop",
            ]
        ),
        IN_HISTORIES,
    ),
    "jobs.audit.prune": "nothing is left to forget",
    "jobs.audit.record_refusal": "one entry more, which says when",
    "jobs.auth._note_use": "the same minute again",
    "jobs.datasets.add": "the same bytes are found: one dataset",
    "jobs.datasets.delete": "it is not there any more: 404",
    "jobs.ending.release": "the job is not running any more: False",
    "jobs.errand_control.cancel_errand": "an errand that is cancelled, or to be, is answered as it is",
    "jobs.errands.ask": "a second errand; both end, and are forgotten after an hour",
    "jobs.fleet.beat_worker": "the same row again",
    "jobs.fleet.due_wakeups": "wake-ups that were not sent are due again later, and workers poll",
    "jobs.fleet.forget_worker": "nothing is left to forget",
    "jobs.keys.create": "a second key: the first was never shown, and can be revoked by its id",
    "jobs.keys.revoke": "it is revoked already: as it is",
    "jobs.quotas.set_quota": "the same row again",
    "jobs.retention._drop_checkpoints": "what is left on disk is found again",
    "jobs.retention._drop_samples": "nothing is left to forget",
    "jobs.updating.update": "the same patch changes nothing; with If-Match 412",
    "jobs.webhooks.create": "refused with advice: that URL has an endpoint, whose secret can be rotated",
    "jobs.webhooks.delete": "it is not there any more: 404",
    "jobs.webhooks.redeliver": "due at once again, under the same id",
    "jobs.webhooks.rotate_secret": "another secret; the one before last signs no more",
    "jobs.webhooks.send_test": "a second test message",
    "jobs.webhooks.update": "the same changes again",
}


def commit_sites(source: Source) -> Iterator[str]:
    """The outermost functions and methods that open a transaction."""
    for node in source.tree.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        for member in members:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and any(map(_opens, ast.walk(member))):
                yield f"{source.path.removesuffix('.py').replace('/', '.')}.{member.name}"


def _opens(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "transaction"


def test_every_commit_site_is_known() -> None:
    found = {site for source in sources(("api", "jobs", "worker")) for site in commit_sites(source)}
    assert found - {"jobs.db.transaction"} == set(SITES)


def test_a_new_site_is_found() -> None:
    text = "class A:\n    def f(self):\n        with self.db.transaction() as session: ..."
    assert list(commit_sites(Source("jobs/x.py", text))) == ["jobs.x.f"]
