"""The skeleton `gemm`: matrix products on Hopper's tensor cores, fp32 ones too."""
