"""A network that misbehaves: a TCP proxy between agents and their collector."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass(eq=False)
class Connection:
    """One agent's connection, and the one to the collector that it is passed on to."""

    agent: socket.socket
    collector: socket.socket
    flows: threading.Event = field(default_factory=threading.Event)

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Pass bytes on, as long as they flow."""
        with suppress(OSError):
            while data := source.recv(65536):
                self.flows.wait()
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        source.close()  # what the other thread reads from is closed by that one

    def reset(self, *ends: socket.socket) -> None:
        """Break these ends with a RST, not with a FIN."""
        for end in ends:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD)  # wakes the thread that reads it, which closes it


class Proxy:
    """Listens on a port of its own and passes everything on to `address`, until told otherwise."""

    def __init__(self, address: str) -> None:
        self._to = ("127.0.0.1", int(address.rpartition(":")[2]))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted = 0
        self._connections: list[Connection] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """All connections break, in the middle of whatever they carry."""
        for one in self._take():
            one.reset(one.agent, one.collector)
            one.flows.set()

    def lead_to(self, address: str) -> None:
        """Connections that are made from now on lead there, as behind a load balancer."""
        self._to = ("127.0.0.1", int(address.rpartition(":")[2]))

    def stall(self) -> None:
        """Nothing passes, and nothing breaks."""
        for one in self._connections:
            one.flows.clear()

    def resume(self) -> None:
        """What was held up passes."""
        for one in self._connections:
            one.flows.set()

    def hold_back(self) -> list[Connection]:
        """Agents lose their connections, and make new ones, which overtake what is in these."""
        self.stall()
        held = self._take()
        for one in held:
            one.reset(one.agent)
        return held

    def deliver(self, held: list[Connection]) -> None:
        """What was held back arrives at last."""
        for one in held:
            one.flows.set()

    def close(self) -> None:
        """End it all."""
        self._listener.close()
        self.reset()

    def _take(self) -> list[Connection]:
        taken, self._connections = self._connections, []
        return taken

    def _accept(self) -> None:
        while True:
            try:
                agent, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                collector = socket.create_connection(self._to, timeout=5)
            except OSError:  # there is none at the moment
                agent.close()
                continue
            collector.settimeout(None)
            one = Connection(agent, collector)
            one.flows.set()
            self._connections.append(one)
            for pair in ((agent, collector), (collector, agent)):
                threading.Thread(target=one.pump, args=pair, daemon=True).start()
