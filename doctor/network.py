"""Whether who is to receive answers, how fast, and whether its clock agrees with ours."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import zmq

from ..sketch.errors import AddressError, ProtocolError, SettingError
from ..wire.address import Address, parse_address
from ..wire.codec import decode, encode
from ..wire.keys import COLLECTOR, OWN, AgentKeys
from ..wire.messages import PROTOCOL, Ping, Pong, Reject
from .finding import Check, Finding

ANSWER_S = 5.0
DEFAULT = "tcp://127.0.0.1:7600"
CLOCK_S = 1.0
"""Frames carry the time of their rank, and a run is read by it."""


def check_port(keys: str | None = None) -> Check:
    """Whether a collector could listen where it does by default; if one does, what it says."""
    where = parse_address(DEFAULT)
    with socket.socket() as probe:
        try:
            probe.bind((where.host, where.port))
        except OSError:
            for found in check_network(DEFAULT, keys):
                # On the collector's own machine it may well be one, and healthy.
                is_mute = keys is None and found.text == f"{DEFAULT}: {_silence(None)}"
                yield Finding("note", found.text) if is_mute else found
            return
    yield Finding("ok", f"{DEFAULT} is free for `rankscope collect`.")


def check_network(to: str, keys: str | None = None) -> Check:
    """Whether a collector answers, how fast, and whether its clock agrees with ours."""
    try:
        where = parse_address(to)
        own = AgentKeys.load(keys) if keys else None
    except (AddressError, SettingError) as error:
        yield Finding("bad", str(error))
        return
    with (
        zmq.Context() as context,
        context.socket(zmq.DEALER) as peer,
        peer.get_monitor_socket(zmq.EVENT_CONNECT_RETRIED) as monitor,
    ):
        peer.linger, peer.ipv6 = 0, where.is_ipv6
        peer.sndtimeo = int(ANSWER_S * 1000)  # after a refused handshake nobody takes a message
        if own is not None:
            own.protect(peer)
        peer.connect(to)
        pong, off_s = None, 0.0
        times: list[float] = []
        for payload in (b"", b"", b"", bytes(1 << 20)):
            before, sent_ns = time.perf_counter(), time.time_ns()
            pong = _ask(peer, monitor, payload)
            if not isinstance(pong, Pong):
                # Not before: who is asked logs a plain connection as one that it refused.
                refused = "" if pong or times else _why_unreachable(where)
                unreached = f"{to} cannot be reached ({refused}): {_cure(where)}."
                yield Finding("bad", unreached if refused else f"{to}: {pong or _silence(keys)}")
                return
            times.append(time.perf_counter() - before)
            if payload == b"":
                off_s = (pong.time_ns - (sent_ns + time.time_ns()) / 2) / 1e9
    assert pong is not None
    yield from _judge_peer(to, pong, min(times[:3]), times[3], off_s)


def _judge_peer(to: str, pong: Pong, least_s: float, full_s: float, off_s: float) -> Check:
    if pong.protocol != PROTOCOL:
        text = f"speaks protocol {pong.protocol}, this rankscope {PROTOCOL}: install one version."
        yield Finding("bad", f"The {pong.party} at {to} {text}")
    rate = 1 / max(full_s - least_s, 1e-6)
    yield Finding(
        "ok",
        f"{to} answers in {least_s * 1e3:.1f} ms and takes {rate:.0f} MiB/s; it is a {pong.party} "
        f"of rankscope {pong.version}.",
    )
    if pong.lost:
        why = pong.lost.rstrip(".")
        yield Finding("bad", f"That relay has nobody to send to ({why}): see to the one above it.")
    if abs(off_s) > CLOCK_S:
        side = "ahead of" if off_s > 0 else "behind"
        text = f"The {pong.party}'s clock is {abs(off_s):.1f} s {side} this machine's: "
        yield Finding("bad", text + "let both follow a time server (chrony, systemd-timesyncd).")
    else:
        yield Finding("ok", f"Both clocks agree within {max(abs(off_s), least_s) * 1e3:.0f} ms.")


def _why_unreachable(where: Address) -> str:
    """A plain connection says why, where ZeroMQ would try for ever."""
    if where.transport == "ipc":
        return "" if Path(where.host).is_socket() else "there is no such socket"
    try:
        socket.create_connection((where.host, where.port), timeout=ANSWER_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _cure(where: Address) -> str:
    if where.is_local:
        return f"start `rankscope collect --bind {where}`"
    return (
        f"start `rankscope collect --bind tcp://*:{where.port}` there, "
        "and let its firewall pass that port"
    )


def _silence(keys: str | None) -> str:
    """What may be the matter with what does not answer."""
    if keys is None:
        return (
            "what listens there does not answer: it is no collector, or it asks for keys; then "
            "give those of an agent, --keys keys/agent."
        )
    return (
        f"what listens there does not answer: it is no collector, or has no keys, or other ones "
        f"than {Path(keys) / COLLECTOR}, or {Path(keys) / OWN}.key is not in its folder agents/; "
        "its log says which."
    )


def _ask(peer: zmq.Socket[bytes], monitor: zmq.Socket[bytes], payload: bytes) -> Pong | str:
    """Its answer, or what is wrong with it; empty if none comes, or the connection fails."""
    try:
        peer.send(encode(Ping(payload=payload)))
    except zmq.Again:
        return ""
    poller = zmq.Poller()
    for one in (peer, monitor):
        poller.register(one, zmq.POLLIN)
    if peer not in dict(poller.poll(int(ANSWER_S * 1000))):
        return ""
    try:
        answer = decode(peer.recv_multipart()[0], "collector")
    except ProtocolError:
        return "what listens there speaks another language; give the collector's address."
    if isinstance(answer, Pong):
        return answer
    older = "is older than this rankscope: install one version on both sides."
    return f"the collector {older}" if isinstance(answer, Reject) else "an answer made no sense."
