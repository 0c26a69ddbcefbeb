// Folders as Hugging Face's transformers reads and writes them: tensors in safetensors files, config.json,
// and the files of a tokenizer. A model's NameTable has the names of its tensors; its program handles
// config.json (examples/gpt_huggingface.h).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "oneflow_like/checkpoint/name_table.h"

namespace oneflow_like {

// The folder as variables of this library, in the types of the files; ConvertedSource converts them.
class HuggingFaceReader : public OurNames {
 public:
  // Throws Error naming the file and tensor.
  HuggingFaceReader(const std::string& folder, const NameTable& table)
      : OurNames(std::make_shared<FileSource>(folder), table) {}
};

// Contents of the small files that a model's folder has beside its tensors, by name. They go where the model
// goes: into checkpoints (SaveOptions::files) and into folders that are written.
using FolderFiles = std::map<std::string, std::string>;

// The file that says what a model is, and the name under which checkpoints of programs keep it, on one line,
// in their state.
inline constexpr char kConfigFile[] = "config.json";
inline constexpr char kGenerationFile[] = "generation_config.json";  // how texts are generated

// The folder's config.json and generation_config.json, the files of tokenizers, chat templates and readers of
// pictures, code that config.json may name, and licences. Not tensors, and nothing of more than 64 MiB.
// Throws Error for a file that cannot be read.
FolderFiles ReadFolderFiles(const std::string& folder);

// Creates the folder with model.safetensors, config.json, whose entries "dtype" and "torch_dtype", if there
// are such, say the type of the tensors, and the other `files`; if it fails, no folder is left. Throws Error
// when the name exists already.
void WriteHuggingFace(std::shared_ptr<VariableSource> ours, const NameTable& table, const std::string& config,
                      const FolderFiles& files, const std::string& folder);

// A kind of model, passed to tools that know no model.
struct ModelFormat {
  std::string name;  // model_type in config.json: "gpt2"
  std::function<std::shared_ptr<VariableSource>(const std::string& folder)> read;
  // Of a config.json in `files` all entries stay that say nothing else than the model that is written.
  std::function<void(std::shared_ptr<VariableSource> ours, const FolderFiles& files,
                     const std::string& folder)>
      write;
};

}  // namespace oneflow_like
