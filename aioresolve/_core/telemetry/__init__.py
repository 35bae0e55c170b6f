"""What an operator sees: log records with structured `extra`, and OpenTelemetry where the process uses it.

Nothing has to be switched on. Log records go to the standard library's loggers. Spans and metrics go to the
global providers of OpenTelemetry once the process itself has imported `opentelemetry.trace` or
`opentelemetry.metrics`, as whoever sets up its SDK does; in any other process they cost a look into
`sys.modules`. The package needed is `opentelemetry-api` (`pip install 'aioresolve[otel]'`).

Loggers: `aioresolve.kubernetes`, `.gcp`, `.probe`, `.watch`, `.fleet` and `.retry`. At INFO: each request,
each probe, a watch that begins again, the end of an outage. At WARNING: the beginning of an outage. At DEBUG:
the wait before a retry. The keys of `extra`, each where it applies, are strings and numbers:

| key | what it is |
| --- | --- |
| `server` | `scheme://host:port` of an API, `host:port` of a worker |
| `scope` | what was asked, in words |
| `method`, `path` | of an HTTP request, without the query |
| `status` | the HTTP status of the answer |
| `size` | bytes of the answer, decompressed |
| `seconds` | how long it took: a request, a probe, a watch's connection, an outage |
| `attempt` | which attempt it was, from 1 |
| `wait` | seconds until the next attempt |
| `error`, `error_type` | a failure in words, and its `error.type` as below |
| `reason` | why a watch begins again |
| `source` | who told a worker's devices: `tensorflow` or `libtpu` |
| `target` | the target's name in its fleet |

Spans are of kind CLIENT, children of the span that is current where the call is made, and have the attributes
of the conventions for HTTP clients and for RPC (https://opentelemetry.io/docs/specs/semconv/):

- `GET /api/v1/namespaces/{namespace}/pods` and the like: an HTTP request, until its answer is whole. That of
  a watch ends when the watch is established: a span is not seen before it ends, and a connection lives for
  minutes. How long it lived is told by the log when it ends.
- `tensorflow.WorkerService/GetStatus`: the probe of a worker; it has the name of libtpu's method where that
  told.

`aioresolve.scope` is the question in words. `error.type` is the status of an answer that is a failure, the
code of a `ProbeError`, the class of any other error, or `cancelled`: the caller gave up, or its deadline
passed.

| metric | what it is | attributes besides `error.type` |
| --- | --- | --- |
| `http.client.request.duration` | histogram, seconds | server, status, method, scheme |
| `rpc.client.call.duration` | histogram, seconds; of probes | `rpc.system.name`, `rpc.method`; no worker |
| `aioresolve.requests` | counter of HTTP requests | server, status |
| `aioresolve.retries` | counter of requests made again | server |
| `aioresolve.watch.restarts` | counter | server, `aioresolve.watch.reason` |
| `aioresolve.members` | gauge, tasks | `aioresolve.job`, `aioresolve.target` |
| `aioresolve.target.staleness` | gauge, seconds; 0 while the target answers | `aioresolve.target` |

Of a URL's query only the selectors of Kubernetes are told, in the scope and in the text of log records; of
headers and bodies nothing.
"""

from .calls import HTTPRequest, WorkerProbing
from .events import Outage, forget, members, retried, staleness, watch_restarted

__all__ = [
    "HTTPRequest",
    "Outage",
    "WorkerProbing",
    "forget",
    "members",
    "retried",
    "staleness",
    "watch_restarted",
]
