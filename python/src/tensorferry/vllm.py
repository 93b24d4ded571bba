# SPDX-License-Identifier: Apache-2.0
"""vLLM's plug-in: ``vllm serve … --weight-transfer-config '{"backend": "tensorferry"}'``.

vLLM calls :func:`register` in each of its processes, by the entry point of this package. The engine in a worker and the
one of a trainer are in :mod:`tensorferry.vllm_engine`, which is imported when vLLM asks for them.
"""

from __future__ import annotations

import importlib

BACKEND = "tensorferry"
_ENGINES = "tensorferry.vllm_engine"


def register() -> None:
    """Tells vLLM's factories where the engines are. Calling it again changes nothing."""
    factory = importlib.import_module("vllm.distributed.weight_transfer.factory")
    for name, engine in (
        ("WeightTransferEngineFactory", "TensorferryEngine"),
        # Since vLLM 0.28.
        ("WeightTransferTrainerFactory", "TensorferryTrainerEngine"),
    ):
        kind = getattr(factory, name, None)
        if kind is None:
            continue
        try:
            kind.register_engine(BACKEND, _ENGINES, engine)
        except ValueError as error:
            # A process may load its plug-ins twice.
            if "already" not in str(error).lower():
                raise
