"""A TCP proxy that can turn into a black hole: connections are accepted, and nothing comes through."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Listens on a free port of this machine and forwards to another one, unless it is `black`."""

    def __init__(self, port: int, *, black: bool = False) -> None:
        self.black = black
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End every connection."""
        for one in [self._listener, *self._open]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not self.black:
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)
