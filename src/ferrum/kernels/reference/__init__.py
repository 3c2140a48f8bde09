"""The reference backend (numpy)."""

from ferrum.kernels.reference.page_checksums import page_sums
from ferrum.kernels.reference.reference_kernels import ReferenceKernels

__all__ = ["ReferenceKernels", "page_sums"]
