#include "oneflow_like/checkpoint/huggingface.h"

#include <filesystem>

#include "core/error.h"

namespace oneflow_like {

void WriteHuggingFace(std::shared_ptr<VariableSource> ours, const NameTable& table, const std::string& config,
                      const std::string& folder) {
  TheirNames theirs(std::move(ours), table);
  WriteBeside(folder, [&](const std::string& partial) {
    std::error_code error;
    std::filesystem::create_directory(partial, error);
    if (error) Fail(partial, ": it cannot be made: ", error.message());
    // transformers refuses a file that does not say so.
    WriteTensors(theirs, partial + "/model.safetensors", {{"format", "pt"}});
    File file(partial + "/config.json", File::kCreate);
    file.WriteAt(0, config.data(), static_cast<int64_t>(config.size()));
    file.Sync();
    SyncFolder(partial);
  });
}

}  // namespace oneflow_like
