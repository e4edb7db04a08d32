"""The command line and environment of vLLM, and what is refused before anything starts."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from singletree.engine.errors import EngineNotInstalled, ModelFolderInvalid, PortTaken
from singletree.engine.home import PARTIAL, STAMP, InstalledEngine, engine_home, installed
from singletree.engine.launch import WORKER_FOLDER, EngineOptions, build_launch, check_model_folder
from singletree.engine.start import ensure_port_is_free

CPU = InstalledEngine(Path("/opt/vllm"), "cpu", "0.32.0")
OPTIONS = EngineOptions(model=Path("/models/m"), name="tiny", port=8123, extra=("--max-num-seqs", "8"))


def value_of(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_every_setting_that_training_needs_is_given() -> None:
    argv = build_launch(OPTIONS, CPU, {}).argv
    assert argv[:5] == ["/opt/vllm/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "/models/m"]
    assert value_of(argv, "--logprobs-mode") == "processed_logprobs"
    assert value_of(argv, "--generation-config") == "vllm"
    assert value_of(argv, "--served-model-name") == "tiny"
    assert value_of(argv, "--worker-extension-cls") == "singletree_worker.WeightSwap"
    assert value_of(argv, "--kv-cache-memory-bytes") == str(1 << 30), "without a size vLLM aborts on a CPU"
    assert {"--enable-scale-out", "--enable-auto-tool-choice", "--enforce-eager"} <= set(argv)
    assert argv[-2:] == ["--max-num-seqs", "8"]


def test_the_engine_inherits_neither_keys_nor_packages() -> None:
    inherited = {
        "PATH": "/bin",
        "PYTHONPATH": "/elsewhere",
        "VIRTUAL_ENV": "/v",
        "SINGLETREE_ADMIN_KEY": "secret",
    }
    environment = build_launch(OPTIONS, CPU, inherited | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}).environment
    assert environment["PYTHONPATH"] == str(WORKER_FOLDER)
    assert not {"VIRTUAL_ENV", "SINGLETREE_ADMIN_KEY"} & environment.keys()
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment["PATH"] == "/opt/vllm/bin:/bin"
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert int(environment["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]) >= 600


def test_a_gpu_engine_keeps_vllms_own_choices() -> None:
    launch = build_launch(OPTIONS, replace(CPU, flavor="gpu"), {})
    assert not {"--enforce-eager", "--kv-cache-memory-bytes", "--distributed-executor-backend"} & set(
        launch.argv
    )
    assert "OMP_NUM_THREADS" not in launch.environment


def test_the_worker_folder_holds_nothing_but_the_worker() -> None:
    """Whatever is in it can be imported by vLLM."""
    assert [path.name for path in WORKER_FOLDER.glob("*.py")] == ["singletree_worker.py"]


def test_a_model_folder_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderInvalid, match="no model folder"):
        check_model_folder(tmp_path / "missing")
    with pytest.raises(ModelFolderInvalid, match=r"config\.json"):
        check_model_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFolderInvalid, match="safetensors"):
        check_model_folder(tmp_path)


def test_a_taken_port_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=f"{port}.*choose another --port"):
            ensure_port_is_free("127.0.0.1", port)
    ensure_port_is_free("127.0.0.1", port)


def test_the_home_is_the_argument_or_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINGLETREE_ENGINE_HOME", str(tmp_path / "variable"))
    assert engine_home(tmp_path / "argument") == tmp_path / "argument"
    assert engine_home() == tmp_path / "variable"
    monkeypatch.delenv("SINGLETREE_ENGINE_HOME")
    assert engine_home().name in (".engine", "engine")


def test_a_half_made_home_is_none(tmp_path: Path) -> None:
    with pytest.raises(EngineNotInstalled, match="singletree engine install"):
        installed(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    with pytest.raises(EngineNotInstalled):
        installed(tmp_path)
    (tmp_path / STAMP).write_text('{"flavor": "cpu", "vllm": "0.32.0", "lock": "x"}')
    assert installed(tmp_path).version == "0.32.0"
    (tmp_path / PARTIAL).touch()
    with pytest.raises(EngineNotInstalled):
        installed(tmp_path)


def test_a_home_that_somebody_else_made_counts(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    (tmp_path / "lib/python3.11/site-packages/vllm-0.32.0+cpu.dist-info").mkdir(parents=True)
    assert installed(tmp_path) == InstalledEngine(tmp_path, "cpu", "0.32.0")
