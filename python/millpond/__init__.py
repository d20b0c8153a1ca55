"""millpond: a GPU memory pool in stream order.

``millpond.torch.enable()`` puts it under PyTorch; :func:`stats` says what it holds.
"""

from ._library import MillpondError, OutOfMemoryError, stats, version

__all__ = ["MillpondError", "OutOfMemoryError", "__version__", "stats"]
__version__ = version()
