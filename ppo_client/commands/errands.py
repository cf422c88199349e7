"""preview, generate and verify-resume: work that an engine does while the command waits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ppo_client import generation_output, output, preview_output, verification_output
from ppo_client.client import PPOClient
from ppo_client.commands.exits import Exit, UnusableSpec
from ppo_client.commands.jobs import read_spec
from ppo_client.commands.options import JobId, Json, Key, Url, console
from ppo_engine.errands import MAX_TEXTS
from ppo_engine.verification import MAX_STEPS

Timeout = Annotated[float, typer.Option("--timeout", min=1, help="Longest wait for the answer, seconds.")]


def preview(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="JSON file with `rewards`, or - for standard input.")],
    texts: Annotated[
        Path, typer.Option("--texts", help="JSON Lines with `prompt`, `response` and what the rewards need.")
    ],
    timeout_seconds: Timeout = 300,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Try a spec's rewards on given texts, before any training."""
    document = read_spec(spec)
    queue = document.get("resources", {}).get("queue", "default")
    with PPOClient(url, key) as client:
        found = client.preview_reward(
            document.get("rewards", []), read_texts(texts), queue=queue, timeout_seconds=timeout_seconds
        )
    if as_json:
        output.print_json(found)
    else:
        preview_output.show(console, found)


def generate(  # noqa: PLR0913, PLR0917 - the options of a command are its parameters
    job: JobId,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", help="A prompt; may be repeated.")] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="Prompts: a line each, or JSON Lines (.jsonl) with `prompt`.")
    ] = None,
    step: Annotated[
        str, typer.Option("--step", help="last, best, base (before training) or a checkpoint's step.")
    ] = "last",
    compare: Annotated[list[str] | None, typer.Option("--compare", help="Another of these; may be repeated.")] = None,
    score: Annotated[bool, typer.Option("--score", help="Score the responses with the job's rewards.")] = False,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Responses to each prompt.")] = 1,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="0: the likeliest token. Default: the job's.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response. Default: the job's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the sampling.")] = 0,
    timeout_seconds: Timeout = 300,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Answer prompts with a job's policy, side by side with others."""
    records = [{"prompt": text} for text in prompt or []] + ([] if prompts is None else read_prompts(prompts))
    if not records:
        raise typer.BadParameter("give --prompt or --prompts")
    options = {"temperature": temperature, "max_new_tokens": max_new_tokens}
    with PPOClient(url, key) as client:
        found = client.generate(
            job,
            [record["prompt"] for record in records],
            step=step,
            compare_to=compare or (),
            score=score,
            records=records,
            samples_per_prompt=samples,
            seed=seed,
            timeout_seconds=timeout_seconds,
            **{name: value for name, value in options.items() if value is not None},
        )
    if as_json:
        output.print_json(found)
    else:
        generation_output.show(console, found)


def verify_resume(
    job: JobId,
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="Checkpoint to replay from. Default: the newest that will do.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, max=MAX_STEPS, help="Steps to replay.")] = 2,
    twice: Annotated[
        bool, typer.Option("--twice", help="Replay twice and compare the two: for a job whose records are gone.")
    ] = False,
    timeout_seconds: Timeout = 1800,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Replay steps from a checkpoint and compare them with the record; exit code 1 where they differ."""
    with PPOClient(url, key) as client:
        found = client.verify_resume(job, step=step, steps=steps, twice=twice, timeout_seconds=timeout_seconds)
    if as_json:
        output.print_json(found)
    else:
        verification_output.show(console, found)
    if not found.identical:
        raise typer.Exit(Exit.JOB_FAILED)


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """The prompts of a file, each in the record that rewards see.

    Raises:
        UnusableSpec: no such file, or a line that is no JSON object with a text `prompt`.
    """
    lines = _lines(path)
    if path.suffix != ".jsonl":
        return [{"prompt": line} for _, line in lines]
    return [_object(path, number, line, "prompt") for number, line in lines]


def read_texts(path: Path) -> list[dict[str, Any]]:
    """The texts of a file; a line's `record`, or all of the line, is what rewards see beside them.

    Raises:
        UnusableSpec: no such file, a line that is no JSON object with both texts, or more than MAX_TEXTS lines.
    """
    lines = _lines(path)
    if len(lines) > MAX_TEXTS:
        raise UnusableSpec(f"{path} has {len(lines)} texts; at most {MAX_TEXTS} are scored at once")
    return [_text(_object(path, number, line, "prompt", "response")) for number, line in lines]


def _lines(path: Path) -> list[tuple[int, str]]:
    """Number and text of every line that is not blank."""
    try:
        content = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnusableSpec(f"cannot read {path}: {reason}") from error
    return [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]


def _object(path: Path, number: int, line: str, *names: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise UnusableSpec(f"{path} line {number} is not JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in names):
        raise UnusableSpec(f"{path} line {number} is not an object with {' and '.join(f'`{name}`' for name in names)}")
    return found


def _text(line: dict[str, Any]) -> dict[str, Any]:
    record = line.get("record", line)
    return {"prompt": line["prompt"], "response": line["response"], "record": record}
