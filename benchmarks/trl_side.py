"""One PPO step after the other with TRL 0.11.4, each when a line comes in; runs in an environment of its own.

python trl_side.py WORKLOAD MODELS --precision fp32|bf16 [--record CASE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import numpy as np
import torch
from peft import LoraConfig
from transformers import PreTrainedTokenizerFast
from trl import AutoModelForCausalLMWithValueHead, PPOConfig, PPOTrainer, create_reference_model
from workloads import LINEAR_LAYERS, WORKLOADS, score


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("models")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--record")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ["BENCH_THREADS"]))
    work = WORKLOADS[arguments.workload]
    folder = os.path.join(arguments.models, work.model)
    tokenizer = load_tokenizer(folder)
    trainer = make_trainer(work, folder, tokenizer, arguments.precision)
    queries = prompt_ids(work, tokenizer)
    print(json.dumps({"ready": True, "loaded_bytes": peak_bytes()}), flush=True)
    for step, line in enumerate(sys.stdin):
        if line.strip() != "step":
            break
        batch = [queries[(step * work.batch_size + i) % len(queries)] for i in range(work.batch_size)]
        record = arguments.record if step == 0 else None
        print(json.dumps(one_step(work, trainer, tokenizer, batch, record)), flush=True)
    print(json.dumps({"peak_bytes": peak_bytes()}), flush=True)


def load_tokenizer(folder):
    """By its files: transformers 4 does not know the class that transformers 5 names in them."""
    with open(os.path.join(folder, "tokenizer_config.json")) as file:
        config = json.load(file)
    end = config["eos_token"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=os.path.join(folder, "tokenizer.json"), eos_token=end, pad_token=end
    )
    template = os.path.join(folder, "chat_template.jinja")
    if os.path.exists(template):
        with open(template) as file:
            tokenizer.chat_template = file.read()
    return tokenizer


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def make_trainer(work, folder, tokenizer, precision):
    lora = None
    if work.lora_rank:
        lora = LoraConfig(r=work.lora_rank, lora_alpha=32, target_modules=LINEAR_LAYERS, task_type="CAUSAL_LM")
    model = AutoModelForCausalLMWithValueHead.from_pretrained(
        folder, peft_config=lora, summary_dropout_prob=0.0, torch_dtype=torch.float32
    )
    torch.nn.init.zeros_(model.v_head.summary.weight)
    torch.nn.init.zeros_(model.v_head.summary.bias)
    if lora is not None:
        reference = None
    elif work.trainable_layers:
        reference = create_reference_model(model, num_shared_layers=work.layers - work.trainable_layers)
    else:
        reference = create_reference_model(model)
    config = PPOConfig(
        batch_size=work.batch_size,
        mini_batch_size=work.minibatch_size,
        ppo_epochs=work.ppo_epochs,
        learning_rate=1e-5,
        seed=0,
        accelerator_kwargs={"cpu": True, "mixed_precision": "bf16" if precision == "bf16" else "no"},
    )
    return PPOTrainer(config, model, reference, tokenizer)


def prompt_ids(work, tokenizer):
    if work.chat:
        chats = [[{"role": "user", "content": text}] for text in work.prompts]
        return [torch.tensor(tokenizer.apply_chat_template(c, add_generation_prompt=True)) for c in chats]
    return [torch.tensor(tokenizer(text)["input_ids"]) for text in work.prompts]


def one_step(work, trainer, tokenizer, batch, record):
    start = time.perf_counter()
    responses = trainer.generate(
        batch,
        batch_size=work.batch_size,
        return_prompt=False,
        do_sample=True,
        top_k=0,
        top_p=1.0,
        max_new_tokens=work.max_new_tokens,
        min_new_tokens=work.min_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
    )
    generated = time.perf_counter()
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in responses]
    scores = [torch.tensor(score(text)) for text in texts]
    permutations = []
    if record:
        _record_permutations(permutations)
    stats = trainer.step(batch, responses, scores)
    end = time.perf_counter()
    if record:
        np.random.permutation = _PERMUTATION
        scalars = {k: float(v) for k, v in stats.items() if np.ndim(v) == 0 or np.size(v) == 1}
        case = {
            "queries": [q.tolist() for q in batch],
            "responses": [r.tolist() for r in responses],
            "scores": [float(s) for s in scores],
            "permutations": permutations,
            "stats": scalars,
        }
        with open(record, "w") as file:
            json.dump(case, file)
    return {
        "seconds": end - start,
        "generation_seconds": generated - start,
        "tokens": sum(len(r) for r in responses),
        "forward_seconds": float(stats["time/ppo/forward_pass"]),
        "optimise_seconds": float(stats["time/ppo/optimize_step"]),
    }


_PERMUTATION = np.random.permutation


def _record_permutations(kept):
    def permutation(*args):
        found = _PERMUTATION(*args)
        kept.append(np.asarray(found).tolist())
        return found

    np.random.permutation = permutation


if __name__ == "__main__":
    main()
