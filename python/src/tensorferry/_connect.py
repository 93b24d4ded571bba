# SPDX-License-Identifier: Apache-2.0
"""How a process joins a job: its place in its side, its agent, and the store by which agents find each other."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

from ._agent import ROUND_SECONDS, Agent
from ._connection import Connection
from ._job import RANKS_PER_SIDE, Store, StoreSeat, check_name, job_folder, side_number
from .errors import AgentUnavailable, InvalidCommand
from .ferry import Ferry, Progress

DEFAULT_TIMEOUT = 300.0


def side_position(rank: int | None, world: int | None) -> tuple[int, int]:
    """This process's rank in its side, and the side's ranks: as stated, as torch.distributed or a launcher says, or alone."""
    if rank is None and world is None:
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    own = int(os.environ.get("RANK", "0")) if rank is None else rank
    size = int(os.environ.get("WORLD_SIZE", "1")) if world is None else world
    if not 0 <= own < size < RANKS_PER_SIDE:
        raise InvalidCommand(f"Rank {own} of {size} is not possible.", remedy="State rank and world.")
    return own, size


def connect(
    job: str = "default",
    *,
    side: str,
    remote: str | None = None,
    rank: int | None = None,
    world: int | None = None,
    agent: str | None = None,
    agent_arguments: Iterable[str] = (),
    timeout: float = DEFAULT_TIMEOUT,
    progress: Callable[[Progress], None] | None = None,
) -> Ferry:
    """Joins a job as one rank of a side, and starts this process's agent unless one is named.

    :param job: what all processes of both sides call the job. They run on one host, as one user.
    :param side: name of this side, as ``"train"`` or ``"engine"``.
    :param remote: name of the other side; by default ``"engine"`` for ``"train"``, and ``"train"`` for all others.
    :param rank: of this process in its side; by default as ``torch.distributed`` or ``RANK`` says, else 0.
    :param world: ranks of this side; by default as ``torch.distributed`` or ``WORLD_SIZE`` says, else 1.
    :param agent: path of the socket of an agent that runs already.
    :param agent_arguments: more for the command ``tensorferry agent``, as ``("--device", "1")``.
    :param timeout: seconds that each call waits for other ranks, unless it states its own.
    :param progress: hears of calls that wait and of calls that are done.
    :raises AgentUnavailable: no agent could be started or reached.
    """
    check_name("side", side)
    other = check_name("side", remote if remote is not None else ("engine" if side == "train" else "train"))
    if other == side:
        raise InvalidCommand(f"Both sides are called {side!r}.", remedy="State `remote`.")
    own, size = side_position(rank, world)
    if agent is not None:
        return Ferry(job, side, other, own, size, Connection(agent), None, None, timeout, progress)
    folder = job_folder(job)
    number = side_number(folder, side)
    path = os.path.join(folder, f"{side}-{own}.sock")
    seat = StoreSeat(folder)
    found = None if seat.take() else seat.find(timeout)
    try:
        started = _start(seat, found, number * RANKS_PER_SIDE + own, path, tuple(agent_arguments))
        connection = Connection(path, started.last_words)
    except BaseException:
        seat.give_back()
        raise
    return Ferry(job, side, other, own, size, connection, started, seat, timeout, progress)


def _start(seat: StoreSeat, found: Store | None, rank: int, path: str, arguments: tuple[str, ...]) -> Agent:
    if found is not None:
        return Agent(rank, path, found, serves=False, deadline=ROUND_SECONDS, arguments=arguments)
    last = seat.last()
    try:
        started = Agent(rank, path, last, serves=True, deadline=ROUND_SECONDS, arguments=arguments)
    except AgentUnavailable:
        if last.address.endswith(":0"):
            raise
        # Something else has the port by now.
        last = Store("127.0.0.1:0", last.token)
        started = Agent(rank, path, last, serves=True, deadline=ROUND_SECONDS, arguments=arguments)
    seat.announce(Store(str(started.facts["store"]), last.token))
    return started
