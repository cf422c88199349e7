"""What both doors share while the process lives."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from api.access import KnownCallers
from api.hub import Hub, Pace
from api.meters import Meters
from api.rate import Buckets
from api.settings import ApiSettings
from api.strangers import Strangers
from jobs.db import Database


@dataclass(frozen=True, slots=True)
class Context:
    """Settings, the database, the process's own metrics, and whether it is shutting down."""

    settings: ApiSettings
    db: Database
    meters: Meters = field(default_factory=Meters)
    pace: Pace = field(default_factory=Pace)
    buckets: Buckets = field(default_factory=Buckets)
    hub: Hub = field(default_factory=Hub)
    known_callers: KnownCallers = field(default_factory=KnownCallers)
    strangers: Strangers = field(default_factory=Strangers)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
