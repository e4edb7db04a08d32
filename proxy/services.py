"""What every endpoint works with, made once per application."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from proxy.auth import KeyRing
from proxy.capture import StallWatch
from proxy.engine.health import EngineWatch
from proxy.engine.pool import Pool
from proxy.history import Histories
from proxy.metrics import Metrics
from proxy.settings import Settings
from spanlog.database import Database
from spanlog.writer import SpanWriter


@dataclass(slots=True)
class Services:
    settings: Settings
    database: Database
    writer: SpanWriter
    keys: KeyRing
    histories: Histories
    pool: Pool
    watch: EngineWatch
    metrics: Metrics
    loop: asyncio.AbstractEventLoop
    stalls: StallWatch
