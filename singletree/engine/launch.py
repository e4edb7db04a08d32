"""The command line and the environment that vLLM is started with: a pure function, so that it can be tested and read.

Each setting is here because training needs it or because it was measured (2 cores, vLLM 0.32.0):
* ``--logprobs-mode processed_logprobs``: logged logprobs are those of the distribution that was sampled from.
* ``--generation-config vllm``: the model's own file never fills in sampling parameters that a request omits.
* ``--enable-scale-out``: the render routes. ``VLLM_SERVER_DEV_MODE=1``: pause, load, label, resume.
* ``VLLM_HTTP_TIMEOUT_KEEP_ALIVE``: a proxy may keep its connections, and an old connection proves an old process.
* On a CPU one process with one OpenMP thread (``uni``): with vLLM's default executor a 2-core machine answered control
  calls and streams up to 7 s late; a KV size must be given, or vLLM aborts asking for 92 % of the memory.
* ``TORCH_COMPILE_DISABLE`` on a CPU: even with ``--enforce-eager`` the first request with logprobs compiles a helper with
  g++, which took over 5 s beside other programs, and fails where no compiler is installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from singletree.engine.errors import ModelFolderInvalid
from singletree.engine.home import InstalledEngine

WORKER_FOLDER = Path(__file__).resolve().parent / "worker"
WORKER_EXTENSION = "singletree_worker.WeightSwap"
KEEP_ALIVE_S = 3600


@dataclass(frozen=True)
class EngineOptions:
    """How to serve one model."""

    model: Path
    """Folder with config.json, safetensors and a tokenizer."""
    name: str | None = None
    """The model's name in requests; default: the folder's name."""
    host: str = "127.0.0.1"
    """vLLM's control routes know no key: anything but loopback belongs on a network of its own."""
    port: int = 8000
    dtype: str = "auto"
    """``float32``, ``bfloat16``, or ``auto`` for what config.json says."""
    max_model_len: int | None = None
    """The window in tokens, prompt and completion together; default: the model's own."""
    kv_cache_bytes: int | None = None
    """Memory for the KV cache; default 1 GiB on a CPU, vLLM's own choice on a GPU."""
    tool_parser: str | None = "hermes"
    """vLLM's ``--tool-call-parser``; null switches tool parsing off."""
    threads: int = 1
    """OpenMP threads on a CPU. More than one stalls when other programs want the cores."""
    seed: int = 0
    """Of the engine's sampler: two starts with one seed and the same requests in the same order sample alike."""
    extra: tuple[str, ...] = field(default=())
    """More arguments for ``vllm serve``, last, so that they win."""

    @property
    def served_name(self) -> str:
        return self.name or self.model.resolve().name

    @property
    def base_url(self) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{host}:{self.port}"


@dataclass(frozen=True)
class Launch:
    """What to execute."""

    argv: list[str]
    environment: dict[str, str]


def build_launch(options: EngineOptions, engine: InstalledEngine, inherited: Mapping[str, str]) -> Launch:
    """The command for ``options`` on ``engine``; ``inherited`` is the environment to start from, usually os.environ."""
    argv = [str(engine.python), "-m", "vllm.entrypoints.cli.main", "serve", str(options.model)]
    argv += ["--served-model-name", options.served_name, "--host", options.host, "--port", str(options.port)]
    argv += ["--dtype", options.dtype, "--seed", str(options.seed)]
    argv += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    argv += ["--enable-scale-out", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    argv += ["--worker-extension-cls", WORKER_EXTENSION]
    if options.max_model_len is not None:
        argv += ["--max-model-len", str(options.max_model_len)]
    if options.tool_parser is not None:
        argv += ["--enable-auto-tool-choice", "--tool-call-parser", options.tool_parser]
    kv_cache_bytes = options.kv_cache_bytes
    if engine.flavor == "cpu":
        argv += ["--enforce-eager", "--distributed-executor-backend", "uni"]
        kv_cache_bytes = kv_cache_bytes or 1 << 30
    if kv_cache_bytes is not None:
        argv += ["--kv-cache-memory-bytes", str(kv_cache_bytes)]
    return Launch([*argv, *options.extra], _environment(options, engine, inherited))


def _environment(
    options: EngineOptions, engine: InstalledEngine, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Drops what would leak another Python's packages, or Singletree's keys, into the engine."""
    foreign = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
    kept = {
        name: value
        for name, value in inherited.items()
        if name not in foreign and not name.startswith("SINGLETREE_")
    }
    kept["PATH"] = os.pathsep.join([str(engine.home / "bin"), inherited.get("PATH", os.defpath)])
    kept["PYTHONPATH"] = str(WORKER_FOLDER)
    kept["VLLM_SERVER_DEV_MODE"] = "1"
    kept["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = str(KEEP_ALIVE_S)
    kept["VLLM_NO_USAGE_STATS"] = "1"
    if engine.flavor == "cpu":
        kept["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        kept["OMP_NUM_THREADS"] = str(options.threads)
        kept["TORCH_COMPILE_DISABLE"] = "1"
    return kept


def check_model_folder(folder: Path) -> None:
    """Raises ``ModelFolderInvalid`` unless ``folder`` looks like a model in the Hugging Face layout."""
    if not folder.is_dir():
        raise ModelFolderInvalid(
            f"no model folder {folder}; give the folder that holds config.json and safetensors"
        )
    if not (folder / "config.json").is_file():
        raise ModelFolderInvalid(f"{folder} has no config.json; save the model there with save_pretrained")
    if not any(folder.glob("*.safetensors")):
        raise ModelFolderInvalid(f"{folder} has no .safetensors file; save the model with safe_serialization")
