"""The folder of one embedded service: who runs there, and which ports it may use."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from ppo_client.errors import ClientError


class HomeInUse(ClientError):
    """Another `ppo up` runs on this folder."""


class HomeUnusable(ClientError):
    """Nothing can be written there."""


class PortInUse(ClientError):
    """Another program listens there."""


class Home:
    """A service's folder, held by an advisory lock that ends with the process, however it ends."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._lock: IO[str] | None = None

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.root / 'ppo.db'}"

    @property
    def service_file(self) -> Path:
        """What runs here now: URLs and process ids, as JSON."""
        return self.root / "service.json"

    def __enter__(self) -> Self:
        try:
            for folder in (self.root, self.runs, self.logs, self.models):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.root / "service.lock").open("a")
        except OSError as error:
            raise HomeUnusable(f"{self.root} cannot be written: {error.strerror}. Give another with --home.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise HomeInUse(f"a service already runs in {self.root}{self._who()}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.service_file.unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()

    def publish(self, facts: dict[str, Any]) -> None:
        """Write the service file, whole or not at all."""
        partial = self.service_file.with_suffix(".partial")
        partial.write_text(json.dumps({**facts, "pid": os.getpid()}, indent=2) + "\n")
        partial.replace(self.service_file)

    def _who(self) -> str:
        try:
            facts = json.loads(self.service_file.read_text())
            return f" (process {facts['pid']}, {facts['url']})"
        except (OSError, ValueError, KeyError):
            return ""


def free_port(host: str, port: int, option: str) -> int:
    """`port` if nobody listens there, or any free one for 0.

    Raises:
        PortInUse: it is taken, or cannot be bound for another reason.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: a port in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = error.strerror or str(error)
            raise PortInUse(f"port {port} on {host} cannot be used: {reason}. Give another with {option}.") from None
        return int(probe.getsockname()[1])
