// A cache of compiled kernels on disk, across runs. A file is written under another name and renamed, and
// contains its key and a checksum: a truncated or damaged file is ignored. Problems with the folder cost
// time, but never fail a run.
#pragma once

#include <optional>
#include <string>

namespace oneflow_like::cuda {

class JitCache {
 public:
  // An empty folder name: no cache.
  explicit JitCache(std::string folder) : folder_(std::move(folder)) {}
  // The code stored for this key (any text), if it is complete. A damaged file is logged as a warning.
  std::optional<std::string> Load(const std::string& key) const;
  // Makes the folder if need be. A folder that cannot be written to is logged as a warning, once per process.
  void Store(const std::string& key, const std::string& code) const;
  std::string FileOf(const std::string& key) const;

 private:
  std::string folder_;
};

}  // namespace oneflow_like::cuda
