"""What Hugging Face's transformers says of a GPT-2, for transformers_test.

  transformers_check.py make FOLDER     a tiny GPT-2 with random weights, and FOLDER/logits.txt
  transformers_check.py equal A B       whether both folders have equal tensors, and which there are not
  transformers_check.py open FILE...    whether safetensors opens each file, with as many tensors as it says
"""
import sys


def make(folder):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(vocab_size=96, n_positions=24, n_embd=32, n_layer=3, n_head=4,
                        initializer_range=0.3)
    model = GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():  # biases and norms too, which start as 0 and 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder, safe_serialization=True)
    tokens = torch.arange(2 * 17).reshape(2, 17) * 7 % 96
    with torch.no_grad():
        logits = model(tokens).logits
    with open(folder + "/logits.txt", "w") as out:
        out.write(" ".join(str(float(x)) for x in logits.reshape(-1)))


def equal(a, b):
    import torch
    from transformers import GPT2LMHeadModel

    first = GPT2LMHeadModel.from_pretrained(a).state_dict()
    second = GPT2LMHeadModel.from_pretrained(b).state_dict()
    different = sorted(set(first) ^ set(second))
    different += [name for name in first if name in second and not torch.equal(first[name], second[name])]
    if different:
        sys.exit("different: " + ", ".join(different))


def open_all(paths):
    from safetensors import safe_open

    for path in paths:
        with safe_open(path, framework="np") as file:
            for name in file.keys():
                file.get_slice(name).get_shape()
                if file.get_slice(name).get_dtype() not in ("BF16",):
                    file.get_tensor(name)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    elif sys.argv[1] == "equal":
        equal(sys.argv[2], sys.argv[3])
    else:
        open_all(sys.argv[2:])
