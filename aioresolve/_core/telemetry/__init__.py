"""Log records with structured `extra`, and OpenTelemetry spans and metrics if the process uses it.

Nothing has to be enabled. Log records go to loggers of the standard library. Spans and metrics go to the
global providers of OpenTelemetry after the process has imported `opentelemetry.trace` or
`opentelemetry.metrics`, as any setup of its SDK does; in any other process they cost one look-up in
`sys.modules`. They need the package `opentelemetry-api` (`pip install 'aioresolve[otel]'`).

Loggers: `aioresolve.kubernetes`, `.gcp`, `.probe`, `.watch`, `.fleet` and `.retry`. At INFO: each request,
each probe, each restart of a watch, the end of an outage. At WARNING: the start of an outage. At DEBUG: the
wait before a retry. The values of `extra` are strings and numbers; those that apply are present:

| key | meaning |
| --- | --- |
| `server` | `scheme://host:port` of an API, `host:port` of a worker |
| `scope` | what was requested, as text |
| `method`, `path` | of the HTTP request, without the query |
| `status` | the HTTP status code |
| `size` | the size of the response, decompressed, in bytes |
| `seconds` | the duration of the request, probe, watch connection or outage |
| `attempt` | the number of the attempt, from 1 |
| `wait` | the seconds until the next attempt |
| `error`, `error_type` | a failure as text, and its `error.type` (see below) |
| `reason` | why a watch restarts |
| `source` | which service reported the devices of a worker: `tensorflow` or `libtpu` |
| `target` | the name of the target in its fleet |

Spans have the kind CLIENT, are children of the current span, and have the attributes of the semantic
conventions for HTTP and RPC clients (https://opentelemetry.io/docs/specs/semconv/):

- `GET /api/v1/namespaces/{namespace}/pods` and similar: an HTTP request, until its response is complete. The
  span of a watch ends when the watch is established: a span is exported only after it ends, and a watch
  connection lives for minutes. The log has the lifetime of the connection.
- `tensorflow.WorkerService/GetStatus`: the probe of a worker; named for libtpu's method if libtpu reported
  the devices.

`aioresolve.scope` describes the request as text. `error.type` is the status of a failure response, the code
of a `ProbeError`, the class of any other error, or `cancelled` if the caller cancelled the call or its
deadline passed.

| metric | instrument and unit | attributes in addition to `error.type` |
| --- | --- | --- |
| `http.client.request.duration` | histogram, seconds | server, status, method, scheme |
| `rpc.client.call.duration` | histogram, seconds; probes | `rpc.system.name`, `rpc.method`; not the worker |
| `aioresolve.requests` | counter of HTTP requests | server, status |
| `aioresolve.retries` | counter of retried requests | server |
| `aioresolve.watch.restarts` | counter | server, `aioresolve.watch.reason` |
| `aioresolve.members` | gauge, tasks | `aioresolve.job`, `aioresolve.target` |
| `aioresolve.target.staleness` | gauge, seconds; 0 if the latest request succeeded | `aioresolve.target` |

Records, spans and metrics contain no headers and no bodies. From the query of a URL they contain only the
selectors of Kubernetes, in the scope and in the text of log records.
"""

from .calls import HTTPCall, ProbeCall
from .events import (
    Outage,
    record_members,
    record_retry,
    record_staleness,
    record_watch_restart,
    remove_target,
)

__all__ = [
    "HTTPCall",
    "Outage",
    "ProbeCall",
    "record_members",
    "record_retry",
    "record_staleness",
    "record_watch_restart",
    "remove_target",
]
