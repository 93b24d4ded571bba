# SPDX-License-Identifier: Apache-2.0
"""What the tests share: a folder of jobs of their own, the command of this clone, and processes for the ranks of a side."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import pytest

import tensorferry

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
COMMAND = shlex.join([str(ROOT / "node_modules/.bin/node"), str(ROOT / "packages/cli/src/main.ts")])


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """Of the jobs of one test. Paths of sockets are short, so it does not lie below pytest's own folder."""
    with tempfile.TemporaryDirectory(prefix="tf-") as path:
        monkeypatch.setenv("TENSORFERRY_FOLDER", path)
        monkeypatch.setenv("TENSORFERRY_COMMAND", os.environ.get("TENSORFERRY_COMMAND", COMMAND))
        for name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        yield pathlib.Path(path)


@pytest.fixture(scope="module")
def reader() -> Iterator[tensorferry.Ferry]:
    """Whose agent reads the checkpoints of a module's tests, so that not each of them starts one."""
    with tempfile.TemporaryDirectory(prefix="tf-") as path, contextlib.ExitStack() as held:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TENSORFERRY_FOLDER", path)
            patch.setenv("TENSORFERRY_COMMAND", os.environ.get("TENSORFERRY_COMMAND", COMMAND))
            ferry = held.enter_context(tensorferry.connect("reading", side="engine", rank=0, world=1))
        yield ferry


class Program:
    """A process of a program below ``programs``; it is killed at the end of its test."""

    def __init__(self, name: str, *args: str, env: dict[str, str] | None = None) -> None:
        source = str(ROOT / "python/src")
        path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / name), *args],
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, said = self.process.communicate(timeout=30)
            raise AssertionError(f"it ended with {self.process.returncode}: {said}")
        return line.rstrip()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self, timeout: float = 240) -> str:
        """What it printed, after it ended well."""
        said, errors = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, errors
        return said


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def run(name: str, *args: str, env: dict[str, str] | None = None) -> Program:
        started.append(Program(name, *args, env=env))
        return started[-1]

    yield run
    for program in started:
        program.process.kill()
        # Shown where the test failed.
        print(program.process.communicate()[1])


def free_port() -> int:
    """Below the ports that Linux gives to connections, so that none takes it meanwhile."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def rendezvous(world: int) -> list[dict[str, str]]:
    """What a launcher tells each rank of a group of torch.distributed."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    return [{**shared, "RANK": str(rank)} for rank in range(world)]
