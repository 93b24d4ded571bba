# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint, runs trainer and engine on one device, and compares their logits, bit by bit, for every version.

Usage: run.py [STEPS]
"""

import os
import subprocess
import sys
import tempfile

import torch
from models import device, make_model

here = os.path.dirname(os.path.abspath(__file__))


def describe() -> str:
    if device().type == "cuda":
        return f"both processes are on {torch.cuda.get_device_name(device())}"
    return "there is no CUDA device here: both processes are on the CPU, and share its memory instead"


def main(steps: str = "4") -> int:
    print(describe(), flush=True)
    with tempfile.TemporaryDirectory() as out:
        checkpoint = os.path.join(out, "checkpoint")
        make_model(seed=0).save_pretrained(checkpoint)
        environment = {**os.environ, "JOB": f"colocated-{os.getpid()}"}
        started = [
            subprocess.Popen(
                [sys.executable, os.path.join(here, program), checkpoint, steps, out],
                env=environment,
            )
            for program in ("trainer.py", "engine.py")
        ]
        try:
            if any([each.wait(timeout=300) for each in started]):
                return 1
        finally:
            for each in started:
                each.kill()
        before = None
        for version in ("start", *range(int(steps))):
            sent, came = (
                torch.load(os.path.join(out, f"{side}-{version}.pt"))
                for side in ("trainer", "engine")
            )
            same = torch.equal(sent.view(torch.int32), came.view(torch.int32))
            changed = before is None or not torch.equal(before, sent)
            name = "checkpoint" if version == "start" else f"version {version}"
            print(
                f"{name}: the engine's logits {'are' if same else 'are NOT'} those of the trainer"
            )
            if not (same and changed):
                return 1
            before = sent
    print(f"{steps} versions and a checkpoint, from one process to the other")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
