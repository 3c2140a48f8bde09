"""The reference backend (numpy)."""

from ferrum.kernels.reference.reference_kernels import ReferenceKernels

__all__ = ["ReferenceKernels"]
