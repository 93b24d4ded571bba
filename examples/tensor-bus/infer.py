# SPDX-License-Identifier: Apache-2.0
"""The inference job of the example, with PyTorch: one rank that receives the weights into its own tensors.

Needs torch. Tensors are shared by file name, so that the agent can use them where they lie.
"""
import io
import os
import pickle
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../packages/bus/test/fixtures"))
from bus_client import Client  # noqa: E402

import torch  # noqa: E402
import torch.multiprocessing as multiprocessing  # noqa: E402
from multiprocessing.reduction import ForkingPickler  # noqa: E402
from torch.distributed.tensor.placement_types import Replicate, Shard  # noqa: E402

multiprocessing.set_sharing_strategy("file_system")

STEPS = 4
WEIGHTS = [("attention", (64, 32), Shard(1)), ("norm", (1, 32), Replicate())]


def dump(value):
    buffer = io.BytesIO()
    ForkingPickler(buffer, 4).dump(value)
    return buffer.getvalue()


def wanted(step, shape):
    rows = torch.arange(shape[0]).unsqueeze(1)
    columns = torch.arange(shape[1]).unsqueeze(0)
    return ((step * 31 + rows * 7 + columns) % 251).to(torch.float32)


def main():
    folder = os.environ["TENSOR_BUS_DIRECTORY"]
    stem = os.path.join(folder, "agent_rank" + os.environ["AGENT_RANK"])
    client = Client(stem + "_command.lmdb", stem + "_state.lmdb")
    for pair, _, placement in WEIGHTS:
        client.call(
            "InitPair",
            pair_name=pair,
            local_name="infer",
            expected_world_size=1,
            remote_name="train",
            mesh_shape_payload=pickle.dumps((1,), 4),
            placements_payload=pickle.dumps((placement,), 4),
        )
    tensors = [torch.full(shape, -1.0).share_memory_() for _, shape, _ in WEIGHTS]
    payloads = [(pair, dump(tensor)) for (pair, _, _), tensor in zip(WEIGHTS, tensors)]
    client.call("RegisterTensors", batch_id="weights", tensors=payloads, bucket_size=None)
    wrong = 0
    for step in range(STEPS):
        client.call("Transfer", batch_id="weights", transfer_type="recv")
        for tensor, (_, shape, _) in zip(tensors, WEIGHTS):
            wrong += int((tensor != wanted(step, shape)).sum())
    # At the end it hands its weights back.
    for tensor, (_, shape, _) in zip(tensors, WEIGHTS):
        tensor.copy_(wanted(STEPS, shape))
    client.call("Transfer", batch_id="weights", transfer_type="send")
    client.call("CleanupBatch", batch_id="weights")
    print("infer 0 (Python): %d steps, %d wrong values" % (STEPS, wrong))
    sys.exit(1 if wrong else 0)


main()
