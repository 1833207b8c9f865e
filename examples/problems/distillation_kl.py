"""Knowledge distillation: KL divergence of student from teacher at a temperature (Hinton et al., arXiv 1503.02531)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"tokens": 4096, "vocabulary": 32000}, {"tokens": 129, "vocabulary": 10007}]
CPU_CASES = [{"tokens": 128, "vocabulary": 32000}, {"tokens": 23, "vocabulary": 501}]


class Model(nn.Module):
    def __init__(self, temperature: float = 2.0):
        super().__init__()
        self.temperature = temperature

    def forward(self, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        log_student = F.log_softmax(student / self.temperature, dim=-1)
        soft_teacher = F.softmax(teacher / self.temperature, dim=-1)
        return F.kl_div(log_student, soft_teacher, reduction="batchmean") * self.temperature**2


def get_inputs(tokens: int, vocabulary: int):
    return [torch.randn(tokens, vocabulary) * 3, torch.randn(tokens, vocabulary) * 3]


def get_init_inputs(**_):
    return []
