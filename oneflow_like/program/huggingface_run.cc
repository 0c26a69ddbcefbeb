#include "oneflow_like/program/huggingface_run.h"

#include <filesystem>
#include <memory>
#include <utility>

#include "oneflow_like/checkpoint/reader.h"
#include "oneflow_like/checkpoint/step_folders.h"
#include "oneflow_like/checkpoint/tools.h"
#include "oneflow_like/program/program.h"

namespace oneflow_like {

namespace fs = std::filesystem;

HuggingFaceFlags& hugging_face_flags() {
  static auto* flags = new HuggingFaceFlags;  // gflags keeps pointers to the fields
  return *flags;
}

FlagGroup HuggingFaceGroup() {
  HuggingFaceFlags& f = hugging_face_flags();
  return {
      "huggingface",
      "Hugging Face",
      {{"load_hf", &f.load_hf, "Begins with the weights of this Hugging Face folder.", kAnyValue, kCommon},
       {"save_hf", &f.save_hf, "Writes the trained weights to this folder, which transformers reads.",
        kAnyValue, kCommon}}};
}

void CheckHuggingFaceFlags() {
  for (std::string* path : {&hugging_face_flags().load_hf, &hugging_face_flags().save_hf})
    while (path->size() > 1 && path->back() == '/') path->pop_back();
  if (!hugging_face_flags().load_hf.empty() && !training_flags().load.empty())
    Fail("--load and --load_hf both give the weights to begin with: give one of the two");
  if (training_flags().local && !hugging_face_flags().save_hf.empty())
    Fail("--save_hf needs a checkpoint that one process can read whole, which --local does not leave");
}

void RequireHuggingFaceFolder(const Launcher& launcher) {
  if (hugging_face_flags().save_hf.empty()) return;
  if (fs::path(training_flags().save).lexically_normal() ==
      fs::path(hugging_face_flags().save_hf).lexically_normal())
    Fail("--save and --save_hf are both ", training_flags().save, ": give each a folder of its own");
  std::error_code error;
  if (!launcher.restarted() && fs::exists(fs::symlink_status(hugging_face_flags().save_hf, error)))
    Fail("--save_hf=", hugging_face_flags().save_hf, ": there is something of that name already");
  RequireFolder(launcher, "save_hf", hugging_face_flags().save_hf,
                fs::absolute(hugging_face_flags().save_hf).parent_path());
}

ModelFiles FilesOfBeginning(const Launcher& launcher) {
  ModelFiles files;
  RequireBeginning(launcher);
  if (!hugging_face_flags().load_hf.empty()) {
    files.where = hugging_face_flags().load_hf;
    files.others = ReadFolderFiles(hugging_face_flags().load_hf);
    files.config.emplace(hugging_face_flags().load_hf);
  } else if (const std::string path = BeginningOf(launcher); !path.empty()) {
    const std::shared_ptr<VariableSource> source = OpenSource(path, nullptr);
    files.where = source->where();
    files.others = FilesBeside(*source);
    files.config = ConfigIn(files.others, files.where);
  }
  files.others.erase(kConfigFile);
  return files;
}

std::shared_ptr<VariableSource> OpenHuggingFace(const Launcher& launcher, const ModelFormat& format) {
  if (hugging_face_flags().load_hf.empty() || launcher.dry_run() || training_flags().simulate ||
      GoesOn(launcher))
    return nullptr;
  return format.read(hugging_face_flags().load_hf);
}

void LoadHuggingFace(const Launcher& launcher, Model& model, std::shared_ptr<VariableSource> weights,
                     bool partial) {
  if (!weights) return;
  ConvertedSource floats(std::move(weights), {.dtype = DType::kFloat32});
  LoadWeights(model, floats, {.partial = partial});
  launcher.Print("weights of %s\n", hugging_face_flags().load_hf.c_str());
}

void SaveHuggingFace(const Launcher& launcher, Model& model, const ModelFormat& format,
                     const std::string& config, const FolderFiles& others) {
  if (hugging_face_flags().save_hf.empty()) return;
  std::error_code error;
  const auto remove_beside = [&](const fs::path& folder) {
    RemoveUnfinished(folder);
    for (const std::string& checkpoint : Checkpoints(folder)) RemoveCheckpoint(checkpoint);
    fs::remove(folder / ".saving", error);
    fs::remove(folder, error);  // unless something else is in it
  };
  const fs::path at = fs::absolute(hugging_face_flags().save_hf);
  const std::string beside = at.parent_path() / Cat(".", at.filename().string(), ".checkpoint");
  const std::string folder = training_flags().save.empty() ? beside : training_flags().save;
  if (launcher.main_process()) remove_beside(beside);
  const std::string last =
      training_flags().save.empty() ? Save(model, folder).Wait() : Checkpoints(folder).back();
  if (launcher.main_process()) {  // unless an earlier attempt of --restarts has
    FolderFiles files = others;
    files[kConfigFile] = config;
    const auto weights = std::make_shared<ConvertedSource>(std::make_shared<CheckpointReader>(last),
                                                           Conversion{.weights = WeightsOfFlags()});
    if (!fs::exists(at, error)) format.write(weights, files, hugging_face_flags().save_hf);
    if (training_flags().save.empty()) remove_beside(beside);
  }
  launcher.Print("weights for transformers in %s\n", hugging_face_flags().save_hf.c_str());
}

}  // namespace oneflow_like
