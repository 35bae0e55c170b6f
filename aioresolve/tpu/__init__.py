"""Cloud TPUs: `TPUClusterResolver` resolves them to their workers."""

from .resolver import TPUClusterResolver
from .slices import TPUSlice
from .system import TPUSystemMetadata

__all__ = ["TPUClusterResolver", "TPUSlice", "TPUSystemMetadata"]
