"""The embedded service: the front door and one worker as child processes of `ppo up`, on SQLite, with no server.

The parent only supervises: it migrates the database, starts the two, starts one again that dies, and ends both when it
is told to. When it is killed itself, its children notice (`ppo_client.tether`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from ppo_client import settings
from ppo_client.child import Child, tail
from ppo_client.errors import ClientError
from ppo_client.home import Home, free_port

_READY_SECONDS = 90.0
_API_GRACE_SECONDS = 10.0
# A worker that stops lets its engine finish the step and write a checkpoint.
_WORKER_GRACE_SECONDS = 60.0


class ServiceFailed(ClientError):
    """The embedded service cannot start, or a part of it dies again and again."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the service listens."""

    host: str
    http_port: int
    grpc_port: int

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"{self._host}:{self.grpc_port}"

    @property
    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def choose_addresses(host: str, http_port: int, grpc_port: int) -> Addresses:
    """The wanted addresses with every 0 replaced by a free port.

    Raises:
        PortInUse: one of them is taken.
    """
    return Addresses(host, free_port(host, http_port, "--http-port"), free_port(host, grpc_port, "--grpc-port"))


def environment(home: Home, addresses: Addresses, model_roots: Sequence[Path]) -> dict[str, str]:
    """The environment of every process of the service."""
    roots = [home.models, *(root.resolve() for root in [*model_roots, *settings.model_roots()])]
    # This machine has other work too. Threads that wait by spinning for long lose several times over when they do not
    # have the cores to themselves; threads that sleep at once lose a fifth when they have. A short spin loses neither.
    patient = {"GOMP_SPINCOUNT": "20000"}
    # Whoever runs this may call this machine anyway; a reward server or a webhook beside the service is the usual case.
    here = "localhost,127.0.0.1,::1"
    reachable = {"PPO_REWARD_HOSTS": here, "PPO_WEBHOOK_HOSTS": here}
    return settings.child_environment(
        patient | reachable,
        {
            "PPO_HOME": str(home.root),
            "PPO_DATABASE_URL": home.database_url,
            "PPO_BROKER_URL": "memory://",
            "PPO_MODEL_ROOTS": os.pathsep.join(map(str, roots)),
            "PPO_HTTP_HOST": addresses.host,
            "PPO_HTTP_PORT": str(addresses.http_port),
            "PPO_GRPC_HOST": addresses.host,
            "PPO_GRPC_PORT": str(addresses.grpc_port),
            "PYTHONUNBUFFERED": "1",
        },
    )


class EmbeddedService:
    """A running service in a locked home; `say` gets one line for everything worth telling."""

    def __init__(
        self, home: Home, addresses: Addresses, model_roots: Sequence[Path], say: Callable[[str], None]
    ) -> None:
        self.home = home
        self.addresses = addresses
        self._say = say
        self._stop = threading.Event()
        self._environment = environment(home, addresses, model_roots)
        # They run in the home folder: one named `jobs` or `api` where the user stands must not shadow ours.
        self._children = [
            Child(module, home.logs / f"{module}.log", home.root, self._environment) for module in ("api", "worker")
        ]

    def start(self) -> None:
        """Migrate, start both children and wait until they answer.

        Raises:
            ServiceFailed: with the reason and the end of the log.
        """
        self._migrate()
        for child in self._children:
            child.start()
        self._publish()
        deadline = time.monotonic() + _READY_SECONDS
        while not self._stop.is_set() and not self._ready():
            self._fail_if_ended()
            if time.monotonic() > deadline:
                raise ServiceFailed(f"not ready after {_READY_SECONDS:.0f} s\n{self._tails()}")
            self._stop.wait(0.1)

    def run(self) -> None:
        """Supervise until `request_stop`.

        Raises:
            ServiceFailed: a child used up its restarts.
        """
        while not self._stop.wait(0.2):
            for child in self._children:
                if (end := child.ended()) is not None:
                    self._restart(child, end)

    @property
    def stopping(self) -> bool:
        """Whether somebody asked for the end."""
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Make `start` and `run` return soon; may be called from a signal handler."""
        self._stop.set()

    def stop(self) -> None:
        """End the children: the worker first, so that its last writes find the service whole."""
        for child, grace in zip(reversed(self._children), (_WORKER_GRACE_SECONDS, _API_GRACE_SECONDS), strict=True):
            if not child.stop(grace):
                self._say(f"{child.module} did not stop within {grace:.0f} s and was killed")

    def kill(self) -> None:
        """End the children at once."""
        for child in self._children:
            child.kill()

    def _migrate(self) -> None:
        log = self.home.logs / "migrate.log"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "jobs.admin", "migrate"]
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.home.root,
                env=self._environment,
                check=False,
            )
        if done.returncode != 0:
            raise ServiceFailed(f"the database in {self.home.root} cannot be migrated:\n{tail(log)}")

    def _ready(self) -> bool:
        try:
            with httpx.Client(base_url=self.addresses.url, timeout=2.0, trust_env=False) as http:
                return http.get("/readyz").status_code == 200 and bool(http.get("/sd/workers").json())
        except (httpx.HTTPError, ValueError):
            return False

    def _fail_if_ended(self) -> None:
        for child in self._children:
            if (end := child.ended()) is not None:
                raise ServiceFailed(f"{child.module} did not start ({end}); end of {child.log}:\n{child.last_words()}")

    def _restart(self, child: Child, end: str) -> None:
        pause = child.budget.next_pause(time.monotonic())
        if pause is None:
            limit, window = child.budget.limit, child.budget.window_seconds
            raise ServiceFailed(
                f"{child.module} ended ({end}) more than {limit} times in {window:.0f} s; giving up. "
                f"End of {child.log}:\n{child.last_words()}"
            )
        self._say(f"{child.module} ended ({end}); starting it again in {pause:g} s")
        if not self._stop.wait(pause):
            child.start()
            self._publish()

    def _publish(self) -> None:
        pids = {child.module: child.pid for child in self._children}
        self.home.publish({"url": self.addresses.url, "grpc": self.addresses.grpc, "pids": pids})

    def _tails(self) -> str:
        return "\n".join(f"  end of {child.log}:\n{child.last_words()}" for child in self._children)
