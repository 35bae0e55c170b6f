"""Trains until a line of input says that it is enough: a program for torchrun.

Each step is an all-reduce over all workers and a step of DistributedDataParallel. Prints the rank and the
size of the world when it begins, and after each step.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch  # pyright: ignore[reportMissingImports]
import torch.distributed as dist  # pyright: ignore[reportMissingImports]

END = Path(sys.argv[1])
"""The training ends when this file exists."""

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
node, nodes = os.environ["GROUP_RANK"], os.environ["GROUP_WORLD_SIZE"]
if os.environ["LOCAL_RANK"] == "0":
    print(f"BEGIN node {node} of {nodes}, {size} workers", flush=True)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    total = torch.tensor([rank + 1.0, float(END.exists())])
    dist.all_reduce(total)
    assert total[0] == size * (size + 1) / 2, f"the sum over {size} workers is {total[0]}"
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if total[1] > 0:
        break
dist.destroy_process_group()
print(f"END node {node} of {nodes}", flush=True)
