"""The work that is timed, as data: both sides read it, in two environments that share nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace

INSTRUCTIONS = [
    "Give me three tips for staying healthy.",
    "What is the capital of France, and what is it known for?",
    "Write a short poem about the sea.",
    "Explain why the sky is blue to a child.",
    "How do I make pancakes?",
    "Name five animals that live in the forest.",
    "Summarise the story of Cinderella in two sentences.",
    "What should I pack for a weekend in the mountains?",
    "Translate 'good morning' into Spanish.",
    "Why do leaves change colour in autumn?",
    "Write an email asking for a day off.",
    "What is the difference between a lake and a pond?",
    "Suggest a name for a small coffee shop.",
    "How does a bicycle stay upright?",
    "Describe your perfect day.",
    "What are the primary colours?",
]

LINEAR_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Workload:
    """One kind of PPO step. `model` is a folder under the benchmark's model folder."""

    name: str
    model: str
    chat: bool
    batch_size: int
    minibatch_size: int
    ppo_epochs: int
    max_new_tokens: int
    min_new_tokens: int = 1
    lora_rank: int | None = None
    trainable_layers: int | None = None
    layers: int = 30
    """All layers of the model."""

    @property
    def prompts(self) -> list[str]:
        """What the policy answers."""
        if self.chat:
            return INSTRUCTIONS
        letters = "the quick brown fox jumps over a lazy dog"
        return [(letters * 2)[i : i + 8 + i % 9] for i in range(32)]


_SMOLLM2 = Workload(
    name="smollm2",
    model="smollm2-135m",
    chat=True,
    batch_size=16,
    minibatch_size=4,
    ppo_epochs=4,
    max_new_tokens=96,
)

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="gpt2",
            model="gpt2-124m",
            chat=False,
            batch_size=16,
            minibatch_size=4,
            ppo_epochs=4,
            max_new_tokens=48,
            min_new_tokens=48,
            layers=12,
        ),
        _SMOLLM2,
        replace(_SMOLLM2, name="one-epoch", batch_size=32, ppo_epochs=1),
        replace(_SMOLLM2, name="lora", lora_rank=16),
        replace(_SMOLLM2, name="layers", trainable_layers=10),
    )
}


def score(response: str) -> float:
    """The rule `length` with a target of 20 words: cheap, and the same on both sides."""
    return max(-1.0, 1.0 - abs(len(response.split()) - 20) / 20)
