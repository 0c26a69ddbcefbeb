"""Losses of models that a program of ours trained, beside those of the same models in PyTorch."""
import torch

import tensor_file

STEPS = 20


def compare(title, path, tolerance, losses_of):
    """Exit code 1 unless losses_of(tensors of the file, model) are all as written, but for the tolerance of each."""
    torch.set_num_threads(1)  # the tensors are small, and others use the cores
    written = tensor_file.read(path)
    failures = []
    models = [name.split(":")[0] for name in written if name.endswith(":losses")]
    for model in models:
        ours, theirs = written[f"{model}:losses"].tolist(), losses_of(written, model)
        apart = [abs(a - b) / abs(b) for a, b in zip(ours, theirs)]
        worst = max(range(len(apart)), key=apart.__getitem__)
        print(f"{model}: loss {theirs[0]:.4f} to {theirs[-1]:.4f}, at most {apart[worst]:.1e} apart")
        if not apart[worst] <= tolerance:
            failures.append(f"{model}: {ours[worst]:.7f} in step {worst}, PyTorch's {theirs[worst]:.7f}")
    print(f"{title} beside PyTorch {torch.__version__}, {len(failures)} failures")
    print("".join(f"  {text}\n" for text in failures), end="")
    return 1 if failures or not models else 0
