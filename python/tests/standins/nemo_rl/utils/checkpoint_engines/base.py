# SPDX-License-Identifier: Apache-2.0
"""NeMo-RL's contract of checkpoint engines."""

import abc


class CheckpointEngine(abc.ABC):
    cleanup_after_load = True

    @abc.abstractmethod
    def prepare(self): ...

    @abc.abstractmethod
    def init_policy_process_group(self, *, worker_rank, train_world_size, rollout_world_size, metadata): ...

    @abc.abstractmethod
    def init_rollout_process_group(self, *, rollout_rank, train_world_size, rollout_world_size, metadata): ...

    def finalize(self):
        pass

    @abc.abstractmethod
    async def send_weights(self, weights): ...

    @abc.abstractmethod
    def receive_weight_batches(self): ...
