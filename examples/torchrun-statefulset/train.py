"""Adds the ranks of all processes, over the environment that torchrun sets."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
device = "cuda" if torch.cuda.is_available() else "cpu"
total = torch.tensor([float(dist.get_rank())], device=device)
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "sum", total.item())
dist.destroy_process_group()
