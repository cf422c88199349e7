"""The parts of `ppo up` that need no service: lock, ports, restarts, tether, environment."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ppo_client.child import Child, RestartBudget, describe_exit, rotate, tail
from ppo_client.embedded import Addresses, choose_addresses, environment
from ppo_client.home import Home, HomeInUse, HomeUnusable, PortInUse


def test_a_home_has_one_holder_and_the_second_learns_who(tmp_path):
    with Home(tmp_path) as first:
        first.publish({"url": "http://127.0.0.1:1"})
        with pytest.raises(HomeInUse, match=rf"process {os.getpid()}, http://127.0.0.1:1"), Home(tmp_path):
            pass
        assert first.service_file.exists()
    with Home(tmp_path) as again:
        assert not again.service_file.exists()


@pytest.mark.parametrize("place", ["/proc/nowhere", "a file"])
def test_a_home_that_cannot_be_is_named_with_the_option_that_changes_it(tmp_path, place):
    (tmp_path / "a file").touch()
    with pytest.raises(HomeUnusable, match=r"cannot be written: .* --home"), Home(tmp_path / place):
        pass


def test_the_lock_of_a_killed_holder_is_free(tmp_path):
    code = "import sys, os, signal\nfrom pathlib import Path\nfrom ppo_client.home import Home\n"
    code += "Home(Path(sys.argv[1])).__enter__()\nos.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -signal.SIGKILL
    with Home(tmp_path):
        pass


def test_a_taken_port_is_named_with_the_option_that_changes_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"{port} .*in use.*--grpc-port"):
            choose_addresses("127.0.0.1", 0, port)


def test_port_zero_takes_free_ports():
    chosen = choose_addresses("127.0.0.1", 0, 0)
    assert chosen.http_port != chosen.grpc_port
    assert min(chosen.http_port, chosen.grpc_port) > 0


def test_addresses_are_written_as_urls_have_them():
    assert Addresses("127.0.0.1", 1, 2).url == "http://127.0.0.1:1"
    assert Addresses("::1", 1, 2).grpc == "[::1]:2"


def test_the_service_is_told_everything_by_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PPO_MODEL_ROOTS", os.pathsep.join(["/models/a", "/models/b"]))
    monkeypatch.setenv("PPO_DATABASE_URL", "postgresql://elsewhere/x")
    told = environment(Home(tmp_path), Addresses("127.0.0.1", 1, 2), [Path("more")])
    assert told["PPO_DATABASE_URL"] == f"sqlite:///{tmp_path}/ppo.db"
    roots = [str(tmp_path / "models"), str(Path("more").resolve()), "/models/a", "/models/b"]
    assert told["PPO_MODEL_ROOTS"].split(os.pathsep) == roots
    assert told["PATH"] == os.environ["PATH"]


def test_waiting_threads_spin_briefly_unless_the_user_wants_otherwise(tmp_path, monkeypatch):
    where = Home(tmp_path), Addresses("127.0.0.1", 1, 2), []
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert environment(*where)["GOMP_SPINCOUNT"] == "20000"
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert environment(*where)["GOMP_SPINCOUNT"] == "7"


def test_reward_servers_on_this_machine_are_allowed_unless_the_user_wants_otherwise(tmp_path, monkeypatch):
    where = Home(tmp_path), Addresses("127.0.0.1", 1, 2), []
    monkeypatch.delenv("PPO_REWARD_HOSTS", raising=False)
    assert environment(*where)["PPO_REWARD_HOSTS"].split(",") == ["localhost", "127.0.0.1", "::1"]
    monkeypatch.setenv("PPO_REWARD_HOSTS", "judge:8765")
    assert environment(*where)["PPO_REWARD_HOSTS"] == "judge:8765"


def test_restarts_are_slower_each_time_and_end():
    budget = RestartBudget(limit=5, window_seconds=60)
    assert [budget.next_pause(now) for now in range(6)] == [0.5, 1.0, 2.0, 4.0, 8.0, None]


def test_restarts_of_long_ago_are_forgiven():
    budget = RestartBudget(limit=2, window_seconds=60)
    assert [budget.next_pause(now) for now in (0, 1, 2, 62, 63)] == [0.5, 1.0, None, 0.5, 1.0]


def test_an_end_is_told_in_words():
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(-40) == "killed by signal 40"


def test_logs_are_bounded_and_their_end_is_shown(tmp_path):
    log = tmp_path / "api.log"
    assert tail(log) == ""
    log.write_text("\n".join(f"line {number}" for number in range(100)))
    assert tail(log, lines=2) == "    line 98\n    line 99"
    assert tail(log, start=log.stat().st_size - len("line 99")) == "    line 99"
    rotate(log)
    assert log.exists()
    os.truncate(log, 21 << 20)
    rotate(log)
    assert not log.exists()
    assert (tmp_path / "api.log.1").exists()


PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
def stop(*_):
    Path("stopped").write_text("yes")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
Path("started.partial").write_text(json.dumps({"pid": os.getpid(), "argv": sys.argv[1:], "name": __name__}))
os.replace("started.partial", "started")
while True:
    time.sleep(0.05)
"""


def wait_for(path: Path) -> None:
    subprocess.run(["sh", "-c", f"until [ -e {path} ]; do sleep 0.02; done"], check=True, timeout=60)


@pytest.fixture
def program(tmp_path) -> Path:
    (tmp_path / "tethered_program.py").write_text(PROGRAM)
    return tmp_path


def test_a_tethered_program_stops_when_its_parent_is_killed(program):
    parent = (
        "import subprocess, sys, time\n"
        "command = [sys.executable, '-m', 'ppo_client.tether', 'tethered_program', '--x']\n"
        "subprocess.Popen(command, stdin=subprocess.PIPE)\n"
        "time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", parent], cwd=program) as process:
        wait_for(program / "started")
        started = json.loads((program / "started").read_text())
        assert started["argv"] == ["--x"]
        assert started["name"] == "__main__"
        process.kill()
    wait_for(program / "stopped")


def test_a_child_is_stopped_and_one_that_will_not_is_killed(program):
    child = Child("tethered_program", program / "log", program, os.environ)
    child.start()
    wait_for(program / "started")
    assert json.loads((program / "started").read_text())["pid"] == child.pid
    assert child.ended() is None
    assert child.stop(20)
    assert child.ended() == "exit code 0"

    (program / "started").unlink()
    child.start()
    wait_for(program / "started")
    os.kill(child.pid, signal.SIGSTOP)
    assert not child.stop(0.1)
    assert child.ended() == "killed by SIGKILL"
