"""What the operator sets, from the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from jobs.quotas import Limits
from jobs.reach import Reach
from ppo_engine.egress import Egress, RewardHost
from ppo_engine.rundir import RunDir


class DomainSettings(BaseSettings):
    """Settings that every process of the service shares: variables `PPO_HOME`, `PPO_DATABASE_URL`, …"""

    model_config = SettingsConfigDict(env_prefix="PPO_", extra="ignore", validate_default=True)

    home: Path = Field(Path("var"), description="Folder of everything the service writes.")
    database_url: str = Field(
        default_factory=lambda data: f"sqlite:///{data['home']}/ppo.db",
        description="`sqlite:///file.db` or `postgresql://user:password@host/name`. Default: `<home>/ppo.db`.",
        repr=False,
    )
    model_roots: Annotated[list[Path], NoDecode] = Field(
        default_factory=lambda data: [data["home"] / "models"],
        description="Folders under which a spec may name models and prompts (files, folders), separated like PATH.",
    )
    datasets_dir: Path = Field(
        default_factory=lambda data: data["home"] / "datasets",
        description="Folder of the uploaded datasets: the front door writes it, workers read it.",
    )
    key_pepper: SecretStr = Field(
        SecretStr(""), description="Secret mixed into the stored hashes of API keys; another pepper voids all keys."
    )
    webhook_hosts: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="Webhook receivers at addresses that are not public and that may be called all the same: `HOST` or "
        "`HOST:PORT`, comma separated. `ppo up` allows this machine's loopback.",
    )

    reward_hosts: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="Reward servers at addresses that are not public and that specs may name all the same: `HOST` or "
        "`HOST:PORT`, comma separated. `ppo up` allows this machine's loopback.",
    )

    max_running_jobs: int | None = Field(
        None, ge=0, description="Jobs of one owner that run at once; more wait in the queue. Default: no limit."
    )
    max_queued_jobs: int | None = Field(
        1000, ge=0, description="Jobs of one owner that may be queued; a further one is refused."
    )
    max_datasets: int | None = Field(1000, ge=0, description="Datasets that one owner may keep.")
    max_stored_bytes: int | None = Field(
        20 << 30, ge=0, description="Bytes of all datasets that one owner keeps, as they lie on disk."
    )

    @field_validator("home", "datasets_dir")
    @classmethod
    def _absolute(cls, folder: Path) -> Path:
        """Processes with other working directories must mean the same folder."""
        return folder.expanduser().resolve()

    @field_validator("model_roots", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [part for part in value.split(os.pathsep) if part] if isinstance(value, str) else value

    @field_validator("webhook_hosts", "reward_hosts", mode="before")
    @classmethod
    def _split_hosts(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("webhook_hosts", "reward_hosts")
    @classmethod
    def _check_hosts(cls, hosts: list[str]) -> list[str]:
        for host in hosts:
            RewardHost.parse(host)
        return hosts

    @property
    def webhook_egress(self) -> Egress:
        """Where webhooks may lead."""
        return Egress([RewardHost.parse(host) for host in self.webhook_hosts])

    @property
    def reach(self) -> Reach:
        """Whom a spec may have the service call."""
        return Reach(self.webhook_egress, Egress([RewardHost.parse(host) for host in self.reward_hosts]))

    @property
    def limits(self) -> Limits:
        """Limits of an owner for whom an administrator set no others."""
        return Limits(self.max_running_jobs, self.max_queued_jobs, self.max_datasets, self.max_stored_bytes)

    @property
    def runs_dir(self) -> Path:
        """Folder of the run directories."""
        return self.home / "runs"

    def run_dir(self, job_id: str) -> RunDir:
        """The run directory of a job."""
        return RunDir(self.runs_dir / job_id)
