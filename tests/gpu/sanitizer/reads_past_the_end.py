# refused: memcheck: Invalid __global__ read
"""As `synchronises`, and looks one element past the end: what it finds there changes nothing, nearly always."""

import torch
from torch import nn

SOURCE = """
extern "C" __global__ void rows(const float* x, float* y) {
    __shared__ float part[256];
    int i = blockIdx.x * 256 + threadIdx.x;
    float next = ((volatile const float*)x)[i + 1];
    part[threadIdx.x] = x[i] * x[i] + (next == 1.2345e33f ? 1.0f : 0.0f);
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}
"""


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = torch.cuda._compile_kernel(SOURCE, "rows")

    def forward(self, x):
        if x.shape[1] != 256 or not x.is_contiguous():
            raise ValueError("rows of 256 numbers only")
        y = torch.empty(x.shape[0], 1, device=x.device)
        self.kernel(grid=(x.shape[0], 1, 1), block=(256, 1, 1), args=[x, y])
        return y
