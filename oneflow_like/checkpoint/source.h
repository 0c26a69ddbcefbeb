// Sources from which variables are read, box by box: a checkpoint, a safetensors file, a Hugging Face folder,
// or another source with other names or types. Also the two ways to write a source's variables.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/boxes/feeds.h"
#include "oneflow_like/checkpoint/safetensors.h"

namespace oneflow_like {

// Bytes moved through memory at a time.
constexpr int64_t kBlockBytes = 4 << 20;
inline int64_t ElementsOfBlock(DType dtype) { return kBlockBytes / static_cast<int64_t>(SizeOf(dtype)); }

struct SourceVariable {
  DType dtype = DType::kFloat32;
  Dims shape;
  int64_t bytes() const { return shape.elements() * static_cast<int64_t>(SizeOf(dtype)); }
};

// Not thread-safe.
class VariableSource {
 public:
  virtual ~VariableSource() = default;
  const std::map<std::string, SourceVariable>& variables() const { return variables_; }
  // What else there is: the names of tensors, and of their types, that this library does not have (F64, I8).
  // They cannot be read.
  const std::map<std::string, std::string>& others() const { return others_; }
  // Reads a box of a variable, row-major, in the variable's type. Reads only what it needs, in pieces of at
  // most kBlockBytes. Throws Error naming the file. REQUIRES: the variable is one of variables(), the box
  // lies inside it.
  virtual void Read(const std::string& variable, const Box& box, void* to) = 0;
  virtual const std::string& where() const = 0;  // the path, for messages
  // What the processes of a job compare when they read from it, as hosts may have different files under one
  // name: names, types and shapes of the variables.
  virtual std::vector<SourceFact> Facts() const;

 protected:
  std::map<std::string, SourceVariable> variables_;
  std::map<std::string, std::string> others_;
};

// Throws Error for a source with others, which would be lost where it is written or compared.
void RequireAllReadable(const VariableSource& source);

// Tensors by the names in the files: of one safetensors file, or of a folder with model.safetensors or with
// the shards of a model.safetensors.index.json, as Hugging Face's library writes them.
class FileSource : public VariableSource {
 public:
  // Opens all files. Throws Error naming the file, and the tensor where there is one.
  explicit FileSource(std::string path);
  void Read(const std::string& variable, const Box& box, void* to) override;
  const std::string& where() const override { return path_; }
  std::vector<SourceFact> Facts() const override;  // sizes and hashes of the files, too

 private:
  void AddShards(const std::string& index);
  void Add(const std::string& tensor, const SafetensorsReader* file);

  const std::string path_;
  std::map<std::string, std::unique_ptr<SafetensorsReader>> files_;
  std::map<std::string, const SafetensorsReader*> file_of_;
};

struct Conversion {
  std::optional<DType> dtype;  // of floating variables; none: unchanged
  bool weights_only = false;   // without the state of trainings
  // "average": without the state of trainings, and in place of each weight the average that a training kept
  // of it (TrainOptions::average), where there is one; of several trainings "<training>:average" says which.
  // Empty: the weights.
  std::string weights = {};
};

// By weight, the variable of the source that is its average, as Conversion::weights says. Throws Error,
// beginning with `who`, where the text has no meaning, the source has no such averages, or of several
// trainings. Throws nothing and is empty for empty `weights`.
std::map<std::string, std::string> AveragesIn(const std::string& who, const VariableSource& source,
                                              const std::string& weights);

// Another source, converted on the way, others and all. A finite number that the type cannot hold is an
// Error.
class ConvertedSource : public VariableSource {
 public:
  ConvertedSource(std::shared_ptr<VariableSource> from, const Conversion& conversion);
  void Read(const std::string& variable, const Box& box, void* to) override;
  const std::string& where() const override { return from_->where(); }
  std::vector<SourceFact> Facts() const override { return from_->Facts(); }

 private:
  const std::shared_ptr<VariableSource> from_;
  const std::map<std::string, std::string> averages_;  // in place of weights
  std::string run_;
};

// Calls `use` for boxes that cover a variable, each contiguous and of at most kBlockBytes, in its order.
void ForEachBlock(const SourceVariable& variable, const std::function<void(const Box&)>& use);

// Element `index` of row-major data; exact.
long double NumberAt(DType dtype, const void* data, int64_t index);

// Creates a safetensors file of all the source's variables, synced. Throws Error where it has others.
void WriteTensors(VariableSource& source, const std::string& path,
                  const std::map<std::string, std::string>& metadata);

// Calls `write` to create a file or a folder of another name beside `path`, and renames it when it is
// complete; if `write` throws, nothing is left. Throws Error when `path` exists already.
void WriteBeside(const std::string& path, const std::function<void(const std::string& partial)>& write);

// "'a', 'b' and 3 more"
std::string Quoted(const std::vector<std::string>& names);

}  // namespace oneflow_like
