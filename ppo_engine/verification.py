"""Steps of a job replayed from one of its checkpoints: what is asked, and what is answered. Torch-free."""

from __future__ import annotations

from pydantic import Field

from ppo_engine.config import Config, TrainConfig
from ppo_engine.errands import Answer
from ppo_engine.inheritance import Part

MAX_STEPS = 20
MAX_SHOWN = 20
"""Of the keys, samples or tensors that differ, so many are told one by one; all are counted."""


class VerificationRequest(Config):
    """Which steps are replayed, and what they are compared with."""

    step: int | None = Field(
        None,
        ge=0,
        lt=2**53,
        description="Of the checkpoint to replay from. Default: the newest that has enough recorded steps after it.",
    )
    steps: int = Field(2, ge=1, le=MAX_STEPS, description="Steps to replay.")
    twice: bool = Field(
        False, description="Replay twice and compare the two, for a job whose records of these steps are gone."
    )


class RecordedSample(Config):
    """A stored response."""

    prompt: str
    response: str
    response_tokens: int
    finished: bool
    score: float
    components: dict[str, float] = Field(default_factory=dict)
    kl: float | None = None
    evaluation: bool = False


class RecordedStep(Config):
    """What is known of a step: its finite numbers, and its samples in order."""

    step: int
    scalars: dict[str, float]
    samples: list[RecordedSample] = Field(default_factory=list)


class KeptCheckpoint(Config):
    """A checkpoint of the job."""

    step: int
    folder: str
    """Relative to the run directory."""


class VerificationWork(Config):
    """A verification as the engine gets it."""

    job_id: str
    config: TrainConfig
    """As the run had it."""
    start: KeptCheckpoint
    steps: int
    twice: bool
    parts: int = 1
    """Turns in which the run sampled the responses of a step."""
    anew: list[Part] = Field(default_factory=list)
    """What the run itself did not take over, where the checkpoint is another run's."""
    recorded: list[RecordedStep] = Field(default_factory=list)
    later: list[KeptCheckpoint] = Field(default_factory=list)
    """Those of the replayed steps."""
    device: str | None = None
    """Where the run trained; None: not recorded."""
    precision: str | None = None


class ScalarDifference(Answer):
    """A number of one step that came out otherwise."""

    key: str
    recorded: float | None
    """None: there is none. With `twice`, of the first replay."""
    replayed: float | None
    absolute: float | None
    """Distance; None where one of the two is missing."""
    relative: float | None
    """The same, of the larger of the two."""


class SampleDifference(Answer):
    """A part of a sample that came out otherwise."""

    index: int
    """Place among the step's samples."""
    field: str
    recorded: str
    """As JSON; a text from where it differs."""
    replayed: str
    position: int | None = None
    """Of a text: the first character that differs."""


class StepVerification(Answer):
    """One replayed step."""

    step: int
    identical: bool
    scalars: int
    """Keys compared."""
    scalars_differing: int
    samples: int
    samples_differing: int
    differences: list[ScalarDifference]
    """The first of them, by name."""
    sample_differences: list[SampleDifference]


class KeyDifference(Answer):
    """A number over all steps in which it differs."""

    key: str
    first_step: int
    steps: int
    max_absolute: float | None
    max_relative: float | None


class TensorDifference(Answer):
    """A tensor of a checkpoint that came out otherwise."""

    name: str
    """File and tensor."""
    recorded_sha256: str | None
    """Of its bytes; None: it is not there."""
    replayed_sha256: str | None
    max_absolute: float | None
    """None where they cannot be subtracted."""


class CheckpointVerification(Answer):
    """One later checkpoint, against the replay at its step."""

    step: int
    identical: bool
    tensors: int
    """Compared, by hash."""
    tensors_differing: int
    differences: list[TensorDifference]
    state: list[str]
    """Parts of `state.json` that differ."""


class NotCompared(Answer):
    """Something that says nothing here."""

    what: str
    reason: str


class Note(Answer):
    """Something that explains a difference, or what to do about it."""

    code: str
    message: str


class Verification(Answer):
    """Whether the steps after a checkpoint come out as they did."""

    identical: bool
    """All that was compared is the same, bit for bit, and every step was replayed."""
    verdict: str
    """In words, with what to do."""
    twice: bool
    from_step: int
    to_step: int
    """The last step that was compared."""
    steps: list[StepVerification]
    keys: list[KeyDifference]
    checkpoints: list[CheckpointVerification]
    not_compared: list[NotCompared]
    notes: list[Note]
    device: str
    precision: str
    seconds: float
