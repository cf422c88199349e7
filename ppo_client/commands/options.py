"""What all commands share: their options and where they print."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

Url = Annotated[str | None, typer.Option("--url", help="The service. Default: PPO_URL, else http://127.0.0.1:8080.")]
Key = Annotated[str | None, typer.Option("--key", help="API key. Default: PPO_KEY. A local service needs none.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]

console = Console(highlight=False)
err_console = Console(stderr=True, highlight=False)
