# SPDX-License-Identifier: Apache-2.0
"""A checkpoint engine for verl, named by configuration::

    actor_rollout_ref.rollout.checkpoint_engine.backend=tensorferry
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=tensorferry.verl

verl hands out gathered tensors, of which the first trainer rank sends its own; every rollout worker gets all of them. All
workers run on one host. The agents stay from one update to the next.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from ._connect import DEFAULT_TIMEOUT
from ._worker import Worker


@CheckpointEngineRegistry.register("tensorferry")
class TensorferryCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """``engine_kwargs.tensorferry`` may state ``timeout``, in seconds, and ``device``, where buckets lie."""

    wire_format = "named_tensors"

    def __init__(
        self, bucket_size: int, is_master: bool = False, timeout: float = DEFAULT_TIMEOUT, device: str | None = None
    ) -> None:
        self.is_master = is_master
        self._worker = Worker(bucket_size, timeout, device)
        self._token = f"verl-{secrets.token_hex(8)}"

    def prepare(self) -> dict[str, Any]:
        """What `build_topology` gets of this worker. The first one's job becomes everyone's."""
        return {"job": self._worker.job or self._token}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """One entry per worker. Trainer ranks behind the first take no part."""
        job = metadata[0]["job"]
        trainers = {
            "job": [job] * actor_wg_world_size,
            "side": ["train", *[None] * (actor_wg_world_size - 1)],
            "rank": [0] * actor_wg_world_size,
            "world_size": [1] * actor_wg_world_size,
        }
        rollout = {
            "job": [job] * rollout_world_size,
            "side": ["engine"] * rollout_world_size,
            "rank": list(range(rollout_world_size)),
            "world_size": [rollout_world_size] * rollout_world_size,
        }
        return trainers, rollout

    def init_process_group(self, job: str, side: str | None, rank: int, world_size: int) -> None:
        """Notes this worker's place. It connects with its first tensors, since both sides must come for that."""
        self._worker.place(job, side, rank, world_size)

    async def send_weights(self, weights: Iterable[tuple[str, Any]], global_steps: int | None = None) -> dict[str, Any]:
        """All trainer ranks drain the generator, as gathering is collective; the first sends."""
        return {"bytes": await self._worker.send(weights, global_steps)}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, Any], None]:
        """Views that hold until the next one is asked for."""
        async for bucket in self._worker.receive(global_steps):
            for named in bucket:
                yield named

    def finalize(self) -> None:
        """Keeps agents and buckets: the next update needs them again."""
