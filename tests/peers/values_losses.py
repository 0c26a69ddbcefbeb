"""PyTorch's counterparts of cases_losses.cc. Losses are not reduced."""
import torch
import torch.nn.functional as nn

HEADERS = ["ops/losses.h"]
LEFT_OUT = {}


def entropy(x, target, weight=None, smooth=0.0, z_loss=0.0, ignore=None):
    target = torch.where(target < 0, -100, target)
    if ignore is not None:
        target = torch.where(target == ignore, -100, target)
    loss = nn.cross_entropy(x, target, weight, reduction="none", label_smoothing=smooth)
    return loss + torch.where(target < 0, 0, z_loss * x.logsumexp(-1).square())


CASES = {
    "mse_loss": lambda x, t: nn.mse_loss(x, t, reduction="none"),
    "l1_loss": lambda x, t: nn.l1_loss(x, t, reduction="none"),
    "huber_loss": lambda x, t: nn.huber_loss(x, t, reduction="none", delta=0.8),
    "smooth_l1_loss": lambda x, t: nn.smooth_l1_loss(x, t, reduction="none", beta=0.8),
    "smooth_l1_loss/zero": lambda x, t: nn.smooth_l1_loss(x, t, reduction="none", beta=0),
    "hinge_loss": lambda x, t: torch.relu(1 - x * (2 * t - 1)),
    "bce_loss": lambda x, t: nn.binary_cross_entropy(x, t, reduction="none") if not t.requires_grad else
                -(t * x.log() + (1 - t) * (1 - x).log()),
    "bce_with_logits_loss": lambda x, t: nn.binary_cross_entropy_with_logits(x, t, reduction="none"),
    "bce_with_logits_loss/weight":
        lambda x, t, w: nn.binary_cross_entropy_with_logits(x, t, reduction="none", pos_weight=w),
    "kl_div_loss": lambda x, t: nn.kl_div(x, t, reduction="none"),
    "kl_div_loss/zeros": lambda x, t: nn.kl_div(x, torch.relu(t).detach(), reduction="none"),
    "kl_div_loss/log": lambda x, t: nn.kl_div(x, t, reduction="none", log_target=True),
    "nll_loss": lambda x, t: nn.nll_loss(x, t, reduction="none"),
    "cross_entropy": entropy,
    "cross_entropy/ignored": entropy,
    "cross_entropy/ignore_index": lambda x, t: entropy(x, t, ignore=2),
    "cross_entropy/smooth": lambda x, t: entropy(x, t, smooth=0.1),
    "cross_entropy/smooth_ignored": lambda x, t: entropy(x, t, smooth=0.1),
    "cross_entropy/weights": entropy,
    "cross_entropy/smooth_weights": lambda x, t, w: entropy(x, t, w, smooth=0.2),
    "cross_entropy/z_loss": lambda x, t: entropy(x, t, z_loss=0.01),
    "cross_entropy/all": lambda x, t, w: entropy(x, t, w, smooth=0.2, z_loss=0.01, ignore=1),
    "cosine_similarity": lambda a, b: nn.cosine_similarity(a, b, -1),
    "cosine_similarity/axis": lambda a, b: nn.cosine_similarity(a, b, 0),
}
