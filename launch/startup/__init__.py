"""What Python imports by itself when it starts, where this folder is in PYTHONPATH."""

__all__: list[str] = []
