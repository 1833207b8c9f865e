"""The top of a variational autoencoder: a latent drawn by reparameterisation, and its KL divergence from the standard
normal for each sample (Kingma and Welling, arXiv 1312.6114). The noise is an input: so the module is a function."""

import torch
from torch import nn

CASES = [{"samples": 16384, "latent": 4096}, {"samples": 1021, "latent": 509}]
CPU_CASES = [{"samples": 2048, "latent": 1024}, {"samples": 43, "latent": 61}]


class Model(nn.Module):
    def forward(
        self, mean: torch.Tensor, log_var: torch.Tensor, noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        z = mean + torch.exp(0.5 * log_var) * noise
        divergence = -0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp(), dim=1)
        return z, divergence


def get_inputs(samples: int, latent: int):
    return [torch.randn(samples, latent), 0.5 * torch.randn(samples, latent), torch.randn(samples, latent)]


def get_init_inputs(**_):
    return []
