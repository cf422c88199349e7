# Targets: relay (no torch), worker (with the engine), tensorboard.
ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS base
# The same user in every image of ours: they share the volumes.
RUN useradd --uid 10001 --create-home ppo \
 && install --directory --owner=ppo --group=ppo /var/lib/ppo /var/lib/ppo-datasets /var/cache/huggingface
ENV PATH=/opt/ppo/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /var/lib/ppo

FROM python:${PYTHON} AS build
WORKDIR /src
RUN python -m venv /opt/ppo
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/ppo/bin/pip install --disable-pip-version-check --constraint constraints.txt ".[worker]"

FROM build AS build-engine
# The default wheel of torch carries CUDA. An index with CPU wheels makes a much smaller image where there is no GPU.
ARG PIP_EXTRA_INDEX_URL
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/ppo/bin/pip install --disable-pip-version-check --constraint constraints.txt ".[worker,engine]"

FROM python:${PYTHON} AS build-tensorboard
WORKDIR /src
RUN python -m venv /opt/ppo
COPY constraints.txt .
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/ppo/bin/pip install --disable-pip-version-check --constraint constraints.txt tensorboard

FROM base AS relay
COPY --from=build /opt/ppo /opt/ppo
USER 10001:10001
CMD ["python", "-m", "worker.relay"]

FROM base AS tensorboard
COPY --from=build-tensorboard /opt/ppo /opt/ppo
USER 10001:10001
EXPOSE 6006
CMD ["python", "-m", "tensorboard.main", "--logdir=/var/lib/ppo/runs", "--host=0.0.0.0", "--port=6006"]

FROM base AS worker
COPY --from=build-engine /opt/ppo /opt/ppo
USER 10001:10001
EXPOSE 9101
CMD ["python", "-m", "worker"]
