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
"""

from . import errors
from ._connect import connect
from .errors import FerryError
from .ferry import Ferry, Progress, Status

__all__ = ["Ferry", "FerryError", "Progress", "Status", "connect", "errors"]
__version__ = "0.1.0"
