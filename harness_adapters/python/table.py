"""The Python harnesses that live in environments of their own, by the names that configurations give them."""

from __future__ import annotations

from harness_adapters.python.aider import Aider
from harness_adapters.python.langgraph import LangGraph
from harness_adapters.python.openhands_sdk import OpenHandsSDK
from harness_adapters.python.qwen_agent import QwenAgent
from harness_adapters.python.smolagents import SmolAgents
from harness_adapters.python.terminus_2 import Terminus2

PYTHON_HARNESSES = {
    adapter.name: adapter for adapter in (Aider, LangGraph, OpenHandsSDK, QwenAgent, SmolAgents, Terminus2)
}
