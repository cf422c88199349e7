"""The `ppo` command: its commands, and one readable block for every expected error."""

from __future__ import annotations

import sys
from importlib.metadata import version as distribution_version
from typing import Annotated

import typer
from rich.markup import escape

from ppo_client import errors
from ppo_client.commands import (
    access,
    datasets,
    doctor,
    downloads,
    errand_list,
    errands,
    jobs,
    plan,
    results,
    service,
    verbs,
    webhooks,
)
from ppo_client.commands.exits import HELP, Exit, exit_code
from ppo_client.commands.options import err_console
from ppo_client.terminal import visible

app = typer.Typer(
    name="ppo",
    help="PPO training of language models: submit a job, watch it, take the checkpoint.",
    epilog=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        print(f"ppo-service {distribution_version('ppo-service')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Print the version and exit.")
    ] = False,
) -> None: ...


app.command()(service.up)
app.command()(doctor.doctor)
app.command()(plan.plan)
app.command()(jobs.submit)
app.command("ls")(jobs.list_jobs)
app.command()(jobs.show)
app.command()(jobs.watch)
app.command()(results.logs)
app.command()(results.metrics)
app.command()(results.samples)
app.command()(verbs.wait)
app.command()(verbs.pause)
app.command()(verbs.resume)
app.command()(verbs.stop)
app.command()(verbs.cancel)
app.command()(verbs.retry)
app.command()(verbs.fork)
app.command()(verbs.label)
app.command()(verbs.attempts)
app.command()(verbs.health)
app.command()(results.checkpoints)
app.command()(downloads.download)
app.command()(results.report)
app.command()(errands.preview)
app.command()(errands.generate)
app.add_typer(errand_list.app, name="errands")
app.command()(errands.verify_resume)
app.add_typer(webhooks.app, name="webhooks")
app.command()(access.me)
app.add_typer(access.keys, name="keys")
app.add_typer(access.quotas, name="quotas")
app.command()(access.audit)
app.add_typer(datasets.app, name="datasets")


def main() -> None:
    """Run the command and exit with its code."""
    try:
        app()
    except errors.ClientError as error:
        err_console.print(f"[bold red]error:[/] {escape(visible(str(error)))}", soft_wrap=True)
        if isinstance(error, errors.Unauthenticated):
            hint = "  --key or PPO_KEY gives a key; `ppo keys create --local HOME` makes one for `ppo up`"
            err_console.print(hint, soft_wrap=True)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except OSError as error:
        if error.filename is None:
            raise
        exists = isinstance(error, FileExistsError)
        reason = "exists already; --to takes another folder" if exists else f"cannot be used: {error.strerror}"
        err_console.print(f"[bold red]error:[/] {escape(str(error.filename))} {reason}", soft_wrap=True)
        sys.exit(Exit.OBSTACLE)
