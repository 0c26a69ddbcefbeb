// Folders as Hugging Face's transformers reads and writes them: tensors in safetensors files, and
// config.json. A model's NameTable has the names of its tensors; its program handles config.json
// (examples/gpt_huggingface.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "oneflow_like/checkpoint/name_table.h"

namespace oneflow_like {

// The folder as variables of this library, in the types of the files; ConvertedSource converts them.
class HuggingFaceReader : public OurNames {
 public:
  // Throws Error naming the file and tensor.
  HuggingFaceReader(const std::string& folder, const NameTable& table)
      : OurNames(std::make_shared<FileSource>(folder), table) {}
};

// Creates the folder with model.safetensors and config.json; if it fails, no folder is left. Throws Error
// when the name exists already.
void WriteHuggingFace(std::shared_ptr<VariableSource> ours, const NameTable& table, const std::string& config,
                      const std::string& folder);

// A kind of model, passed to tools that know no model.
struct ModelFormat {
  std::string name;  // model_type in config.json: "gpt2"
  std::function<std::shared_ptr<VariableSource>(const std::string& folder)> read;
  std::function<void(std::shared_ptr<VariableSource> ours, const std::string& folder)> write;
};

}  // namespace oneflow_like
