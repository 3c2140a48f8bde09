"""The CUDA backend: the bits of the CPU on a GPU. `docs/cuda.md` describes it."""
