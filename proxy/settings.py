"""Settings of the proxy, from the environment (prefix ``SINGLETREE_``) or the options of ``singletree serve``."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SINGLETREE_", extra="ignore")

    database_url: str = "sqlite:///singletree.db"
    """Where the span log lives: ``sqlite:///path`` (one proxy) or ``postgresql://user@host/name`` (any number)."""
    durability: Literal["full", "async"] = "full"
    """``full``: an answered call survives a power cut. ``async``: it survives a crash of the process only."""
    busy_timeout_s: float = Field(default=10.0, gt=0)
    """How long to wait for another process's transaction on a SQLite file."""
    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback, configured keys are required."""
    port: int = Field(default=8700, ge=0, le=65535)
    """0 takes a free port."""

    admin_key: SecretStr | None = None
    """Key for everything on the control plane. Unset on loopback: made once and written to ``keys_file``."""
    runner_key: SecretStr | None = None
    """Key for groups, rollouts, rewards and reading. Unset on loopback: made once and written to ``keys_file``."""
    keys_file: Path | None = None
    """Where generated keys are kept (mode 0600); default: ``keys.json`` beside the SQLite file."""
    engine_key: SecretStr | None = None
    """Bearer key sent to engines (vLLM's ``--api-key``)."""

    max_body_bytes: int = Field(default=32 * 2**20, ge=1024)
    """Larger request bodies are refused with 413."""
    key_cache_s: float = Field(default=2.0, ge=0)
    """How long a key's rollout is remembered without asking the database. A reply that arrives after its rollout
    ended is marked late in any case."""
    upstream_tries: int = Field(default=3, ge=1, le=10)
    """Tries of one call, as long as nothing was sent to the caller."""
    upstream_connect_s: float = Field(default=5.0, gt=0)
    """Time-out for opening a connection to an engine. Shorter than an engine's restart, so that a checked label is
    still true when the connection opens."""
    upstream_first_s: float = Field(default=1800.0, gt=0)
    """Time-out for the first token of a stream, or for a whole reply that is not streamed. Generous: the engine queues
    calls, and long prompts take long. Time in which the engine's weights are swapped does not count."""
    upstream_idle_s: float = Field(default=300.0, gt=0)
    """Time-out for the next token of a stream that has begun. Weight swaps do not count here either."""
    keep_alive_s: float = Field(default=15.0, gt=0)
    """After this much silence of a stream a comment is sent to the caller, and again after as much, so that it does not
    give up. The first one sends the status 200 ahead: what fails from then on is told in the stream."""
    engine_calls: int = Field(default=512, ge=1)
    """Calls that this process has at one engine at most; more wait in a queue per policy, first come, first served."""
    queue_calls: int = Field(default=1024, ge=0)
    """Calls that may wait per policy; beyond it callers get 429 with Retry-After."""
    queue_wait_s: float = Field(default=120.0, gt=0)
    """How long a call may wait for an engine before it gets 429. Time in which one of the policy's engines swaps weights
    does not count."""
    engine_poll_s: float = Field(default=1.0, gt=0)
    """Interval of health checks, and of reading engine states from the database."""
    version_guard_s: float = Field(default=0.2, gt=0)
    """Tokens received this soon after a weight swap may be of either version and are labelled with both. Longer delays
    of this process are noticed; they widen the labels of the calls that they fell into."""
    sweep_s: float = Field(default=1.0, gt=0)
    """Interval of looking for lost rollouts and groups that are due."""
    heartbeat_timeout_s: float = Field(default=60.0, gt=0)
    """A running rollout without a heartbeat for this long is abandoned. Time in which the proxy itself could not hear
    (stopped, asleep, without its database) does not count."""
    drain_s: float = Field(default=30.0, ge=0)
    """On SIGTERM: how long calls in flight may take to finish."""

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
