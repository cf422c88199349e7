"""The dashboard of the service: jobs, workers, attempts, and both doors."""

from __future__ import annotations

from deploy.grafana.panels import Dashboard, Panel, Query, Row

JOBS = Row(
    title="Jobs and workers",
    panels=[
        Panel(
            title="Now",
            kind="stat",
            unit="none",
            width=12,
            read="Jobs that wait and run, workers alive, slots without a job. Queued jobs beside free slots for "
            "minutes mean that no worker serves their queue.",
            queries=[
                Query(expr='max(ppo_jobs{job="ppo-api", state="queued"})', legend="queued"),
                Query(expr='max(ppo_jobs{job="ppo-api", state="running"})', legend="running"),
                Query(expr='max(ppo_workers{job="ppo-api"})', legend="workers"),
                Query(expr='max(ppo_slots{job="ppo-api", use="free"})', legend="free slots"),
            ],
        ),
        Panel(
            title="Jobs by state",
            unit="none",
            width=12,
            read="All jobs in the database. Finished states only grow; failed growing faster than succeeded is news.",
            queries=[Query(expr='max by (state) (ppo_jobs{job="ppo-api"})', legend="{{state}}")],
            lowest=0,
        ),
        Panel(
            title="Slots",
            unit="none",
            read="Jobs that all workers alive can run at once, by use.",
            queries=[Query(expr='max by (use) (ppo_slots{job="ppo-api"})', legend="{{use}}")],
            stacked=True,
            lowest=0,
        ),
        Panel(
            title="Oldest wait",
            unit="s",
            read="How long the job that waits longest in each queue could have started. Long waits beside busy slots: "
            "more work than workers; beside free slots: nobody serves that queue.",
            queries=[Query(expr='max by (queue) (ppo_queue_oldest_seconds{job="ppo-api"})', legend="{{queue}}")],
            lowest=0,
        ),
        Panel(
            title="Attempts ended, by outcome",
            unit="none",
            read="In each five minutes. `released` is a worker's shutdown; `requeued` and `discarded` are errors that "
            "are tried again; `lost` attempts wrote nothing more, the reaper returns their jobs.",
            queries=[
                Query(
                    expr='sum by (outcome, reason) (increase(ppo_worker_attempts_total{job="ppo-workers"}[5m]))',
                    legend="{{outcome}} {{reason}}",
                )
            ],
            lowest=0,
        ),
        Panel(
            title="Jobs taken from lost workers",
            unit="none",
            read="Jobs that the reaper returned after their lease ran out, in each five minutes. 0 is normal.",
            queries=[
                Query(expr='sum(increase(ppo_worker_reaped_jobs_total{job="ppo-workers"}[5m]))', legend="returned"),
            ],
            lowest=0,
        ),
    ],
)

PULSE = Row(
    title="Pulse of the workers",
    panels=[
        Panel(
            title="Oldest lease",
            unit="s",
            read="Time since the last heartbeat of any lease: a few seconds. At 40 s the worker ends its own engine, "
            "at 60 s the job goes to somebody else (defaults).",
            queries=[
                Query(expr='max by (worker) (ppo_worker_lease_age_seconds{job="ppo-workers"})', legend="{{worker}}")
            ],
            lowest=0,
        ),
        Panel(
            title="Heartbeats",
            unit="s",
            read="99th percentile of the time the database takes for a heartbeat. Seconds mean an overloaded database.",
            queries=[
                Query(
                    expr="histogram_quantile(0.99, sum by (le, worker) "
                    '(rate(ppo_worker_heartbeat_seconds_bucket{job="ppo-workers"}[5m])))',
                    legend="{{worker}}",
                )
            ],
            lowest=0,
        ),
        Panel(
            title="Heartbeats not taken",
            unit="none",
            read="In each five minutes. A few during a restart of the database are normal.",
            queries=[
                Query(
                    expr='sum by (worker) (increase(ppo_worker_heartbeat_failures_total{job="ppo-workers"}[5m]))',
                    legend="{{worker}}",
                )
            ],
            lowest=0,
        ),
        Panel(
            title="Since the last poll",
            unit="s",
            read="How long ago each worker asked the database for work. Much more than its poll interval: it is stuck.",
            queries=[
                Query(
                    expr='time() - ppo_worker_last_poll_timestamp_seconds{job="ppo-workers"}',
                    legend="{{worker}}",
                )
            ],
            lowest=0,
        ),
        Panel(
            title="Engines started",
            unit="none",
            read="In each five minutes: all, and those for a second or later attempt.",
            queries=[
                Query(expr='sum(increase(ppo_worker_engine_starts_total{job="ppo-workers"}[5m]))', legend="all"),
                Query(expr='sum(increase(ppo_worker_engine_restarts_total{job="ppo-workers"}[5m]))', legend="again"),
            ],
            lowest=0,
        ),
        Panel(
            title="Memory of the worker processes",
            unit="bytes",
            read="Of the supervisors, not of the engines: should stay flat.",
            queries=[Query(expr='process_resident_memory_bytes{job="ppo-workers"}', legend="{{worker}}")],
            lowest=0,
        ),
    ],
)

DOORS = Row(
    title="The front door",
    panels=[
        Panel(
            title="HTTP requests",
            unit="reqps",
            read="By status class. 4xx are refused requests, 5xx are ours (503: the database is away).",
            queries=[
                Query(
                    expr='sum by (status) (rate(ppo_http_requests_total{job="ppo-api"}[5m]))',
                    legend="{{status}}",
                )
            ],
            lowest=0,
        ),
        Panel(
            title="HTTP latency, 99th percentile",
            unit="s",
            read="By route; streams are left out.",
            queries=[
                Query(
                    expr="histogram_quantile(0.99, sum by (le, method, route) "
                    '(rate(ppo_http_request_duration_seconds_bucket{job="ppo-api"}[5m])))',
                    legend="{{method}} {{route}}",
                )
            ],
            lowest=0,
        ),
        Panel(
            title="gRPC calls",
            unit="reqps",
            read="By code. UNAVAILABLE and INTERNAL are ours.",
            queries=[
                Query(
                    expr='sum by (code) (rate(ppo_grpc_handled_total{job="ppo-api"}[5m]))',
                    legend="{{code}}",
                )
            ],
            lowest=0,
        ),
        Panel(
            title="gRPC latency, 99th percentile",
            unit="s",
            read="By method; streams are left out.",
            queries=[
                Query(
                    expr="histogram_quantile(0.99, sum by (le, method) "
                    '(rate(ppo_grpc_handling_duration_seconds_bucket{job="ppo-api"}[5m])))',
                    legend="{{method}}",
                )
            ],
            lowest=0,
        ),
        Panel(
            title="Followers",
            unit="none",
            read="Event streams open now, by door.",
            queries=[Query(expr='sum by (door) (ppo_open_streams{job="ppo-api"})', legend="{{door}}")],
            stacked=True,
            lowest=0,
        ),
        Panel(
            title="Memory and processor of the front door",
            unit="none",
            read="Resident memory in GiB, and cores in use.",
            queries=[
                Query(expr='process_resident_memory_bytes{job="ppo-api"} / 2^30', legend="{{instance}} GiB"),
                Query(expr='rate(process_cpu_seconds_total{job="ppo-api"}[5m])', legend="{{instance}} cores"),
            ],
            lowest=0,
        ),
    ],
)

DASHBOARD = Dashboard(
    uid="ppo-service",
    title="PPO: the service",
    description="Jobs, workers, attempts and requests. The numbers of one run are on the dashboard `PPO: one run`.",
    rows=[JOBS, PULSE, DOORS],
    span="now-6h",
)
