# refused: racecheck: Race reported
"""The first thread adds up what the others left, after a while in which they will have done so: nobody waits."""

import torch
from torch import nn

SOURCE = """
extern "C" __global__ void rows(const float* x, float* y) {
    __shared__ volatile float part[256];
    int i = blockIdx.x * 256 + threadIdx.x;
    part[threadIdx.x] = x[i] * x[i];
    if (threadIdx.x == 0) {
        long long start = clock64();
        while (clock64() - start < 200000) {}
        float sum = 0.0f;
        for (int k = 0; k < 256; ++k) sum += part[k];
        y[blockIdx.x] = sum;
    }
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
