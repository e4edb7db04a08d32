"""The user's own reward function, ``module:name``, called as ``function(task payload, outcome)``."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

from harness_adapters.errors import ConfigError, RewardInvalid
from harness_adapters.loading import load_object
from harness_adapters.protocol import Outcome, Task
from harness_adapters.rewards import RewardFunction
from harness_adapters.rewards.check import named_values


def function_reward(spec: str, *, timeout_s: float) -> RewardFunction:
    """Wrap ``function``, which returns a number, numbers by name, or null for none yet; it may be a coroutine function.

    An ordinary function runs in a thread, so that a slow one holds up no other rollout.
    """
    function = load_object(spec, what="reward.function")
    if not callable(function):
        raise ConfigError(f"reward.function {spec!r} is not callable")
    try:
        inspect.signature(function).bind({}, Outcome())
    except TypeError as error:
        raise ConfigError(f"reward.function {spec!r} must take (task, outcome): {error}") from None
    except ValueError:
        pass  # a builtin without a signature

    async def reward(task: Task, outcome: Outcome) -> dict[str, float]:
        try:
            async with asyncio.timeout(timeout_s):
                if inspect.iscoroutinefunction(function):
                    value = await function(task.payload, outcome)
                else:
                    value = await in_daemon_thread(lambda: function(task.payload, outcome))
        except TimeoutError:
            raise RewardInvalid(f"{spec} gave no reward within {timeout_s:g} s") from None
        except Exception as error:
            raise RewardInvalid(f"{spec} raised {type(error).__name__}: {error}") from error
        return named_values(value, who=spec)

    return reward


async def in_daemon_thread(work: Callable[[], Any]) -> Any:
    """Await ``work()`` in a thread that does not keep the process alive, should it hang."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)

    def body() -> None:
        value, failure = None, None
        try:
            value = work()
        except BaseException as error:
            failure = (
                RuntimeError(f"{type(error).__name__}: {error}")
                if isinstance(error, StopIteration)
                else error
            )
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=body, daemon=True, name="reward").start()
    return await done
