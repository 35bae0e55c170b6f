# A small image with the `aioresolve` command:
#
#     docker build -t registry.example.com/aioresolve:1 .
#
# It runs as a user without privileges, and on a read-only root file system. `aioresolve demo` and the host files of
# `aioresolve exec` need a volume at /tmp.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist /src
RUN python -m venv --without-pip /opt/aioresolve
RUN pip --python /opt/aioresolve/bin/python install --no-cache-dir "$(echo /dist/aioresolve-*.whl)[cli,serve]"

FROM python:${PYTHON}-slim
COPY --from=build /opt/aioresolve /opt/aioresolve
ENV PATH="/opt/aioresolve/bin:${PATH}" PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["aioresolve"]
