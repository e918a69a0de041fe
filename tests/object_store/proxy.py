"""A network between a store and its server that loses answers, or stands still."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit


class Proxy:
    """Stands between a client and the server, and loses answers when it is told to."""

    def __init__(self, server: str) -> None:
        host, port = urlsplit(server).netloc.split(":")
        self.server = host, int(port)
        self.lose = b""
        """The answers to requests whose first line contains that are lost; empty: none are."""
        self.lost = threading.Event()
        self.cut = False
        """Whether nothing gets through after the first lost answer."""
        self.flows = threading.Event()
        """Until it is set all stands still."""
        self.flows.set()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            if self.cut and self.lost.is_set():
                client.close()
                continue
            server = socket.create_connection(self.server)
            self._ends += client, server
            state = {"lose": False}
            for source, target, up in ((client, server, True), (server, client, False)):
                arguments = (source, target, up, state)
                self._threads.append(threading.Thread(target=self._pump, args=arguments))
                self._threads[-1].start()

    def _pump(
        self, source: socket.socket, target: socket.socket, up: bool, state: dict[str, bool]
    ) -> None:
        try:
            while data := source.recv(1 << 16):
                self.flows.wait()
                if up and self.lose and self.lose in data and not self.lost.is_set():
                    state["lose"] = True
                if not up and state["lose"]:
                    self.lost.set()
                    break
                if up and self.cut and self.lost.is_set():
                    break
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.flows.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._socket.close()
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()
