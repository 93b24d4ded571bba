# SPDX-License-Identifier: Apache-2.0
"""Trains a model that a server of vLLM serves, and sends the weights after each step straight into vLLM's workers.

Usage: trainer.py URL MODEL WORKERS STEPS OUT: the server, the model's folder, vLLM's workers, and where the result goes.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

import torch
import transformers

from tensorferry.vllm_engine import (
    ShardedSource,
    TensorferryTrainerEngine,
    TensorferryTrainerInitInfo,
)


class Client:
    """The routes by which vLLM is told of updates. It has them where VLLM_SERVER_DEV_MODE is 1."""

    def __init__(self, url: str, timeout: float = 300) -> None:
        self.url, self.timeout = url.rstrip("/"), timeout

    def _post(self, route: str, body: Any = None) -> None:
        request = urllib.request.Request(
            f"{self.url}/{route}",
            data=json.dumps(body or {}).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            # What a worker failed with, which the status alone does not say.
            raise RuntimeError(
                f"vLLM refuses {route}: {error.code} {error.read()[:2000]!r}"
            ) from None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._post("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._post("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._post("update_weights", {"update_info": update_info})

    def finish_weight_update(self) -> None:
        self._post("finish_weight_update")


def main(url: str, path: str, workers: int, steps: int, out: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(path).to(device)
    info = TensorferryTrainerInitInfo(
        rank=0,
        world_size=1,
        engine_world_size=workers,
        job=f"vllm-{os.getpid()}",
        # Each worker gets its own shards of what this module holds; nothing is gathered.
        convention="transformers",
        model=path,
    )
    sender = TensorferryTrainerEngine.trainer_init(
        info, client=Client(url), source=ShardedSource(model)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        chance = torch.Generator().manual_seed(step)
        size = model.config.vocab_size
        tokens = torch.randint(size, (2, 24), generator=chance).to(device)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sender.send_weights()
        print(f"version {step}: {workers} workers of vLLM have it", flush=True)
    sender.shutdown()
    model.save_pretrained(out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
