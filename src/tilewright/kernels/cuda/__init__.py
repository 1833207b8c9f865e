"""CuTe DSL skeletons for NVIDIA GPUs (sm_90a): pointwise Programs and row reductions."""
