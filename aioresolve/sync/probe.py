"""The devices of workers, for code without an event loop: `aioresolve.probe` with blocking functions.

```
from aioresolve.sync.probe import probe_workers

for probe in probe_workers(["10.0.0.1:8470", "10.0.0.2:8470"]):
    print(probe.address, probe.accelerators if probe.error is None else probe.error)
```

They have the arguments, results and errors of the async functions. Each probe opens a channel of its own.
"""

from __future__ import annotations

from aioresolve import probe

from .loop_thread import blocking_function

__all__ = ["probe_worker", "probe_workers"]

probe_worker = blocking_function(probe.probe_worker)
"""`aioresolve.probe.probe_worker`, but it blocks."""

probe_workers = blocking_function(probe.probe_workers)
"""`aioresolve.probe.probe_workers`, but it blocks."""
