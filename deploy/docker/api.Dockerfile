# The front door and the administrator's commands: no torch, no broker client.
ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /src
RUN python -m venv /opt/ppo
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/ppo/bin/pip install --disable-pip-version-check --constraint constraints.txt ".[api]"

FROM python:${PYTHON}
# The same user in every image of ours: they share the volumes.
RUN useradd --uid 10001 --create-home ppo \
 && install --directory --owner=ppo --group=ppo /var/lib/ppo /var/lib/ppo-datasets
COPY --from=build /opt/ppo /opt/ppo
ENV PATH=/opt/ppo/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/ppo
EXPOSE 8080 50051
CMD ["python", "-m", "api"]
