# SPDX-License-Identifier: Apache-2.0
"""A checkpoint engine for NeMo-RL, named by configuration::

    policy.generation.refit_transport: "tensorferry.nemo:TensorferryCheckpointEngine"

Settings stand under ``refit_cfg`` by the same name. The first policy worker sends; every rollout worker, inside its vLLM
worker, gets all tensors. All run on one host.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from nemo_rl.utils.checkpoint_engines.base import CheckpointEngine

from ._connect import DEFAULT_TIMEOUT
from ._worker import Worker


class TensorferryCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """Settings: ``timeout`` in seconds, ``device``, and ``release_after_refit``, which ends agents after each refit."""

    def __init__(
        self,
        bucket_size: int,
        timeout: float = DEFAULT_TIMEOUT,
        device: str | None = None,
        release_after_refit: bool = False,
        **_unused: Any,
    ) -> None:
        self._worker = Worker(bucket_size, timeout, device)
        self._release = release_after_refit
        self._token = f"nemo-{secrets.token_hex(8)}"

    def prepare(self) -> dict[str, Any]:
        """The first worker's job becomes everyone's."""
        return {"job": self._worker.job or self._token}

    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """The first policy worker sends; the others only drain their generators."""
        self._worker.place(metadata[0]["job"], "train" if worker_rank == 0 else None, 0, 1)

    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """Each rollout worker receives."""
        self._worker.place(metadata[0]["job"], "engine", rollout_rank, rollout_world_size)

    async def send_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        await self._worker.send(weights, None)

    async def receive_weight_batches(self) -> AsyncGenerator[list[tuple[str, Any]], None]:
        """Views that hold until the next batch is asked for."""
        async for bucket in self._worker.receive(None):
            yield bucket

    def finalize(self) -> None:
        if self._release:
            self._worker.close()
