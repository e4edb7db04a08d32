"""Runs inside vLLM's worker: the parts of a weight swap for which stock vLLM has no route.

vLLM imports this file by its own name (``--worker-extension-cls singletree_worker.WeightSwap``, with this folder
alone on PYTHONPATH), so it imports nothing of Singletree. Its methods are called through ``POST /collective_rpc``.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class WeightSwap:
    """Mixed into vLLM's worker class; the names carry a prefix so that they never meet one of vLLM's."""

    reload_weights: Callable[..., None]
    model_runner: Any
    vllm_config: Any

    def singletree_describe(self) -> dict[str, Any]:
        """The folder of the base weights, and the numbers in the model's config.json, to compare with those of weights
        that are about to be loaded."""
        config = self.vllm_config.model_config.hf_config.to_dict()
        plain = {name: value for name, value in config.items() if isinstance(value, (bool, int, float, str))}
        return {"base": self._singletree_base(), "config": plain}

    def singletree_read_proof(self, folder: str, name: str) -> dict[str, str]:
        """Shows that this worker sees ``folder``: returns the text of the proof file that the trainer put there.

        Only ``.proof-*`` files are read, at most 200 bytes.
        """
        path = Path(folder) / Path(name).name
        if not path.name.startswith(".proof-"):
            raise ValueError("not a proof file")
        try:
            with path.open("rb") as file:
                return {"proof": file.read(200).decode()}
        except OSError as error:
            return {"error": str(error)}

    def singletree_load(self, folder: str = "") -> dict[str, float | bool]:
        """Loads the safetensors in ``folder`` into the running model, in place; scheduling must be paused. Without a
        folder: the weights that the engine was started with.

        On a CPU, vLLM packs each linear layer's weight when it is loaded, and a head that is tied to the embedding
        keeps its old pack over a reload (measured on 0.32.0: logprobs off by 10.8), so it is packed anew here.
        """
        began = time.perf_counter()
        base = self._singletree_base()
        self.reload_weights(weights_path=folder or base)
        return {"seconds": time.perf_counter() - began, "repacked": self._singletree_repack_tied_head()}

    def _singletree_base(self) -> str:
        """vLLM forgets where it started from once it has reloaded, so the first call keeps it."""
        if not hasattr(self, "_singletree_base_folder"):
            self._singletree_base_folder = str(self.vllm_config.model_config.model)
        return self._singletree_base_folder

    def _singletree_repack_tied_head(self) -> bool:
        model = self.model_runner.get_model()
        head = getattr(model, "lm_head", None)
        if not getattr(model.config, "tie_word_embeddings", False) or not hasattr(head, "cpu_linear"):
            return False
        from vllm.model_executor.layers.utils import (  # pyright: ignore[reportMissingImports]
            dispatch_cpu_unquantized_gemm,
        )

        dispatch_cpu_unquantized_gemm(head, remove_weight=False)
        return True
