"""up: the embedded service in the foreground."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from ppo_client import output
from ppo_client.commands.options import Json, console, err_console
from ppo_client.embedded import Addresses, EmbeddedService, choose_addresses
from ppo_client.home import Home

Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free port.")]


def up(
    home: Annotated[Path, typer.Option(help="Folder of database, runs, models and logs.")] = Path("var"),
    http_port: Port = 8080,
    grpc_port: Port = 50051,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs API keys.")] = "127.0.0.1",
    model_root: Annotated[
        list[Path] | None,
        typer.Option(exists=True, file_okay=False, help="Another folder whose models specs may name."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the whole service here until Ctrl-C. Needs no database or broker server."""
    with Home(home) as held:
        service = EmbeddedService(held, choose_addresses(host, http_port, grpc_port), model_root or [], _say)
        _stop_on_signals(service)
        started = time.monotonic()
        try:
            service.start()
            if not service.stopping:
                _announce(service, time.monotonic() - started, as_json=as_json)
            service.run()
            _say("stopping; a running job writes a checkpoint first (Ctrl-C again: at once)")
            service.stop()
        finally:
            service.kill()


def _stop_on_signals(service: EmbeddedService) -> None:
    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if service.stopping:
            raise KeyboardInterrupt
        service.request_stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)


def _say(text: str) -> None:
    err_console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {text}", soft_wrap=True)


def _announce(service: EmbeddedService, seconds: float, *, as_json: bool) -> None:
    addresses, home = service.addresses, service.home
    if as_json:
        output.print_json({"url": addresses.url, "grpc": addresses.grpc, "home": str(home.root)})
        return
    console.print(f"[bold green]ready[/] after {seconds:.1f} s; Ctrl-C stops it")
    for name, value in _places(addresses, home):
        console.print(f"  [dim]{name:<12}[/]{value}", soft_wrap=True)


def _places(addresses: Addresses, home: Home) -> list[tuple[str, str]]:
    return [
        ("REST", f"{addresses.url}/v1/jobs"),
        ("documents", f"{addresses.url}/docs"),
        ("gRPC", addresses.grpc),
        ("metrics", f"{addresses.url}/metrics  {addresses.url}/metrics/jobs"),
        ("TensorBoard", f"tensorboard --logdir {home.runs}"),
        ("models", str(home.models)),
        ("logs", str(home.logs)),
    ]
