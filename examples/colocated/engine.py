# SPDX-License-Identifier: Apache-2.0
"""The engine, on the same GPU: begins with the same checkpoint, and pulls each version into the tensors that it serves.

Usage: engine.py CHECKPOINT STEPS OUT
"""

import logging
import os
import sys

import torch
from models import logits, make_model

import tensorferry


def main(checkpoint: str, steps: int, out: str) -> None:
    torch.set_num_threads(1)
    model = make_model(seed=2)
    with tensorferry.connect(job=os.environ["JOB"], side="engine") as ferry:
        tensorferry.load(model, checkpoint, convention="transformers", ferry=ferry)
        torch.save(logits(model), os.path.join(out, "engine-start.pt"))
        ferry.register(model)
        places = [parameter.data_ptr() for parameter in model.parameters()]
        for _ in range(steps):
            version = ferry.pull()
            torch.save(logits(model), os.path.join(out, f"engine-{version}.pt"))
        ferry.verify()
    # What serves, as a captured graph, may keep the addresses of weights.
    assert places == [parameter.data_ptr() for parameter in model.parameters()]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
