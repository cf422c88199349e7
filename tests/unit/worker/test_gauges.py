from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from worker.gauges import Gauges


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_what_a_scrape_shows() -> None:
    gauges = Gauges()
    gauges.follow(slots=4, busy=lambda: 3, oldest_lease_seconds=lambda: 1.5)
    gauges.polled()
    gauges.started(again=False)
    gauges.started(again=True)
    gauges.heartbeat(0.004)
    gauges.heartbeat(None)
    gauges.attempts.labels("requeued", "engine_hung").inc()
    port, close = gauges.serve("127.0.0.1", 0)
    try:
        seen = scrape(port)
    finally:
        close()
    assert (seen["ppo_worker_slots"], seen["ppo_worker_busy_slots"]) == (4, 3)
    assert seen["ppo_worker_lease_age_seconds"] == 1.5
    assert seen["ppo_worker_last_poll_timestamp_seconds"] > 1.7e9
    assert (seen["ppo_worker_engine_starts_total"], seen["ppo_worker_engine_restarts_total"]) == (2, 1)
    assert seen["ppo_worker_attempts_total requeued engine_hung"] == 1
    assert (seen["ppo_worker_heartbeat_seconds_count"], seen["ppo_worker_heartbeat_failures_total"]) == (1, 1)
    assert "process_resident_memory_bytes" in seen


def test_two_workers_in_one_process_do_not_share_numbers() -> None:
    one, other = Gauges(), Gauges()
    one.started(again=False)
    assert other.registry.get_sample_value("ppo_worker_engine_starts_total") == 0
