"""Cloud TPUs: `TPUClusterResolver` resolves them to their workers."""

from .resolver import TPUClusterResolver
from .slices import TPUSlice
from .tensorflow_runtime import TPUSystemMetadata
from .topology import TPUTopology

__all__ = ["TPUClusterResolver", "TPUSlice", "TPUSystemMetadata", "TPUTopology"]
