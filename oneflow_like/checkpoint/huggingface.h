// Folders as Hugging Face's transformers reads and writes them: tensors in safetensors files, and
// config.json. What a model's tensors are called is said by its NameTable, what its config.json says by its
// program (examples/gpt_huggingface.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "oneflow_like/checkpoint/name_table.h"

namespace oneflow_like {

// Our variables, in the types that the files have; ConvertedSource gives others.
class HuggingFaceReader : public OurNames {
 public:
  // Throws Error naming the file and tensor.
  HuggingFaceReader(const std::string& folder, const NameTable& table)
      : OurNames(std::make_shared<FileSource>(folder), table) {}
};

// Makes the folder, with model.safetensors and config.json; either is complete or nothing is there. Throws
// Error when there is something of that name.
void WriteHuggingFace(std::shared_ptr<VariableSource> ours, const NameTable& table, const std::string& config,
                      const std::string& folder);

// A kind of model, for tools that know none.
struct ModelFormat {
  std::string name;  // model_type in config.json: "gpt2"
  std::function<std::shared_ptr<VariableSource>(const std::string& folder)> read;
  std::function<void(std::shared_ptr<VariableSource> ours, const std::string& folder)> write;
};

}  // namespace oneflow_like
