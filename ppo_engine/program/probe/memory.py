"""How much memory a process of a run needs at its fullest, from shapes alone.

Legend: N parameters of the policy, Nt those trained (adapters included), c bytes of a number that the passes compute in
(4 in fp32, 2 in bf16), B responses of a step, b of a microbatch, P and T tokens of the longest prompt and response,
L = P + T - 1 tokens that are read, V vocabulary, H hidden size.

Held all the time:
    weights     fp32: 4 N. bf16: 4 Nt (masters) + 2 Nt (copies) + 2 (N - Nt). A critic of its own counts like a policy.
    optimizer   8 Nt, the two moments of Adam.
    reference   c Nt where it is the policy's own copy, c N for another model, nothing for none.
    average     4 Nt with ema_decay.
    rewards     4 bytes a parameter of reward models, what their files hold on a GPU.

While responses are sampled:
    KV cache    2 c B (P + T) per layer and key-value width.
    pass        three times the widest layer for all B P prompt tokens at once, and the last logits of all rows, 12 B V.

In an optimizer step:
    gradients   4 Nt in fp32. In bf16 2 Nt where one microbatch makes a whole optimizer step, and one place of the size
                of the largest tensor, or 16 MiB, in which they become fp32; else 6 Nt: later ones are added in fp32.
    activations c b L times the inputs and outputs of all trained linear layers: each keeps its input, and what works on
                its output keeps that; norms and activations beside them are roughly the inputs that are shared.
                With gradient checkpointing H per layer, and one layer whole. Attention that is not fused keeps two
                tables [heads, L, L] per layer.
    logits      three of [b T, V] (logits, probabilities, their gradient), of at most KEPT_LOGITS; fp32 and four for an
                entropy bonus.
Activations are freed while gradients come, but the first and largest of these, the head's, comes while all are there:
both are counted whole.

While loading, everything is in fp32: 4 N + the reference's copy + 4 Nc, and the file's own pages on a CPU.

To each sum OVERHEAD is added. docs/plan.md compares the result with measured peaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ppo_engine.config import KLPenalty, TrainConfig
from ppo_engine.maths.logprobs import CHUNK_LOGITS, KEPT_LOGITS
from ppo_engine.models.attention import SHORT_TOKENS
from ppo_engine.plans import MemoryParts

FP32 = 4
_MOMENTS = 8
_BUCKET_BYTES = 16 * 2**20
OVERHEAD = 1.05
"""For holes between allocations and what is not counted; fitted to the eight runs in docs/plan.md."""
_PROGRAM_BYTES = {"cpu": 420_000_000, "cuda": 500_000_000}
"""Python with torch and transformers, resident; on a GPU, the CUDA context. Measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A network in numbers."""

    parameters: int
    trained: int
    largest: int
    """Parameters of the largest trained tensor."""
    layers: int
    trained_layers: int
    hidden_size: int
    heads: int
    key_value_width: int
    """Numbers of keys, or of values, per token and layer."""
    linear_width: int
    """Inputs and outputs of the linear layers of one decoder layer, per token."""
    widest: int
    """The largest output of a linear layer, per token."""
    vocabulary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """Everything that is held beside each other."""

    policy: Shape
    critic: Shape | None
    """With a trunk of its own."""
    value_head: int
    """Parameters of the head that gives values, on whichever trunk."""
    other_reference: int
    """Parameters of a reference that is another model."""
    reward_models_bytes: int
    file_bytes: int
    """Largest file that is read, of which a CPU counts the pages."""

    @property
    def trained(self) -> int:
        """What the optimizer moves."""
        return self.policy.trained + self.value_head + (self.critic.trained if self.critic else 0)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes of one process, by phase, and what they are made of."""

    parts: MemoryParts
    loading: int
    rollout: int
    optimise: int

    @property
    def peak(self) -> int:
        """The largest of the phases."""
        return max(self.loading, self.rollout, self.optimise)

    @property
    def phase(self) -> str:
        """Which one that is."""
        phases = {"loading": self.loading, "rollout": self.rollout, "optimise": self.optimise}
        return max(phases, key=lambda name: phases[name])


def estimate(config: TrainConfig, networks: Networks, *, prompt_tokens: int, device: str, width: int) -> Estimate:
    """Memory of one process.

    Args:
        prompt_tokens: of the longest prompt.
        device: `cpu` or `cuda`.
        width: bytes of a number that the passes compute in.
    """
    policy, critic = networks.policy, networks.critic
    weights = sum(_weights(shape, width) for shape in (policy, critic) if shape) + FP32 * networks.value_head
    trained = networks.trained
    rows = ceil(config.ppo.batch_size / config.resources.processes)
    microbatch, passes = _passes(config)
    logits = _logits(config, policy, microbatch, width)
    activations = sum(
        _activations(config, shape, microbatch, prompt_tokens, device=device, width=width)
        for shape in (policy, critic)
        if shape
    )
    several = passes > 1 or config.resources.processes > 1
    room = 0 if width == FP32 or several else max(_BUCKET_BYTES, FP32 * policy.largest)
    gradients = trained * (FP32 + width if several and width != FP32 else width)
    cache = 2 * width * rows * (prompt_tokens + config.generation.max_new_tokens) * _cached(policy)
    parts = MemoryParts(
        program_bytes=_PROGRAM_BYTES[device],
        weights_bytes=weights,
        optimizer_bytes=_MOMENTS * trained,
        gradients_bytes=gradients + room,
        reference_bytes=_reference(config, networks, width),
        average_bytes=0 if config.model.ema_decay is None else FP32 * policy.trained,
        reward_models_bytes=networks.reward_models_bytes,
        activations_bytes=activations,
        logits_bytes=logits,
        kv_cache_bytes=cache,
    )
    held = sum(
        (parts.program_bytes, parts.weights_bytes, parts.optimizer_bytes, parts.reference_bytes, parts.average_bytes)
    )
    held += parts.reward_models_bytes
    return Estimate(
        parts=parts,
        loading=round(OVERHEAD * (_loading(config, networks, device) + parts.reward_models_bytes)),
        rollout=round(OVERHEAD * (held + cache + _sampling(policy, rows, prompt_tokens, width))),
        optimise=round(OVERHEAD * (held + gradients + room + activations + logits)),
    )


def _weights(shape: Shape, width: int) -> int:
    if width == FP32:
        return FP32 * shape.parameters
    return (FP32 + width) * shape.trained + width * (shape.parameters - shape.trained)


def _reference(config: TrainConfig, networks: Networks, width: int) -> int:
    reference = config.model.reference
    if reference is not None and reference.none is not None:
        return 0
    return width * (networks.other_reference or networks.policy.trained)


def _passes(config: TrainConfig) -> tuple[int, int]:
    """Rows of one forward pass with a gradient, and how many make an optimizer step."""
    own = ceil(config.minibatch_size / config.resources.processes)
    rows = min(own, config.microbatch_size)
    passes = ceil(own / rows) * config.ppo.gradient_accumulation_steps
    return rows, passes + (0 if config.ptx is None else 1)


def _activations(config: TrainConfig, shape: Shape, rows: int, prompt_tokens: int, *, device: str, width: int) -> int:
    tokens = prompt_tokens + config.generation.max_new_tokens - 1
    plain = device == "cpu" and width != FP32 and tokens <= SHORT_TOKENS
    tables = 2 * shape.heads * tokens if plain else 0
    whole = shape.linear_width + tables
    layers = shape.trained_layers
    per_token = layers * shape.hidden_size + whole if config.model.gradient_checkpointing else layers * whole
    return width * rows * tokens * per_token


def _logits(config: TrainConfig, shape: Shape, rows: int, width: int) -> int:
    count = rows * config.generation.max_new_tokens * shape.vocabulary
    bonus, full = config.ppo.entropy_coef > 0, config.kl.penalty is KLPenalty.FULL
    kept = count if count <= KEPT_LOGITS else CHUNK_LOGITS
    return kept * (4 * FP32 if bonus else 3 * width) + (4 * FP32 * min(count, CHUNK_LOGITS) if full else 0)


def _cached(shape: Shape) -> int:
    return shape.layers * shape.key_value_width


def _sampling(shape: Shape, rows: int, prompt_tokens: int, width: int) -> int:
    """The pass over all prompts, and the last logits of all rows."""
    return rows * (3 * width * prompt_tokens * shape.widest + 3 * FP32 * shape.vocabulary)


def _loading(config: TrainConfig, networks: Networks, device: str) -> int:
    policy, critic = networks.policy, networks.critic
    reference = _reference(config, networks, FP32)
    weights = FP32 * (policy.parameters + (critic.parameters if critic else 0)) + reference
    return _PROGRAM_BYTES[device] + weights + (networks.file_bytes if device == "cpu" else 0)
