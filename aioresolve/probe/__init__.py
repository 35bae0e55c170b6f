"""Which devices do the workers have? Asked of the workers themselves, all at once.

```
from aioresolve.probe import probe_workers

for probe in await probe_workers(["10.0.0.1:8470", "10.0.0.2:8470"]):
    print(probe.address, probe.accelerators if probe.error is None else probe.error)
```

A worker's TensorFlow server tells its devices; where none listens, libtpu on the same host tells its cores,
chips and devices. Each worker has its own deadline and its own row, whatever the others do.
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
