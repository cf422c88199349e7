"""docker-compose.yml names things that exist: modules, settings, files, ports, and no secret of its own."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest
import yaml

from api.settings import ApiSettings
from jobs.settings import DomainSettings
from tests.support import compose
from tests.support.source_tree import ROOT, repository_files
from worker.settings import WorkerSettings

SERVICES = compose.services()
OURS = {"migrations": DomainSettings, "api": ApiSettings, "relay": WorkerSettings, "worker": WorkerSettings}
SECRETS = {"POSTGRES_PASSWORD", "REDIS_PASSWORD", "PPO_KEY_PEPPER", "GRAFANA_ADMIN_PASSWORD"}


def each_service(test):
    return pytest.mark.parametrize("name", sorted(SERVICES))(test)


def test_the_cluster_is_complete():
    wanted = "api relay worker postgres redis migrations prometheus grafana tensorboard"
    assert set(SERVICES) == set(wanted.split())


@pytest.mark.parametrize("name", [*OURS, "tensorboard"])
def test_commands_are_modules_that_exist(name):
    python, flag, module, *_ = SERVICES[name]["command"]
    assert (python, flag) == ("python", "-m")
    found = find_spec(module)
    assert found is not None
    assert found.submodule_search_locations is None or find_spec(f"{module}.__main__") is not None


@pytest.mark.parametrize(("name", "settings"), OURS.items())
def test_variables_are_settings(name, settings):
    known = {f"PPO_{field.upper()}" for field in settings.model_fields} | {"HF_HOME"}
    assert set(SERVICES[name]["environment"]) - known == set()


@pytest.mark.parametrize(("name", "settings"), OURS.items())
def test_values_are_accepted(name, settings, monkeypatch):
    for variable, value in SERVICES[name]["environment"].items():
        monkeypatch.setenv(variable, str(value))
    assert str(settings().home) == "/var/lib/ppo"


@each_service
def test_dependencies_exist_and_are_waited_for(name):
    for other, wait in SERVICES[name].get("depends_on", {}).items():
        assert other in SERVICES
        if wait["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]
        else:
            assert wait["condition"] == "service_completed_successfully"
            assert SERVICES[other]["restart"] == "no"


@pytest.mark.parametrize("name", ["api", "relay", "worker"])
def test_tables_come_first(name):
    assert SERVICES[name]["depends_on"]["migrations"] == {"condition": "service_completed_successfully"}


@each_service
def test_services_are_confined(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service.get("privileged") is None
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}


@each_service
def test_mounts_exist(name):
    declared = compose.read()["volumes"]
    for mount in SERVICES[name].get("volumes", []):
        source = mount.split(":")[0]
        if source == compose.generated_env()["MODELS_DIR"]:
            continue
        assert source in declared or (source.startswith("./") and (ROOT / source).exists())
        assert source in declared or mount.endswith(":ro"), "files of the repository are mounted read-only"


@each_service
def test_images_are_pinned_or_built(name):
    service = SERVICES[name]
    if "build" in service:
        assert (ROOT / service["build"]["dockerfile"]).is_file()
        return
    image, _, tag = service["image"].partition(":")
    assert re.match(r"v?\d+", tag), f"{image} floats"


@pytest.mark.parametrize("name", ["relay", "worker", "tensorboard"])
def test_build_targets_exist(name):
    build = SERVICES[name]["build"]
    stages = re.findall(r"^FROM .+ AS (\S+)$", (ROOT / build["dockerfile"]).read_text("utf-8"), re.MULTILINE)
    assert build["target"] in stages


@each_service
def test_only_the_doors_may_leave_the_machine(name):
    for port in SERVICES[name].get("ports", []):
        assert port.startswith("127.0.0.1:"), "the default is this machine only"
        if name not in {"api", "grafana"}:
            raw = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"][name]["ports"]
            assert all(text.startswith("127.0.0.1:") for text in raw), "no setting opens a page without a login"


def test_databases_are_not_published():
    assert compose.read()["networks"]["data"] == {"internal": True}
    for name in ("postgres", "redis"):
        assert SERVICES[name]["networks"] == ["data"]
        assert "ports" not in SERVICES[name]


@pytest.mark.parametrize("missing", sorted(SECRETS))
def test_a_secret_that_is_not_given_stops_compose(missing):
    env = {name: value for name, value in compose.generated_env().items() if name != missing}
    with pytest.raises(KeyError, match=missing):
        compose.read(env=env)


def test_generated_secrets_are_fresh_and_long():
    first = compose.generated_env()
    compose.generated_env.cache_clear()
    second = compose.generated_env()
    for name in SECRETS:
        assert first[name] != second[name]
        assert re.fullmatch(r"[0-9a-f]{48}", first[name])


def test_every_variable_is_in_the_generated_file():
    text = (ROOT / "docker-compose.yml").read_text("utf-8")
    assert set(re.findall(r"\$\{(\w+)", text)) == set(compose.generated_env())


def test_ports_agree_with_prometheus():
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8"))
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    api = f"api:{SERVICES['api']['environment']['PPO_HTTP_PORT']}"
    for name in ("ppo-api", "ppo-jobs"):
        assert jobs[name]["static_configs"] == [{"targets": [api]}]
    assert jobs["ppo-jobs"]["metrics_path"] == "/metrics/jobs"
    assert jobs["ppo-jobs"]["honor_labels"] is True
    assert jobs["ppo-workers"]["http_sd_configs"][0]["url"] == f"http://{api}/sd/workers"


def test_grafana_reads_this_prometheus():
    source = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text("utf-8"))
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/ppo.yml").read_text("utf-8"))
    mounts = [mount.split(":") for mount in SERVICES["grafana"]["volumes"]]
    folder = provider["providers"][0]["options"]["path"]
    assert ["./deploy/grafana/dashboards", folder, "ro"] in mounts


def test_the_gpu_file_changes_the_worker_alone():
    override = compose.read("deploy/compose.gpu.yml", env={})["services"]
    assert set(override) == {"worker"}
    (device,) = override["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


def test_images_get_what_the_package_is_made_from():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    rooms = {path.split("/")[0] for path in repository_files() if path.endswith("/__init__.py")}
    packages = {"api", "jobs", "migrations", "ppo_client", "ppo_engine", "worker"}
    assert packages <= rooms & kept
    assert kept - packages == {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
