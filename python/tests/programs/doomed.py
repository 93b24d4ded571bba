# SPDX-License-Identifier: Apache-2.0
"""A trainer that pushes once, then waits to be killed. Prints the number of its agent's process."""

import torch

import tensorferry

ferry = tensorferry.connect("job", side="train", timeout=60)
ferry.register({"weight": torch.arange(6.0)})
ferry.push(1)
print(ferry.status().agent_pid, flush=True)
input()
