"""Adapters of harnesses that are Python and live in environments of their own, one module each, and ``table`` of their
names.

Most are libraries: a driver script (``harness_adapters/drivers``) builds an agent with a shell and a file tool and runs
it, one process per rollout. Whoever has an agent of their own runs it by ``kind: command``. openai-agents, pydantic-ai
and mini-swe-agent are installed beside Singletree instead, and have their modules one folder up.
"""
