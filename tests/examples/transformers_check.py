"""What Hugging Face's transformers says of a GPT-2, a Llama, a Qwen 2, both with experts, and a ViT, for
transformers_test.

  transformers_check.py make FOLDER     a tiny model with random weights, and FOLDER/logits.txt; of the kind that the
                                        folder's name says: gpt2, llama, llama3 (stretched positions), qwen2, mixtral,
                                        qwen2_moe or vit
  transformers_check.py equal A B       whether both folders have equal tensors, and which there are not
  transformers_check.py open FILE...    whether safetensors opens each file, with as many tensors as it says
"""
import pathlib
import sys


def config_of(kind):
    from transformers import GPT2Config, LlamaConfig, MixtralConfig, Qwen2Config, Qwen2MoeConfig, ViTConfig

    if kind == "gpt2":
        return GPT2Config(vocab_size=96, n_positions=24, n_embd=32, n_layer=3, n_head=4, initializer_range=0.3)
    if kind == "vit":
        return ViTConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=56,
                         image_size=24, patch_size=6, num_channels=3, num_labels=5, initializer_range=0.3)
    sizes = dict(vocab_size=96, max_position_embeddings=24, hidden_size=32, num_hidden_layers=3, intermediate_size=56,
                 num_attention_heads=4, initializer_range=0.3, bos_token_id=None, eos_token_id=None)
    if kind == "qwen2":
        return Qwen2Config(**sizes, num_key_value_heads=1, tie_word_embeddings=True)
    if kind == "mixtral":
        return MixtralConfig(**sizes, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
    if kind == "qwen2_moe":
        return Qwen2MoeConfig(**sizes, num_key_value_heads=4, num_experts=6, num_experts_per_tok=3,
                              moe_intermediate_size=20, shared_expert_intermediate_size=28)
    if kind == "llama":
        return LlamaConfig(**sizes, num_key_value_heads=2, head_dim=12, rms_norm_eps=1e-5)
    scaling = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=2.0,
                   original_max_position_embeddings=8)
    config = LlamaConfig(**sizes, num_key_value_heads=4, rope_scaling=dict(scaling, rope_theta=500.0))
    config.rope_theta = 500.0  # where versions before 5 have it
    return config


def kind_of_model(model_type):
    from transformers import AutoModelForCausalLM, AutoModelForImageClassification

    return AutoModelForImageClassification if model_type == "vit" else AutoModelForCausalLM


def make(folder):
    import torch

    torch.manual_seed(1)
    config = config_of(pathlib.Path(folder).name)
    model = kind_of_model(config.model_type).from_config(config).eval()
    for parameter in model.parameters():  # biases and norms too, which start as 0 and 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder, safe_serialization=True)
    given = torch.arange(2 * 17).reshape(2, 17) * 7 % 96
    if config.model_type == "vit":  # pictures of 24 x 24 pixels, the channels last
        given = (torch.arange(2 * 24 * 24 * 3).reshape(2, 24, 24, 3) * 7 % 97 / 97 - 0.5).permute(0, 3, 1, 2)
    with torch.no_grad():
        logits = model(given).logits
    with open(folder + "/logits.txt", "w") as out:
        out.write(" ".join(str(float(x)) for x in logits.reshape(-1)))


def equal(a, b):
    import torch
    from transformers import AutoConfig

    first, second = (kind_of_model(AutoConfig.from_pretrained(x).model_type).from_pretrained(x) for x in (a, b))
    different = [] if type(first) is type(second) else [f"{type(first)} and {type(second)}"]
    first, second = first.state_dict(), second.state_dict()
    different += sorted(set(first) ^ set(second))
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
