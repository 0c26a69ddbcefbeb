// What the program `checkpoint` does with files of variables, without devices and in bounded memory: no
// tensor is ever whole in it. A path may be a checkpoint, a folder of checkpoints (the newest complete one is
// meant), a safetensors file, or a folder of Hugging Face's.
#pragma once

#include <memory>
#include <ostream>
#include <string>

#include "oneflow_like/checkpoint/huggingface.h"

namespace oneflow_like {

// With `model`, a folder of Hugging Face's has our names; nullptr: those in its files. Throws Error.
std::shared_ptr<VariableSource> OpenSource(const std::string& path, const ModelFormat* model);

// Tensors with type, shape, pieces and bytes; of a checkpoint also mesh, seed, steps and the program's state.
void ListVariables(const std::string& path, const ModelFormat* model, std::ostream& out);

// Reads every byte, and says of every damaged file and tensor what is wrong and where it begins. Files and
// tensors that nothing refers to are told, but are no damage. Gives whether all is well. Files that are not
// of a checkpoint have no checksums: they are only read. An unreadable index is an Error.
bool VerifyFiles(const std::string& path, std::ostream& out);

// The largest difference of each tensor, as numbers whatever the types, and where it is; tensors that one
// side lacks. Gives whether there is no difference; NaN is equal to NaN.
bool DiffVariables(VariableSource& a, VariableSource& b, std::ostream& out);

// All variables in one safetensors file. Throws Error when there is something at `to`.
void WriteOneFile(VariableSource& from, const std::string& to);

}  // namespace oneflow_like
