"""What can go wrong with a publish, by name.

::

    PublishError (a TrainerError)
    ├── WeightsInvalid     the files are not a set of weights that an engine can load; no engine was touched
    ├── NoEngine           no engine to publish to; nothing was changed
    ├── PublishFailed      no engine loaded the weights; the former ones are served where that was possible
    └── ControlFailed      one control call to one engine
        ├── EngineSilent   it did not answer: whether it acted is unknown
        └── EngineRefused  it answered with an error
"""

from __future__ import annotations

from trainer.errors import TrainerError


class PublishError(TrainerError):
    exit_code = 6


class WeightsInvalid(PublishError):
    pass


class NoEngine(PublishError):
    pass


class PublishFailed(PublishError):
    pass


class ControlFailed(PublishError):
    pass


class EngineSilent(ControlFailed):
    pass


class EngineRefused(ControlFailed):
    pass
