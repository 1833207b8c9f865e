"""CuTe DSL skeletons for NVIDIA GPUs from sm_80 on: pointwise Programs and row reductions; products in `gemm`."""
