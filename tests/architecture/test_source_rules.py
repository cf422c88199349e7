"""What the walls between rooms cannot say: one commit site, one writer of `state`, short files, no unsafe calls."""

from __future__ import annotations

import pytest

from tests.support import architecture as rules
from tests.support.source_tree import ROOMS, Source, repository_files, sources

EVERYWHERE = (*ROOMS, "migrations", "examples", "benchmarks", "deploy", "docs", "tests")

RULES = [
    (rules.commits, ROOMS),
    (rules.state_writes, ("jobs", "worker")),
    (rules.rows, ROOMS),
    (rules.environment, ROOMS),
    (rules.size, EVERYWHERE),
    (rules.torch, ROOMS),
    (rules.vague_names, EVERYWHERE),
    (rules.unsafe, EVERYWHERE),
    (rules.docstrings, ("jobs", "ppo_engine")),
]

LONG_FUNCTION = "def f():\n" + "    x = 1\n" * 60 + "    return x\n"
PLANTED = [
    (rules.commits, "jobs/service.py", "session.commit()"),
    (rules.commits, "worker/app.py", "with x() as s:\n    s.session().commit()"),
    (rules.state_writes, "jobs/lifecycle.py", "job.state = 'failed'"),
    (rules.state_writes, "jobs/lifecycle.py", "update(Job).where(a).values(state=b)"),
    (rules.state_writes, "jobs/service.py", "session.execute(update(Job).values({'state': b}))"),
    (rules.state_writes, "jobs/service.py", "session.execute(update(Job).values({Job.state: b}))"),
    (rules.state_writes, "jobs/service.py", "session.add(Job(id=1, state='queued'))"),
    (rules.state_writes, "jobs/lease.py", "touch(session, [Job.id == x], state=b)"),
    (rules.state_writes, "jobs/lease.py", "values['state'] = b"),
    (rules.state_writes, "jobs/service.py", "setattr(job, 'state', x)"),
    (rules.rows, "api/rpc/servicer.py", "from jobs.tables import Job"),
    (rules.environment, "worker/process.py", "import os\nenv = dict(os.environ)"),
    (rules.environment, "worker/process.py", "import os\nenv = os.getenv('A')"),
    (rules.environment, "worker/process.py", "from os import environ"),
    (rules.size, "jobs/long.py", "x = 1\n" * 501),
    (rules.size, "jobs/long.py", LONG_FUNCTION),
    (rules.torch, "worker/gauges.py", "def f():\n    import torch.cuda"),
    (rules.torch, "ppo_engine/stats.py", "from transformers import AutoModel"),
    (rules.vague_names, "jobs/utils.py", ""),
    (rules.vague_names, "worker/common/x.py", ""),
    (rules.unsafe, "worker/x.py", "import pickle"),
    (rules.unsafe, "worker/x.py", "eval(text)"),
    (rules.unsafe, "worker/x.py", "subprocess.run(line, shell=True)"),
    (rules.unsafe, "ppo_engine/x.py", "torch.load(path)"),
    (rules.unsafe, "ppo_engine/x.py", "torch.load(path, weights_only=False)"),
    (rules.unsafe, "ppo_engine/x.py", "AutoModel.from_pretrained(p, trust_remote_code=True)"),
    (rules.unsafe, "ppo_engine/x.py", "AutoModel.from_pretrained(p, trust_remote_code=flag)"),
    (rules.unsafe, "jobs/x.py", "yaml.load(text)"),
    (rules.docstrings, "jobs/x.py", "'''M.'''\ndef submit(): ..."),
    (rules.docstrings, "jobs/x.py", "'''M.'''\nclass A:\n    '''A.'''\n    def go(self): ..."),
    (rules.docstrings, "jobs/x.py", "def _private(): ..."),
]


def name_of(rule: rules.Rule) -> str:
    return rule.__name__


@pytest.mark.parametrize(("rule", "rooms"), RULES, ids=[name_of(rule) for rule, _ in RULES])
def test_the_tree_keeps_the_rule(rule, rooms):
    broken = [f"{source.path}:{finding}" for source in sources(rooms) for finding in rule(source)]
    assert broken == []


@pytest.mark.parametrize(("rule", "path", "text"), PLANTED, ids=lambda value: getattr(value, "__name__", None))
def test_the_rule_notices_a_planted_violation(rule, path, text):
    assert list(rule(Source(path, text)))


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (rules.commits, "jobs/db.py", "session.commit()"),
        (rules.state_writes, "jobs/transition.py", "job.state = x"),
        (rules.state_writes, "jobs/errors.py", "self.state = state"),
        (rules.state_writes, "jobs/service.py", "JobView(state=row.state)"),
        (rules.environment, "worker/settings.py", "import os\nos.environ"),
        (rules.size, "jobs/x.py", "def f():\n" + "    # why\n\n" * 70 + "    return 1\n"),
        (rules.torch, "ppo_engine/maths/losses.py", "import torch"),
        (rules.unsafe, "ppo_engine/x.py", "torch.load(path, weights_only=True)"),
        (rules.unsafe, "ppo_engine/x.py", "AutoModel.from_pretrained(p, trust_remote_code=False)"),
        (rules.docstrings, "jobs/x.py", "'''M.'''\nclass A:\n    '''A.'''\n    @property\n    def b(self): ..."),
    ],
)
def test_the_rule_lets_sound_code_pass(rule, path, text):
    assert list(rule(Source(path, text))) == []


def test_every_room_was_read():
    assert {source.room for source in sources()} == set(ROOMS)


def test_proto_is_no_python_package():
    """`import proto` must not shadow anybody's package."""
    assert [path for path in repository_files() if path.startswith("proto/") and path.endswith(".py")] == []
