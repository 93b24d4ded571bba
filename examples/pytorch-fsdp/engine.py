# SPDX-License-Identifier: Apache-2.0
"""An engine of one process: a model of transformers that pulls each version and writes its logits.

Usage: engine.py FAMILY STEPS OUT
"""

import logging
import os
import sys

import torch
from models import batch, make_model

import tensorferry


def main(family: str, steps: int, out: str) -> None:
    torch.set_num_threads(1)
    model = make_model(family, seed=2)
    with tensorferry.connect(
        job=os.environ["JOB"], side="engine", rank=0, world=1
    ) as ferry:
        ferry.register(model)
        for _ in range(steps):
            version = ferry.pull()
            with torch.no_grad():
                torch.save(
                    model(input_ids=batch(1000)).logits,
                    os.path.join(out, f"engine-{version}.pt"),
                )
        ferry.verify()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
