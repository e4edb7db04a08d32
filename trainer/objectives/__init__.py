"""One file per objective: from samples to one optimiser update and its metrics."""
