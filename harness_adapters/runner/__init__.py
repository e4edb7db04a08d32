"""Runs many rollouts on one machine, within bounds, and leaves nothing behind."""
