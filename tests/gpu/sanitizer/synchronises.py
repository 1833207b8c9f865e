# accepted
"""A block for each row; its threads wait for one another before the first adds up."""

import torch
from torch import nn

SOURCE = """
extern "C" __global__ void rows(const float* x, float* y) {
    __shared__ float part[256];
    int i = blockIdx.x * 256 + threadIdx.x;
    part[threadIdx.x] = x[i] * x[i];
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
