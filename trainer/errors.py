"""What can go wrong in the trainer, by name.

::

    TrainerError
    ├── RecipeError         the recipe cannot be read, or asks for what does not exist
    ├── ModelUnusable       the model folder is missing, or the model cannot be trained exactly
    ├── OutputUnwritable    the run's folder cannot be made or written
    ├── PolicyUnusable      the policy is not in the database, or samples in a way that cannot be trained on
    ├── TokenizerMismatch   the logged tokens are not of this model's tokenizer
    ├── NothingToTrain      no trainable token where there has to be one
    ├── CheckpointUnusable  a checkpoint is missing, damaged, or of another recipe
    ├── ParityFailed        logged and recomputed logprobs differ beyond tolerance [I11]
    ├── TrainingDiverged    gradients were not finite, several steps in a row
    └── Stopped             asked to stop (SIGTERM, Ctrl-C)

Each message is one line that names the remedy; the command line prints it and exits with ``exit_code``.
"""

from __future__ import annotations


class TrainerError(Exception):
    """Base: a mistake or a state that a person has to act on."""

    exit_code: int = 1


class RecipeError(TrainerError):
    exit_code = 2


class ModelUnusable(TrainerError):
    exit_code = 2


class OutputUnwritable(TrainerError):
    exit_code = 2


class PolicyUnusable(TrainerError):
    exit_code = 2


class TokenizerMismatch(TrainerError):
    exit_code = 3


class NothingToTrain(TrainerError):
    exit_code = 3


class CheckpointUnusable(TrainerError):
    exit_code = 3


class ParityFailed(TrainerError):
    exit_code = 4


class TrainingDiverged(TrainerError):
    exit_code = 5


class Stopped(TrainerError):
    exit_code = 130
