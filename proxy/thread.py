"""The harness's own label of a line of work, from headers that harnesses send of themselves. Pure.

It only helps lineage, which also tells lines apart by their histories: several harnesses send no such header, and some
send one for the whole run. So a label alone never decides whether a call is on the main line.
"""

from __future__ import annotations

from proxy.auth import Headers

LABELS = (
    b"x-claude-code-agent-id",  # claude-code: sub-agents only; its session id is one for all
    b"thread-id",  # codex: own id for each sub-agent, under one session-id
    b"x-session-id",  # opencode: own id for each sub-agent, with x-parent-session-id; kilocode: also for its titles
    b"x-session-affinity",  # opencode's other name for it
    b"x-affinity",  # mistral-vibe
    b"x-litellm-session-id",  # openhands-sdk
    b"x-openai-subagent",  # codex: the sort of sub-agent, where it sends no thread-id
)
"""Header names, the one to prefer first."""
_LABELS = frozenset(LABELS)
MOST = 200
"""Characters kept of a label; real ones have about 40."""


def thread_of(headers: Headers) -> str | None:
    """The label, or null where the harness sends none. ``headers`` have lower-case names, as ASGI servers give them."""
    sent: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _LABELS:
            sent.setdefault(name, value)
    if not sent:
        return None
    for name in LABELS:
        if label := sent.get(name, b"").decode("latin-1").strip()[:MOST]:
            return label
    return None
