"""From trained weights on disk to engines that serve them: validate, pause, load, stamp, resume, probe."""

from trainer.publish.publish import PublishReport, publish, republish_stale
from trainer.publish.swap import SwapOutcome, SwapStatus
from trainer.publish.validate import validate_weights

__all__ = ["PublishReport", "SwapOutcome", "SwapStatus", "publish", "republish_stale", "validate_weights"]
