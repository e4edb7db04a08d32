"""Adapters of harnesses that are Node programs, one module each, and ``table`` of their names.

All are command-line agents that run unmodified, one process per rollout. Each is told its base URL, its key and the
window, keeps its state in the rollout's scratch folder, and has everything switched off that is not the task: update
checks, telemetry, title requests, the user's own configuration.
"""
