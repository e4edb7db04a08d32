"""From the span log to micro-batches: read → (retokenize) → tree → samples → packing.

All but ``read`` are pure functions over plain arrays.
"""
