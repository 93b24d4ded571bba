# SPDX-License-Identifier: Apache-2.0
"""Moves model weights between a trainer and an engine that name, join and shard them differently.

On each rank of the trainer::

    with tensorferry.connect(job="run7", side="train") as ferry:
        ferry.register(model)
        for step in range(steps):
            ...
            ferry.push(step)

and of the engine::

    with tensorferry.connect(job="run7", side="engine") as ferry:
        ferry.register(model)
        version = ferry.pull()

A model is filled from a checkpoint by ``tensorferry.load(model, "checkpoint/")``, without another side.
"""

from . import errors
from ._connect import connect
from ._load import Loaded, load
from .errors import FerryError
from .ferry import Ferry, Progress, Status

__all__ = ["Ferry", "FerryError", "Loaded", "Progress", "Status", "connect", "errors", "load"]
__version__ = "0.1.0"
