# SPDX-License-Identifier: Apache-2.0
"""The trainer: begins with the checkpoint, and pushes its weights after each step.

Usage: trainer.py CHECKPOINT STEPS OUT
"""

import logging
import os
import sys

import torch
from models import batch, logits, make_model

import tensorferry


def main(checkpoint: str, steps: int, out: str) -> None:
    torch.set_num_threads(1)
    model = make_model(seed=1)
    with tensorferry.connect(job=os.environ["JOB"], side="train") as ferry:
        tensorferry.load(model, checkpoint, convention="transformers", ferry=ferry)
        torch.save(logits(model), os.path.join(out, "trainer-start.pt"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        ferry.register(model)
        for step in range(steps):
            tokens = batch(step)
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ferry.push(step)
            torch.save(logits(model), os.path.join(out, f"trainer-{step}.pt"))
        ferry.verify()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
