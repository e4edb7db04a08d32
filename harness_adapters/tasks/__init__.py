"""Where tasks come from. A source is an iterable of ``Task``, asked anew for each epoch.

All sources are deterministic in their settings, so that a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness_adapters.protocol import Task

TaskSource = Callable[[int], Iterable[Task]]
"""(epoch, from 0) -> its tasks, in order."""
