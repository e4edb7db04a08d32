"""The Node harnesses by the names that configurations give them."""

from __future__ import annotations

from harness_adapters.node.base import NodeHarness
from harness_adapters.node.claude_code import ClaudeCode
from harness_adapters.node.cline import Cline
from harness_adapters.node.codex import Codex
from harness_adapters.node.copilot import Copilot
from harness_adapters.node.gemini_cli import GeminiCLI
from harness_adapters.node.opencode import OpenCode
from harness_adapters.node.pi import Pi
from harness_adapters.node.qwen_code import OldQwenCode, QwenCode

NODE_HARNESSES: dict[str, type[NodeHarness]] = {
    adapter.name: adapter
    for adapter in (ClaudeCode, Cline, Codex, Copilot, GeminiCLI, OldQwenCode, OpenCode, Pi, QwenCode)
}
