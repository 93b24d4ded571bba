# SPDX-License-Identifier: Apache-2.0
"""``AsyncGRPOTrainer(weight_transfer=tensorferry.trl.WeightTransfer(client, job="run7", engine_world_size=4))`` of TRL.

``client`` has the four methods of vLLM's weight synchronisation, and ``pause`` and ``resume``; TRL's own HTTP client does.
Only the main process of the trainer calls this object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ._connect import DEFAULT_TIMEOUT
from .vllm_engine import TensorferryTrainerEngine, TensorferryTrainerInitInfo


class WeightTransfer:
    """TRL's protocol over the stream of whole tensors, which go through ``load_weights`` of each worker."""

    def __init__(
        self,
        client: Any,
        *,
        job: str,
        engine_world_size: int,
        bucket_size: int = 1 << 30,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self._client = client
        self._info = TensorferryTrainerInitInfo(
            rank=0,
            world_size=1,
            engine_world_size=engine_world_size,
            job=job,
            bucket_size=bucket_size,
            timeout=timeout,
        )
        self._engine: TensorferryTrainerEngine | None = None

    def init_weight_transfer(self) -> None:
        self._engine = TensorferryTrainerEngine.trainer_init(self._info, client=self._client)

    def pause(self) -> None:
        self._client.pause()

    def send_weights(self, iterator: Iterable[tuple[str, Any]]) -> None:
        assert self._engine is not None, "init_weight_transfer comes first"
        self._engine.source = iterator
        self._engine.send_weights()

    def resume(self) -> None:
        self._client.resume()

    def destroy(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()
