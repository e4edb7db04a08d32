"""Alembic migrations of the span log; run by ``spanlog.migrate``."""
