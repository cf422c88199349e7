"""download: checkpoints, models for others to load, TensorBoard folders."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ppo_client import output
from ppo_client.client import PPOClient
from ppo_client.commands.options import JobId, Json, Key, Url, console


class Form(StrEnum):
    """As `GET /v1/jobs/{id}/export` has them."""

    MERGED = "merged"
    FULL = "full"
    ADAPTER = "adapter"


def download(
    job: JobId,
    target: Annotated[Path | None, typer.Option("--to", help="New folder. Default: ./JOB-step-N.")] = None,
    step: Annotated[str, typer.Option(help="A step, `best` or `last`.")] = "last",
    form: Annotated[
        Form | None,
        typer.Option(help="Only the model, as from_pretrained loads it. Default: the whole checkpoint."),
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="The TensorBoard files instead.")] = False,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Fetch a checkpoint, a model or the TensorBoard files, and verify every file. Again: goes on after a break."""
    with PPOClient(url, key) as client:
        if tensorboard:
            folder = target or Path(f"{job}-tensorboard")
            client.download_tensorboard(job, folder)
            _tell({"path": str(folder)}, f"TensorBoard files (verified) are in {folder}", as_json=as_json)
            return
        wanted = _step(client, job, step)
        checkpoint = client.choose_checkpoint(job, wanted)
        folder = target or Path(f"{job}-step-{checkpoint.step}{f'-{form}' if form else ''}")
        if form is None:
            client.download(job, folder, checkpoint=checkpoint)
            line = output.checkpoint_line(checkpoint, str(folder))
        else:
            client.export(job, folder, step=checkpoint.step, form=form)
            line = f"the model of step {checkpoint.step} ({form}, verified) is in {folder}"
    _tell({"path": str(folder), "checkpoint": checkpoint}, line, as_json=as_json)


def _step(client: PPOClient, job: str, text: str) -> int | None:
    """A step; None for the last."""
    if text == "best":
        return client.best_step(job)
    if text == "last":
        return None
    if not text.isdecimal():
        raise typer.BadParameter(f"`{text}` is not a step, `best` or `last`", param_hint="--step")
    return int(text)


def _tell(facts: dict[str, object], line: str, *, as_json: bool) -> None:
    if as_json:
        output.print_json(facts)
    else:
        console.print(line, soft_wrap=True, markup=False)
