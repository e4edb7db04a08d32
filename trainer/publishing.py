"""When which weights are published, and under which number. How engines are made to load them is ``trainer.publish``.

The trainer's weights and the policy's version are kept equal: whatever the trainer computes with has the number that
rollouts sampled from it are labelled with, or the parity gate and the staleness count would be wrong.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import structlog

from trainer.checkpoint import Position
from trainer.folders import remove_partial, whole_folder
from trainer.ledger import Committed, Ledger
from trainer.model import Model
from trainer.publish import publish, republish_stale

log = structlog.get_logger("trainer")

NOT_TAKEN = "an engine did not take the weights"
REPUBLISH_EVERY_S = 1.0
"""How often engines that came back without the current weights are looked for while waiting."""


class Publisher:
    """Writes weights for engines and hands them over."""

    def __init__(self, ledger: Ledger, model: Model) -> None:
        self.ledger = ledger
        self.model = model
        self.recipe = ledger.recipe
        self.folder = self.recipe.output / "weights"
        self.version = ledger.policy().version
        """The version of the weights that the engines serve."""
        self._looked_at = 0.0

    def bring_up_to_date(self, position: Position, committed: Committed | None) -> None:
        """Publishes the loaded weights unless they are what the policy's version already says.

        That is so after a crash between commit and publish; after one that voided published steps; and where a new run
        starts on a policy that has moved on. A fresh policy is at version 0: its engines serve the weights that the
        recipe starts from, which the parity gate then checks.
        """
        remove_partial(self.folder)
        self._looked_at = 0.0
        if position.weights_version == self.version or self.version == 0 == position.number:
            self.republish_stale()
            return
        if position.weights_version is None and position.stage_step > 0:
            return  # between the steps of an SFT stage: these weights are published when it ends
        step_id, version = None, position.weights_version or 0
        if committed is not None and committed.version == version > self.version:
            step_id = committed.id
        else:
            version = self.ledger.next_version()
        log.info("publishing the weights that training starts from", version=version)
        self.publish(version, self.export(version), step_id)

    def export(self, version: int) -> Path:
        """Writes the weights of a version to a folder that engines can load."""
        path = (self.folder / f"v{version:06d}-{self.ledger.fence:06d}").resolve()
        with whole_folder(path) as scratch:
            self.model.write(scratch, self.recipe.publish_dtype)
        return path

    def publish(self, version: int, path: Path, step_id: str | None) -> None:
        """Makes the policy's engines serve ``path`` as ``version``. Raises the errors of ``trainer.publish``."""
        if self.recipe.publish.allow_no_engine and not self.ledger.has_engine():
            self.ledger.publish_without_engine(version, path, step_id)
        else:
            report = publish(
                self.ledger.database,
                policy_id=self.recipe.policy,
                fence=self.ledger.fence,
                expected_version=self.version,
                version=version,
                path=path,
                step_id=step_id,
            )
            for outcome in report.engines:
                if outcome.error:
                    log.warning(NOT_TAKEN, engine=outcome.engine_id, why=outcome.error)
        self.version = version
        self._prune(path)

    def republish_stale(self) -> None:
        """Brings engines that restarted or came late to the current weights; looks once a second at most."""
        now = time.monotonic()
        if now - self._looked_at < REPUBLISH_EVERY_S or not self.ledger.has_engine():
            return
        self._looked_at = now
        for outcome in republish_stale(
            self.ledger.database, policy_id=self.recipe.policy, fence=self.ledger.fence
        ):
            if outcome.error:
                log.warning(NOT_TAKEN, engine=outcome.engine_id, why=outcome.error)
            else:
                log.info(
                    "brought an engine to the current weights", engine=outcome.engine_id, version=self.version
                )

    def _prune(self, newest: Path) -> None:
        """Keeps the two newest: an engine may still be loading the older one."""
        paths = sorted(self.folder.glob("v*"), key=lambda path: path.stat().st_mtime_ns)
        for path in paths[:-2]:
            if path != newest:
                shutil.rmtree(path, ignore_errors=True)
