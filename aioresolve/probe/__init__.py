"""The devices of workers, as the workers report them over gRPC.

```
from aioresolve.probe import probe_workers

for probe in await probe_workers(["10.0.0.1:8470", "10.0.0.2:8470"]):
    print(probe.address, probe.accelerators if probe.error is None else probe.error)
```

The TensorFlow server of a worker reports its devices. If none listens, libtpu on the same host reports its
cores, chips and devices. Each worker has its own deadline and its own result, independent of the others.
"""

from .channels import ProbeChannels
from .devices import Device, WorkerProbe
from .workers import LIBTPU_PORTS, probe_worker, probe_workers, stream_workers

__all__ = [
    "LIBTPU_PORTS",
    "Device",
    "ProbeChannels",
    "WorkerProbe",
    "probe_worker",
    "probe_workers",
    "stream_workers",
]
