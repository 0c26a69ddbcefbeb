"""PyTorch's counterparts of cases_losses.cc. Losses are not reduced."""
import torch
import torch.nn.functional as nn

HEADERS = ["ops/language/losses.h"]
LEFT_OUT = {}


def agreed(formula, theirs):
    """The formula, which has gradients with respect to weights where PyTorch's function has none."""
    torch.testing.assert_close(formula.detach(), theirs, rtol=1e-12, atol=1e-12)
    return formula


def entropy(x, target, weight=None, smooth=0.0, z_loss=0.0, ignore=None):
    ignored = target < 0
    if ignore is not None:
        ignored = ignored | (target == ignore)
    w = torch.ones(x.shape[-1], dtype=x.dtype) if weight is None else weight
    logs = nn.log_softmax(x, -1)
    own = target.clamp(min=0)
    loss = -(1 - smooth) * w[own] * logs.gather(-1, own[..., None])[..., 0] - smooth * (w * logs).mean(-1)
    theirs = nn.cross_entropy(x.detach(), torch.where(ignored, -100, target), w.detach(), reduction="none",
                              label_smoothing=smooth)
    loss = agreed(torch.where(ignored, 0, loss), theirs)
    return loss + torch.where(ignored, 0, z_loss * x.logsumexp(-1).square())


def weighted_bce(x, t, w):
    loss = -(w * t * nn.logsigmoid(x) + (1 - t) * nn.logsigmoid(-x))
    theirs = nn.binary_cross_entropy_with_logits(x.detach(), t.detach(), reduction="none", pos_weight=w.detach())
    return agreed(loss, theirs)


def bce(p, t):
    loss = -(t * p.log() + (1 - t) * (1 - p).log())
    return agreed(loss, nn.binary_cross_entropy(p.detach(), t.detach(), reduction="none"))


def sigmoid_focal(alpha, gamma):
    """As torchvision has it."""
    def run(x, t):
        t = t.to(x.dtype)
        p = x.sigmoid()
        rest = p * (1 - t) + (-x).sigmoid() * t
        loss = -(t * nn.logsigmoid(x) + (1 - t) * nn.logsigmoid(-x)) * rest ** gamma
        return loss if alpha < 0 else loss * (alpha * t + (1 - alpha) * (1 - t))
    return run


def focal(gamma):
    def run(x, target, weights=None):
        own = target.clamp(min=0)
        logs = nn.log_softmax(x, -1).gather(-1, own[..., None])[..., 0]
        loss = -logs * (-torch.expm1(logs)) ** gamma * (1 if weights is None else weights[own])
        return torch.where(target < 0, 0, loss)
    return run


def ctc(blank=0, zero_infinity=False):
    return lambda x, targets, places, lengths: nn.ctc_loss(
        nn.log_softmax(x, -1).transpose(0, 1), targets.long(), places.long(), lengths.long(), blank, "none", zero_infinity)


CASES = {
    "mse_loss": lambda x, t: nn.mse_loss(x, t, reduction="none"),
    "l1_loss": lambda x, t: nn.l1_loss(x, t, reduction="none"),
    "huber_loss": lambda x, t: nn.huber_loss(x, t, reduction="none", delta=0.8),
    "smooth_l1_loss": lambda x, t: nn.smooth_l1_loss(x, t, reduction="none", beta=0.8),
    "smooth_l1_loss/zero": lambda x, t: nn.smooth_l1_loss(x, t, reduction="none", beta=0),
    "hinge_loss": lambda x, t: torch.relu(1 - x * (2 * t - 1)),
    "bce_loss": bce,
    "bce_with_logits_loss": lambda x, t: nn.binary_cross_entropy_with_logits(x, t, reduction="none"),
    "bce_with_logits_loss/weight": weighted_bce,
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
    "linear_cross_entropy": lambda x, w, t: entropy(x @ w.T, t),
    "linear_cross_entropy/all": lambda x, w, t, v: entropy(x @ w.T, t, v, smooth=0.2, z_loss=0.01, ignore=1),
    "mean_linear_cross_entropy": lambda x, w, t, v: entropy(x @ w.T, t, v, ignore=1).mean(),
    "cosine_similarity": lambda a, b: nn.cosine_similarity(a, b, -1),
    "cosine_similarity/axis": lambda a, b: nn.cosine_similarity(a, b, 0),
    "sigmoid_focal_loss": sigmoid_focal(0.25, 2),
    "sigmoid_focal_loss/root": sigmoid_focal(-1, 0.5),
    "focal_loss": focal(2),
    "focal_loss/weights": focal(1.5),
    "ctc_loss": ctc(),
    "ctc_loss/blank": ctc(3),
    "ctc_loss/too_few_places": ctc(zero_infinity=True),
    "triplet_margin_loss": lambda a, p, n: nn.triplet_margin_loss(a, p, n, reduction="none"),
    "triplet_margin_loss/swap":
        lambda a, p, n: nn.triplet_margin_loss(a, p, n, 0.4, 1, 1e-3, swap=True, reduction="none"),
}
