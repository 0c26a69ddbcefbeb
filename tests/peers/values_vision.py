"""PyTorch's counterparts of cases_vision.cc, which has channels last."""
import torch
import torch.nn.functional as nn

HEADERS = ["ops/language/vision.h", "ops/language/volumes.h"]
LEFT_OUT = {}


def first(x):
    """Channels to axis 1."""
    return x.movedim(-1, 1)


def last(x):
    return x.movedim(1, -1)


def on_channels(function, **options):
    """Of x, or of x and a filter, both with channels last."""
    return lambda *x: last(function(*(first(t) for t in x), **options))


def resized(mode, rows, columns):
    options = {"mode": "nearest"} if mode == "nearest" else \
        {"mode": "bilinear", "align_corners": mode == "corners"}
    return on_channels(nn.interpolate, size=(rows, columns), **options)


def group_norm(groups, eps=1e-5):
    return lambda x, g, b: last(nn.group_norm(first(x), groups, g, b, eps))


def batch_norm(eps=1e-5):
    def run(x, g, b):
        axes = tuple(range(x.dim() - 1))
        y = last(nn.batch_norm(first(x), None, None, g, b, training=True, eps=eps))
        return y, x.mean(axes), x.var(axes, correction=0)
    return run


def batch_norm_eval(x, g, b, mean, variance):
    """Written out, as PyTorch's has no gradients with respect to statistics."""
    y = (x - mean) / (variance + 1e-5).sqrt() * g + b
    theirs = nn.batch_norm(first(x), mean.detach(), variance.detach(), g, b, training=False)
    torch.testing.assert_close(y.detach(), last(theirs).detach(), rtol=1e-12, atol=1e-12)
    return y


def tied(x, way):
    return x.double() + way - way.detach()


WINDOWS = {"kernel_size": (3, 4), "stride": (2, 3), "padding": (1, 2)}
LINE = {"kernel_size": 4, "stride": 3, "padding": 2}
SIZES = {"more": (13, 16), "fewer": (3, 4), "twice": (14, 18), "one": (1, 1)}

def unfold(kernel=2, **options):
    def run(x):
        r, s = (kernel, kernel) if isinstance(kernel, int) else kernel
        places = torch.arange(x.shape[1] * x.shape[2], dtype=x.dtype).reshape(1, 1, *x.shape[1:3])
        rows = nn.unfold(first(x), (r, s), **options).reshape(x.shape[0], x.shape[3], r * s, -1)
        count = len(nn.unfold(places[..., :1], (r, 1), **one_column(options))[0, 0])
        return rows.permute(0, 3, 2, 1).reshape(x.shape[0], count, -1, r * s * x.shape[3])
    return run


def one_column(options):
    """Of windows of one column in pictures of one column."""
    return {name: (value if isinstance(value, int) else value[0], 0 if name == "padding" else 1)
            for name, value in options.items()}


def fold(kernel=2, **options):
    def run(y):
        r, s = (kernel, kernel) if isinstance(kernel, int) else kernel
        channels = y.shape[3] // (r * s)
        rows = y.reshape(y.shape[0], -1, r * s, channels).permute(0, 3, 2, 1).reshape(y.shape[0], channels * r * s, -1)
        return last(nn.fold(rows, (6, 5), (r, s), **options))
    return run


WINDOW_OPTIONS = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}


def sampled(mode="bilinear", padding_mode="zeros", align_corners=False):
    return lambda x, grid: last(nn.grid_sample(first(x), grid, mode, padding_mode, align_corners))


CASES = {
    "conv3d": on_channels(nn.conv3d),
    "conv3d/one": on_channels(nn.conv3d, stride=2),
    "conv3d/all": on_channels(nn.conv3d, stride=(2, 1, 3), padding=(3, 1, 2), dilation=(2, 3, 1), groups=2),
    "conv3d_transpose": on_channels(nn.conv_transpose3d),
    "conv3d_transpose/all": on_channels(
        nn.conv_transpose3d, stride=(3, 1, 2), padding=(2, 1, 0), dilation=(2, 3, 1), output_padding=(2, 0, 1), groups=2),
    "max_pool3d": on_channels(nn.max_pool3d, kernel_size=2),
    "max_pool3d/all": on_channels(nn.max_pool3d, kernel_size=(3, 2, 3), stride=(1, 2, 2), padding=(1, 1, 0)),
    "max_pool3d/ties": lambda x: on_channels(nn.max_pool3d, kernel_size=3, stride=2)(torch.relu(x - 1)),
    "avg_pool3d": on_channels(nn.avg_pool3d, kernel_size=(3, 2, 3), stride=1),
    "avg_pool3d/padding": on_channels(nn.avg_pool3d, kernel_size=(3, 2, 3), stride=2, padding=1),
    "avg_pool3d/without_padding":
        on_channels(nn.avg_pool3d, kernel_size=(3, 2, 3), stride=2, padding=1, count_include_pad=False),
    "adaptive_max_pool3d": on_channels(nn.adaptive_max_pool3d, output_size=(3, 6, 2)),
    "adaptive_avg_pool3d": on_channels(nn.adaptive_avg_pool3d, output_size=(3, 4, 1)),
    "unfold/windows": unfold(),
    "unfold/all": unfold(**WINDOW_OPTIONS),
    "fold": fold(),
    "fold/all": fold(**WINDOW_OPTIONS),
    "grid_sample": sampled(),
    "grid_sample/corners": sampled(align_corners=True),
    "grid_sample/border": sampled(padding_mode="border"),
    "grid_sample/border_corners": sampled(padding_mode="border", align_corners=True),
    "grid_sample/nearest": sampled("nearest"),
    "grid_sample/nearest_border": sampled("nearest", "border", True),
    "conv2d": on_channels(nn.conv2d),
    "conv2d/stride": on_channels(nn.conv2d, stride=(2, 3)),
    "conv2d/padding": on_channels(nn.conv2d, padding=(2, 1)),
    "conv2d/dilation": on_channels(nn.conv2d, dilation=(2, 4)),
    "conv2d/groups": on_channels(nn.conv2d, groups=3),
    "conv2d/depthwise": on_channels(nn.conv2d, padding=1, groups=6),
    "conv2d/points": on_channels(nn.conv2d),
    "conv2d/all": on_channels(nn.conv2d, stride=(3, 2), padding=(1, 4), dilation=(3, 2), groups=2),
    "conv1d": on_channels(nn.conv1d),
    "conv1d/all": on_channels(nn.conv1d, stride=3, padding=2, dilation=2, groups=2),
    "conv2d_transpose": on_channels(nn.conv_transpose2d),
    "conv2d_transpose/stride": on_channels(nn.conv_transpose2d, stride=(2, 3), padding=(1, 0),
                                           output_padding=(1, 2)),
    "conv2d_transpose/all": on_channels(nn.conv_transpose2d, stride=(3, 2), padding=(2, 1), dilation=(2, 3),
                                        output_padding=(2, 1), groups=4),
    "conv1d_transpose": on_channels(nn.conv_transpose1d),
    "conv1d_transpose/all": on_channels(nn.conv_transpose1d, stride=3, padding=1, dilation=2, output_padding=2,
                                        groups=2),
    "max_pool2d": on_channels(nn.max_pool2d, kernel_size=2),
    "max_pool2d/windows": on_channels(nn.max_pool2d, **WINDOWS),
    "max_pool2d/ties": lambda x, way: on_channels(nn.max_pool2d, **WINDOWS)(tied(x, way)),
    "max_pool1d": on_channels(nn.max_pool1d, kernel_size=2),
    "max_pool1d/windows": on_channels(nn.max_pool1d, **LINE),
    "avg_pool2d": on_channels(nn.avg_pool2d, kernel_size=2),
    "avg_pool2d/windows": on_channels(nn.avg_pool2d, **WINDOWS),
    "avg_pool2d/elements": on_channels(nn.avg_pool2d, **WINDOWS, count_include_pad=False),
    "avg_pool1d": on_channels(nn.avg_pool1d, kernel_size=2),
    "avg_pool1d/windows": on_channels(nn.avg_pool1d, **LINE),
    "avg_pool1d/elements": on_channels(nn.avg_pool1d, **LINE, count_include_pad=False),
    "adaptive_max_pool2d": on_channels(nn.adaptive_max_pool2d, output_size=(4, 3)),
    "adaptive_avg_pool2d": on_channels(nn.adaptive_avg_pool2d, output_size=(4, 3)),
    "adaptive_avg_pool2d/one": on_channels(nn.adaptive_avg_pool2d, output_size=1),
    "adaptive_avg_pool2d/more": on_channels(nn.adaptive_avg_pool2d, output_size=(12, 16)),
    "adaptive_max_pool1d": on_channels(nn.adaptive_max_pool1d, output_size=5),
    "adaptive_avg_pool1d": on_channels(nn.adaptive_avg_pool1d, output_size=5),
    **{f"interpolate/{mode}/{name}": resized(mode, *size)
       for mode in ("nearest", "bilinear", "corners") for name, size in SIZES.items()},
    "group_norm": group_norm(3),
    "group_norm/one": group_norm(1),
    "group_norm/instance": group_norm(6, 1e-3),
    "batch_norm": batch_norm(),
    "batch_norm/far": batch_norm(1e-3),
    "batch_norm_eval": batch_norm_eval,
}
