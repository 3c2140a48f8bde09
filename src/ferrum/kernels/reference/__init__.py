"""The reference backend (numpy)."""

from ferrum.kernels.reference.kernels import ReferenceKernels

__all__ = ["ReferenceKernels"]
