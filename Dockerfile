# A small image with the `aioresolve` command:
#
#     docker build -t registry.example.com/aioresolve:1 .
#
# It runs as a user without privileges, and on a read-only root file system. The host files of `aioresolve exec` need a
# volume at /tmp. It lacks what only `aioresolve demo` and the loopback servers need.
ARG PYTHON=python:3.13.15-slim-trixie@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b

FROM ${PYTHON} AS build
COPY .github/release/requirements.txt /src/.github/release/
RUN pip install --no-cache-dir --require-hashes --requirement /src/.github/release/requirements.txt
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist /src
RUN python -m venv --without-pip /opt/aioresolve
RUN pip --python /opt/aioresolve/bin/python install --no-cache-dir "$(echo /dist/aioresolve-*.whl)[cli,serve]"
RUN rm -r /opt/aioresolve/lib/python3.13/site-packages/aioresolve/testing

FROM ${PYTHON}
COPY --from=build /opt/aioresolve /opt/aioresolve
ENV PATH="/opt/aioresolve/bin:${PATH}" PYTHONDONTWRITEBYTECODE=1
# Otherwise the heap of a process that serves a fleet for days grows by fragments of its responses.
ENV MALLOC_ARENA_MAX=1 MALLOC_MMAP_THRESHOLD_=131072
USER 65532:65532
ENTRYPOINT ["aioresolve"]
