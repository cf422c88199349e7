"""What a plan tells: what would be refused, what is worth a thought, and what the run would take."""

from __future__ import annotations

from pydantic import Field

from jobs.errors import Problem
from jobs.views import View
from ppo_engine.plans import DiskFacts, MemoryFacts, ModelFacts, PromptFacts, RewardTrial


class Work(View):
    """What the whole run does, if nothing ends it early."""

    steps: int
    samples: int
    """Responses sampled and trained on."""
    minibatches: int
    optimizer_steps: int
    response_tokens_max: int
    """Generated, if every response is as long as it may be."""
    trained_tokens_max: int
    """Response tokens in all optimizer steps together, likewise."""
    prompt_tokens: int | None = None
    """Read by the policy before it answers, by the mean length of the prompts."""
    passes_over_prompts: float | None = None
    """How often each prompt is drawn, on average."""
    evaluations: int
    evaluation_responses: int | None = None
    checkpoints: int


class Eta(View):
    """How long the run would take, from the owner's earlier runs of the same model in the same queue."""

    known: bool
    low_seconds: float | None = None
    high_seconds: float | None = None
    seconds_per_step: float | None = None
    """Median of the earlier runs, scaled to this one's response tokens."""
    jobs: int
    """Earlier runs that it is taken from."""
    basis: str


class PlanView(View):
    """The answer to a plan; nothing was created."""

    ok: bool
    """Whether a submit would be accepted, and nothing is known that the run would fail of."""
    probed: bool
    """Whether a worker has looked at models, prompts and rewards."""
    not_probed: str | None = None
    """Why not."""
    errors: list[Problem]
    warnings: list[Problem]
    model: ModelFacts | None = None
    prompts: PromptFacts | None = None
    evaluation_prompts: PromptFacts | None = None
    rewards: list[RewardTrial] = Field(default_factory=list)
    memory: MemoryFacts | None = None
    disk: DiskFacts | None = None
    work: Work | None = None
    eta: Eta | None = None
