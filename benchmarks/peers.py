"""The proxies that ours is measured beside, each at the version named here and in an environment of its own.

They are installed under ``.cache/bench`` on first use, never into the project's environment, and started as their
manuals say, with what they do by default: agentlightning keeps its events in memory; LiteLLM has no database and logs
nothing about calls. Nothing outside this machine is asked while they run. A peer that cannot be installed or started is
missing with the reason, not guessed at.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.load import Server
from benchmarks.servers import free_port, running
from benchmarks.upstream import MODEL

ENVIRONMENTS = Path(__file__).resolve().parents[1] / ".cache" / "bench"
AGENTLIGHTNING = "agentlightning==1.0.2"
LITELLM = "litellm[proxy]==1.108.7"
INSTALL_TIMEOUT_S = 900
KEY = "bench-key"


class Missing(Exception):
    """Why a peer cannot be measured, in one line."""


@dataclass(frozen=True)
class Environment:
    """An installed peer."""

    bin: Path
    note: str
    """What is out of the ordinary about it; empty if nothing is."""


def install(name: str, requirement: str, *, newer_python: str = "") -> Environment:
    """The peer's environment, made if need be. Raises Missing.

    ``newer_python``: the peer asks for this version (``3.12``); where no such interpreter is found it is installed for
    the running one regardless, which the note says.
    """
    python, note, options = sys.executable, "", []
    if newer_python and not (found := shutil.which(f"python{newer_python}")):
        note = f"asks for Python {newer_python}, runs on {sys.version_info[0]}.{sys.version_info[1]}"
        options = ["--ignore-requires-python"]
    elif newer_python:
        python = str(found)
    folder = ENVIRONMENTS / name
    stamp, log = folder / ".installed", folder.with_suffix(".log")
    if stamp.is_file() and stamp.read_text() == requirement:
        return Environment(folder / "bin", note)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *options]
    try:
        with log.open("wb") as output:
            for argv in ([python, "-m", "venv", str(folder)], [*pip, requirement]):
                subprocess.run(argv, stdout=output, stderr=output, check=True, timeout=INSTALL_TIMEOUT_S)
    except (subprocess.SubprocessError, OSError) as error:
        errors = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
        raise Missing(f"{requirement} could not be installed: {(errors or [str(error)])[-1]}") from error
    stamp.write_text(requirement)
    return Environment(folder / "bin", note)


def start_agentlightning(stack: ExitStack, upstream: str, folder: Path) -> Server:
    """Its server with one model and one rollout. It refuses streams. Raises Missing."""
    installed = install("agentlightning", AGENTLIGHTNING, newer_python="3.12")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    settings = ["host=127.0.0.1", f"port={port}", f"key={KEY}", f"default_proxy.model_name={MODEL}"]
    hydra = [f"hydra.run.dir={folder}", "hydra.output_subdir=null"]
    argv = [str(installed.bin / "agl-server"), *settings, *hydra]
    pid = start(stack, argv, f"{url}/healthz", folder / "agentlightning.log")
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=url, headers=headers, timeout=30, trust_env=False) as client:
        for path, body in (
            ("/api/models", [{"model": MODEL, "endpoint": f"{upstream}/v1"}]),
            ("/api/rollouts", [{"rollout_id": "bench", "input": {}, "is_train": True}]),
        ):
            reply = client.post(path, json=body)
            if reply.is_error:
                raise Missing(f"agentlightning answered {path} with {reply.status_code}: {reply.text[:200]}")
    route = "/proxy/rollout/bench/attempt/1/mode/train/openai/v1/chat/completions"
    no_streams = "answers a streamed call with 400: Streaming responses are not supported"
    return Server(
        f"{AGENTLIGHTNING}, in memory", pid, url + route, KEY, no_streams=no_streams, note=installed.note
    )


def start_litellm(stack: ExitStack, upstream: str, folder: Path) -> Server:
    """Its proxy with one worker and one model, without a database. Raises Missing."""
    installed = install("litellm", LITELLM)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    model = {"model": f"openai/{MODEL}", "api_base": f"{upstream}/v1", "api_key": "none"}
    config = folder / "litellm.yaml"
    config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": model}]}))
    options = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1", "--telemetry", "False"]
    argv = [str(installed.bin / "litellm"), "--config", str(config), *options]
    pid = start(
        stack,
        argv,
        f"{url}/health/liveliness",
        folder / "litellm.log",
        LITELLM_LOCAL_MODEL_COST_MAP="True",
        LITELLM_LOG="ERROR",
        PATH=f"{installed.bin}:/usr/bin:/bin",
    )
    return Server(f"{LITELLM}, no database", pid, f"{url}/v1/chat/completions", KEY)


def start(stack: ExitStack, argv: list[str], ready_url: str, log: Path, **environment: str) -> int:
    """``servers.running`` without the project's import path. Raises Missing."""
    try:
        return stack.enter_context(running(argv, ready_url, log, PYTHONPATH="", **environment))
    except (RuntimeError, OSError) as error:
        raise Missing(" ".join(str(error).split())[-500:]) from error
