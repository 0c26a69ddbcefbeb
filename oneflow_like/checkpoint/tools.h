// The commands of the program `checkpoint`, without devices and in bounded memory: it never holds a whole
// tensor. A path may be a checkpoint, a folder of checkpoints (the newest complete one is used), a
// safetensors file, or a Hugging Face folder.
#pragma once

#include <memory>
#include <ostream>
#include <string>

#include "oneflow_like/checkpoint/huggingface.h"

namespace oneflow_like {

// With `model`, a Hugging Face folder is read under this library's names; with nullptr, under those in its
// files. Throws Error.
std::shared_ptr<VariableSource> OpenSource(const std::string& path, const ModelFormat* model);

// The small files of the model at a path: those that a checkpoint keeps, with its config.json, or those of a
// Hugging Face folder; none of a single file. Throws Error for one that is damaged.
FolderFiles FilesBeside(const VariableSource& source);

// Lists tensors with type, shape, pieces and bytes; for a checkpoint also mesh, seed, steps and the program's
// state.
void ListVariables(const std::string& path, const ModelFormat* model, std::ostream& out);

// Reads every byte, and reports for every damaged file and tensor what is wrong and where it begins.
// Unreferenced files and tensors are reported, but are not damage. Returns whether there is no damage. Files
// outside a checkpoint have no checksums and are only read. An unreadable index is an Error.
bool VerifyFiles(const std::string& path, std::ostream& out);

// Prints the largest difference of each tensor, compared as numbers whatever the types, and its place; and
// tensors that one side lacks. Returns whether there is no difference; NaN is equal to NaN.
bool DiffVariables(VariableSource& a, VariableSource& b, std::ostream& out);

// Writes all variables to one safetensors file. Throws Error when `to` exists already.
void WriteOneFile(VariableSource& from, const std::string& to);

}  // namespace oneflow_like
