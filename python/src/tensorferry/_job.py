# SPDX-License-Identifier: Apache-2.0
"""The folder of a job, in which its processes find each other: sockets, the address of the store, numbers of sides.

The folder is this user's alone. Every file in it is small, and is made whole or not at all.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import stat
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import ClassVar

from ._processes import process_start
from .errors import AgentUnavailable, InvalidCommand, UnsafeFolder

# Ranks of a side count on from here for each side, so that sides need not know each other's size.
RANKS_PER_SIDE = 1_000_000
_MOST_SIDES = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


def check_name(what: str, name: str) -> str:
    """Names are parts of paths and of keys."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidCommand(
            f"{name!r} is no name of a {what}.",
            remedy="Use up to 64 letters, digits, dots, dashes and underscores.",
        )
    return name


def _check_own(folder: str) -> None:
    facts = os.lstat(folder)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise UnsafeFolder(
            f"{folder} is no folder of this user alone.",
            remedy="Remove it, or name another one with TENSORFERRY_FOLDER.",
        )


def _base() -> str:
    stated = os.environ.get("TENSORFERRY_FOLDER")
    if stated:
        return stated
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return os.path.join(runtime, "tensorferry")
    return os.path.join(tempfile.gettempdir(), f"tensorferry-{os.geteuid()}")


def job_folder(job: str) -> str:
    """The folder of a job, made where it is missing. Raises :class:`UnsafeFolder` for one that others can use."""
    base = os.path.abspath(_base())
    folder = os.path.join(base, check_name("job", job))
    for each in (base, folder):
        try:
            os.mkdir(each, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise UnsafeFolder(f"{each} cannot be made: {error}.", remedy="Set TENSORFERRY_FOLDER.") from None
        _check_own(each)
    return folder


def side_number(folder: str, side: str) -> int:
    """The number of a side in its job: the same for all of its processes, and no other side's."""
    for number in range(_MOST_SIDES):
        link = os.path.join(folder, f"side{number}")
        try:
            os.symlink(side, link)
            return number
        except FileExistsError:
            if os.readlink(link) == side:
                return number
    raise InvalidCommand(f"{folder} has {_MOST_SIDES} sides.", remedy="Remove the folder, or name another job.")


@dataclass(frozen=True)
class Store:
    """Where the agents of a job find each other, and what proves that they belong to it."""

    address: str
    token: str


class StoreSeat:
    """The right to serve the store of a job. The kernel gives it back when the process ends, however it ends."""

    # Locks of files belong to processes: within one, the seats that are taken are known here.
    _taken: ClassVar[set[str]] = set()
    _guard = threading.Lock()

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._descriptor: int | None = None

    def take(self) -> bool:
        with self._guard:
            if self.folder in self._taken:
                return False
            descriptor = os.open(os.path.join(self.folder, "store.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                return False
            self._descriptor = descriptor
            self._taken.add(self.folder)
            return True

    @property
    def is_taken(self) -> bool:
        return self._descriptor is not None

    def give_back(self) -> None:
        with self._guard:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
                self._taken.discard(self.folder)

    def _path(self) -> str:
        return os.path.join(self.folder, "store")

    def last(self) -> Store:
        """The store that was here before, so that agents that still live find the next one at its place."""
        read = self._read()
        return read[0] if read is not None else Store("127.0.0.1:0", secrets.token_hex(32))

    def announce(self, store: Store) -> None:
        text = json.dumps({"address": store.address, "token": store.token, "pid": os.getpid(), "start": process_start()})
        descriptor, path = tempfile.mkstemp(dir=self.folder)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.replace(path, self._path())

    def _read(self) -> tuple[Store, bool] | None:
        """The store as it was announced last, and whether whoever announced it lives."""
        try:
            with open(self._path(), encoding="utf8") as file:
                found = json.load(file)
            store = Store(str(found["address"]), str(found["token"]))
            return store, process_start(int(found["pid"])) == found["start"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def find(self, timeout: float) -> Store | None:
        """The store of another process; nothing where the seat became free and is taken here now."""
        end = time.monotonic() + timeout
        pause = 0.01
        while True:
            read = self._read()
            if read is not None and read[1]:
                return read[0]
            if self.take():
                return None
            if time.monotonic() > end:
                raise AgentUnavailable(
                    f"The process that is to serve the store of {self.folder} did not begin within {timeout:g} s.",
                    remedy="See the log of the process that came first.",
                    retryable=True,
                )
            # Another process is between taking the seat and announcing its store: nothing tells when it has.
            time.sleep(pause)
            pause = min(0.2, 2 * pause)
