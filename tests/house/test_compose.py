"""The compose file parses for each profile, takes its secrets from the environment only, and keeps vLLM, whose control
routes know no key, where nothing outside can reach it."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.house.tree import ROOT

SECRETS = ("POSTGRES_PASSWORD", "SINGLETREE_ADMIN_KEY", "SINGLETREE_RUNNER_KEY")
PROFILES = ("cpu", "gpu")


@functools.cache
def compose_command() -> tuple[str, ...]:
    """Compose as a plugin or as a program of its own; in CI its absence is a failure, elsewhere the test is skipped."""
    if (
        shutil.which("docker")
        and not subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        return ("docker", "compose")
    if path := shutil.which("docker-compose"):
        return (path,)
    if os.environ.get("CI"):
        pytest.fail("docker-compose is missing (Debian: apt-get install docker-compose)")
    pytest.skip("needs docker-compose")


def configure(profile: str | None, **environment: str) -> subprocess.CompletedProcess[str]:
    profiles = ["--profile", profile] if profile else []
    base = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [*compose_command(), "--env-file", ".env.example", *profiles, "-f", "docker-compose.yml", "config"],
        cwd=ROOT,
        env=base | environment,
        capture_output=True,
        text=True,
    )


@functools.cache
def services(profile: str) -> dict[str, Any]:
    result = configure(profile, **{name: f"secret-{name.lower()}" for name in SECRETS})
    assert result.returncode == 0, result.stderr
    return yaml.safe_load(result.stdout)


@pytest.mark.parametrize("profile", PROFILES)
def test_each_profile_has_the_four_programs(profile: str) -> None:
    running = services(profile)["services"]
    suffix = "-gpu" if profile == "gpu" else ""
    assert {"postgres", "proxy", "migrate", f"trainer{suffix}", f"vllm{suffix}"} <= set(running)
    one_shot = {"migrate", "setup"}
    assert all("healthcheck" in service for name, service in running.items() if name not in one_shot)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_engine_is_out_of_reach(profile: str) -> None:
    config = services(profile)
    engines = [service for name, service in config["services"].items() if name.startswith("vllm")]
    assert engines
    for engine in engines:
        assert "ports" not in engine
        assert set(engine["networks"]) == {"engines"}
    assert config["networks"]["engines"]["internal"] is True
    assert {name for name, service in config["services"].items() if "ports" in service} == {"proxy"}


@pytest.mark.parametrize("missing", SECRETS)
def test_a_missing_secret_is_named(missing: str) -> None:
    result = configure("cpu", **{name: "x" for name in SECRETS if name != missing})
    assert result.returncode != 0
    assert f"set {missing} in .env" in result.stderr


def test_no_secret_is_written_down() -> None:
    config = services("cpu")
    text = json.dumps(config)
    for name in SECRETS:
        text = text.replace(f"secret-{name.lower()}", "")
    kept = [word for word in ("secret-", "password=") if word in text.lower()]
    assert not kept
    example = dict(
        line.split("=", 1)
        for line in (ROOT / ".env.example").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    assert all(example[name] == "" for name in SECRETS)


def test_images_do_not_run_as_root() -> None:
    """In each image that the compose file builds the last word on the user is an ordinary one."""
    stages = (ROOT / "docker/Dockerfile").read_text().split("\nFROM ")[1:]
    images = {stage.splitlines()[0].split()[-1]: stage for stage in stages}
    for name in ("proxy", "trainer", "engine"):
        users = [line.split()[1] for line in images[name].splitlines() if line.startswith("USER ")]
        assert users and users[-1] != "root", name
