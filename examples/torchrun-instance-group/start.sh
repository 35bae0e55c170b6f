#!/bin/sh
# The startup script of each VM: torchrun, once all VMs of the instance group run.
exec aioresolve exec here --for torchrun --port 29500 --timeout 30m -- torchrun /opt/train.py
