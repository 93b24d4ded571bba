# SPDX-License-Identifier: Apache-2.0
"""Runs two ranks of the trainer and the engine, and compares their logits, bit by bit, for every version.

Usage: run.py [FAMILY] [STEPS]
"""

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile

import torch

here = os.path.dirname(os.path.abspath(__file__))
RANKS = 2


def free_port() -> int:
    """Below the ports that Linux gives to connections, so that none takes it meanwhile."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def main(family: str = "llama", steps: str = "5") -> int:
    with tempfile.TemporaryDirectory() as out:
        shared = {**os.environ, "JOB": f"pytorch-fsdp-{os.getpid()}"}
        rendezvous = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(RANKS),
        }
        arguments = [family, steps, out]
        started = [
            subprocess.Popen(
                [sys.executable, os.path.join(here, "trainer.py"), *arguments],
                env={**shared, **rendezvous, "RANK": str(rank)},
            )
            for rank in range(RANKS)
        ]
        started.append(
            subprocess.Popen(
                [sys.executable, os.path.join(here, "engine.py"), *arguments],
                env=shared,
            )
        )
        try:
            if any(each.wait(timeout=300) for each in started):
                return 1
        finally:
            for each in started:
                each.kill()
        before = None
        for step in range(int(steps)):
            sent = torch.load(os.path.join(out, f"trainer-{step}.pt"))
            came = torch.load(os.path.join(out, f"engine-{step}.pt"))
            same = torch.equal(sent.view(torch.int32), came.view(torch.int32))
            changed = before is None or not torch.equal(before, sent)
            print(
                f"version {step}: the engine's logits {'are' if same else 'are NOT'} those of the trainer"
            )
            if not (same and changed):
                return 1
            before = sent
    print(f"{family}: {steps} versions, from {RANKS} shards to one model")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
