# SPDX-License-Identifier: Apache-2.0
"""One connection to an agent: commands go out, replies come back in any order, and the agent's end is noticed at once.

Calls may come from several threads. A thread of the connection reads; it ends with the connection.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ._msgpack import pack, unpack
from .errors import AgentGone, AgentUnavailable, DeadlineExceeded, FerryError, ProtocolError, from_reply

PROTOCOL = "tensorferry-agent"
VERSION = 1

_HELLO, _WELCOME, _REFUSED, _COMMAND, _REPLY, _READ, _VALUE = 1, 2, 3, 16, 17, 18, 19
_HEADER = struct.Struct("<IB")
_LONGEST = 64 * 2**20 + 1024
_CONNECT_SECONDS = 10.0
# How often whoever waits is told so.
_PATIENCE_SECONDS = 5.0


class Connection:
    """A greeted connection. ``why_gone`` says more of an agent that ended, where its starter knows."""

    def __init__(self, path: str, why_gone: Callable[[], str] = lambda: "") -> None:
        self.path = path
        self._why_gone = why_gone
        self._sending = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[tuple[int, dict[str, Any]] | FerryError]] = {}
        self._next = 0
        self._ended: FerryError | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._process = os.getpid()
        try:
            self._socket.settimeout(_CONNECT_SECONDS)
            self._socket.connect(path)
            self._send(_HELLO, {"protocol": PROTOCOL, "version": VERSION})
            kind, body = self._receive()
        except (OSError, ValueError) as error:
            self._socket.close()
            raise AgentUnavailable(
                f"The agent at {path} does not answer: {error or type(error).__name__}.",
                remedy="Start it, or leave `agent` out so that one is started.",
                retryable=True,
            ) from None
        if kind != _WELCOME:
            self._socket.close()
            raise ProtocolError(
                f"The agent at {path} refuses this client: {body.get('detail', 'without a reason')}",
                remedy=str(body.get("remedy", "Use a client and an agent of the same version.")),
            )
        self.rank = int(body["rank"])
        self.pid = int(body["pid"])
        self._socket.settimeout(None)
        self._reader = threading.Thread(target=self._read, name="tensorferry", daemon=True)
        self._reader.start()

    def _send(self, kind: int, body: Mapping[str, Any]) -> None:
        data = pack(body)
        if len(data) > _LONGEST:
            raise ProtocolError(
                f"A command has {len(data)} bytes; the longest has {_LONGEST}.",
                remedy="Register the tensors under several names.",
            )
        with self._sending:
            self._socket.sendall(_HEADER.pack(len(data), kind) + data)

    def _exactly(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            part = self._socket.recv(min(length - len(data), 1 << 20))
            if not part:
                raise ConnectionResetError("the connection was closed")
            data += part
        return bytes(data)

    def _receive(self) -> tuple[int, dict[str, Any]]:
        length, kind = _HEADER.unpack(self._exactly(_HEADER.size))
        if length > _LONGEST:
            raise ValueError(f"a frame of {length} bytes is announced")
        body = unpack(self._exactly(length))
        if not isinstance(body, dict):
            raise ValueError("a frame holds no map")
        return kind, body

    def _read(self) -> None:
        try:
            while True:
                kind, body = self._receive()
                if kind == _REFUSED:
                    raise ValueError(str(body.get("detail")))
                waiting = self._waiting.pop(body.get("id", -1), None)
                if waiting is not None:
                    waiting.put((kind, body))
        except (OSError, ValueError) as error:
            self._end(f"The connection to the agent at {self.path} is lost: {error}.")

    def _end(self, message: str) -> None:
        said = self._why_gone()
        self._ended = AgentGone(
            message + (f" It said: {said}" if said else ""),
            remedy="Connect again, then register again on all ranks.",
        )
        while self._waiting:
            self._waiting.popitem()[1].put(self._ended)

    def _ask(
        self, kind: int, body: Mapping[str, Any], timeout: float, waiting: Callable[[float], None] | None
    ) -> dict[str, Any]:
        if os.getpid() != self._process:
            raise AgentGone("This process was forked off the one that connected.", remedy="Connect in this process.")
        with self._sending:
            self._next = (self._next + 1) % 2**32
            number = self._next
        answers: queue.SimpleQueue[tuple[int, dict[str, Any]] | FerryError] = queue.SimpleQueue()
        self._waiting[number] = answers
        try:
            if self._ended is not None:
                raise self._ended
            try:
                self._send(kind, {"id": number, **body})
            except OSError as error:
                raise self._ended or AgentGone(
                    f"The agent at {self.path} is gone: {error}.", remedy="Connect again."
                ) from None
            begin = time.monotonic()
            while True:
                left = begin + timeout - time.monotonic()
                try:
                    answer = answers.get(timeout=max(0.0, min(left, _PATIENCE_SECONDS)))
                    break
                except queue.Empty:
                    if time.monotonic() - begin >= timeout:
                        raise DeadlineExceeded(
                            f"The agent did not answer within {timeout:g} s.",
                            remedy="See its log, or wait longer.",
                            retryable=True,
                        ) from None
                    if waiting is not None:
                        waiting(time.monotonic() - begin)
        finally:
            self._waiting.pop(number, None)
        if isinstance(answer, FerryError):
            raise answer
        return answer[1]

    def command(
        self,
        kind: str,
        *,
        timeout: float,
        waiting: Callable[[float], None] | None = None,
        wait: float | None = None,
        **fields: Any,
    ) -> Any:
        """Ends when the agent is done with the command; raises what it failed with. Answers what the command asks for.

        ``wait`` is how long the agent may wait for other ranks, ``timeout`` how long this process waits for the agent.
        """
        if wait is not None:
            fields["timeout"] = float(wait)
        command = pack({"type": kind, **fields, "timestamp": time.time(), "semaphore_name": None})
        reply = self._ask(_COMMAND, {"command": command}, timeout, waiting).get("reply")
        if not isinstance(reply, dict):
            raise ProtocolError("The agent's reply cannot be read.", remedy="Use one version on both ends.")
        if reply.get("type") != "Ok":
            raise from_reply(str(reply.get("tag")), str(reply.get("message")), reply.get("fields") or {})
        return reply.get("value")

    def read(self, name: str, timeout: float = _CONNECT_SECONDS) -> bytes | None:
        """An entry of the agent's state."""
        value = self._ask(_READ, {"name": name}, timeout, None).get("value")
        return value if isinstance(value, bytes) else None

    @property
    def is_open(self) -> bool:
        return self._ended is None

    def close(self) -> None:
        """Ends the connection; the agent cleans up what was registered over it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if threading.current_thread() is not self._reader and os.getpid() == self._process:
            self._reader.join(timeout=5)
