// Looks into checkpoints, checks them, compares them, and turns them into files that others read; needs none
// of the devices that made them.
//   build/examples/checkpoint list run
#include <gflags/gflags.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/one_line.h"
#include "core/system/file_check.h"
#include "examples/gpt_huggingface.h"
#include "examples/llama_huggingface.h"
#include "examples/vit_huggingface.h"
#include "oneflow_like/build_id.h"
#include "oneflow_like/checkpoint/reader.h"
#include "oneflow_like/checkpoint/tools.h"
#include "oneflow_like/launch/help.h"
#include "oneflow_like/program/huggingface_config.h"
#include "oneflow_like/program/precision.h"

DEFINE_string(dtype, "", "of floating tensors that convert writes: fp32, bf16 or fp16; empty: as they are");
DEFINE_bool(weights_only, false, "convert or diff without the state of trainings");
DEFINE_string(weights, "",
              "average: convert averages of weights in their place; 'train:average': of that training");
DEFINE_string(format, "safetensors", "what convert makes: one safetensors file, or a folder of huggingface");
DEFINE_string(model, "", "gpt2, llama or vit: give tensors of Hugging Face's our names; empty: keep theirs");
DECLARE_bool(help);  // of gflags
DECLARE_bool(helpshort);
DECLARE_bool(helpfull);
DECLARE_bool(version);

namespace oneflow_like {
namespace {

const char* const kUsage =
    "Looks into checkpoints and turns them into files that others read. PATH is a checkpoint, a folder of\n"
    "them (the newest is meant), a safetensors file, or a Hugging Face folder.\n"
    "\n"
    "  checkpoint list PATH          tensors, mesh, steps\n"
    "  checkpoint verify PATH        read every byte and compare checksums; ends with 1 when any is wrong\n"
    "  checkpoint diff PATH PATH     largest differences; ends with 0: none, 1: some, 2: an error\n"
    "  checkpoint convert PATH TO    TO must not exist";

struct Command {
  const char* name;
  size_t paths;
  std::set<std::string> flags;  // that it understands
};
const Command kCommands[] = {{"list", 1, {"model"}},
                             {"verify", 1, {}},
                             {"diff", 2, {"model", "weights_only"}},
                             {"convert", 2, {"model", "weights_only", "weights", "dtype", "format"}}};

const Command& Parse(const std::vector<std::string>& words) {
  const char* const kAll = "list, verify, diff or convert";
  if (words.empty()) Fail("what to do is missing: ", kAll, "; see --help");
  const auto* command = std::find_if(std::begin(kCommands), std::end(kCommands),
                                     [&](const Command& c) { return words[0] == c.name; });
  if (command == std::end(kCommands)) Fail("'", words[0], "' is no command: write ", kAll);
  if (words.size() - 1 != command->paths)
    Fail(command->name, " takes ", command->paths, command->paths == 1 ? " path" : " paths", ", but ",
         words.size() - 1, words.size() == 2 ? " is given" : " are given");
  for (const char* flag : {"dtype", "weights_only", "weights", "format", "model"})
    if (!gflags::GetCommandLineFlagInfoOrDie(flag).is_default && !command->flags.count(flag))
      Fail("--", flag, " is not for ", command->name);
  return *command;
}

void Convert(const std::string& from, const std::string& to, const ModelFormat* model) {
  Conversion conversion{.weights_only = FLAGS_weights_only, .weights = FLAGS_weights};
  if (!FLAGS_dtype.empty()) conversion.dtype = PrecisionOf(FLAGS_dtype);
  if (FLAGS_format != "safetensors" && FLAGS_format != "huggingface")
    Fail("--format=", FLAGS_format, ": must be safetensors or huggingface");
  if (FLAGS_format == "huggingface" && !model)
    Fail("--format=huggingface needs --model=gpt2, --model=llama or --model=vit");
  auto source = std::make_shared<ConvertedSource>(OpenSource(from, model), conversion);
  if (FLAGS_format == "safetensors") return WriteOneFile(*source, to);
  model->write(source, FilesBeside(*OpenSource(from, nullptr)), to);
}

// The model that --model names. Shapes do not tell all of a Llama or a ViT, so a folder of Hugging Face's is
// made of what has a config.json: a checkpoint that keeps it, or another such folder.
std::optional<ModelFormat> FormatOf(const std::string& path) {
  if (FLAGS_model.empty()) return std::nullopt;
  if (FLAGS_model == "gpt2") return Gpt2Format();
  if (FLAGS_model != "llama" && FLAGS_model != "vit")
    Fail("--model=", FLAGS_model, ": must be gpt2, llama or vit");
  const bool llama = FLAGS_model == "llama";
  const std::shared_ptr<VariableSource> source = OpenSource(path, nullptr);
  if (const auto config = ConfigIn(FilesBeside(*source), source->where())) {
    if (!llama) return VitFormat(ReadVitConfig(*config));
    const auto [sizes, context] = ReadLlamaConfig(*config);
    return LlamaFormat(sizes, context);
  }
  ModelFormat format = llama ? LlamaFormat({}, 1) : VitFormat({});
  format.write = [where = source->where()](const auto&, const FolderFiles&, const std::string&) {
    Fail(where, ": --format=huggingface of a ", FLAGS_model, " needs a checkpoint that keeps its ",
         kConfigFile, ", or a folder with one");
  };
  return format;
}

// The exit code.
int Run(const std::vector<std::string>& words) {
  const std::string command = Parse(words).name;
  const std::optional<ModelFormat> named = FormatOf(words[1]);
  const ModelFormat* model = named ? &*named : nullptr;
  if (command == "verify") return VerifyFiles(words[1], std::cout) ? 0 : 1;
  if (command == "list") {
    ListVariables(words[1], model, std::cout);
  } else if (command == "convert") {
    Convert(words[1], words[2], model);
  } else {
    const Conversion conversion{.weights_only = FLAGS_weights_only};
    ConvertedSource a(OpenSource(words[1], model), conversion), b(OpenSource(words[2], model), conversion);
    return DiffVariables(a, b, std::cout) ? 0 : 1;
  }
  return 0;
}

int Main(int argc, char** argv) {
  ReportFileSizeLimit();
  const std::string program = argv[0];
  gflags::SetUsageMessage(kUsage);
  gflags::ParseCommandLineNonHelpFlags(&argc, &argv, true);
  const std::vector<std::string> words(argv + 1, argv + argc);
  int code = 0;
  try {
    if (FLAGS_version) {
      std::cout << VersionText(ThisBuild());
    } else if (FLAGS_help || FLAGS_helpshort || FLAGS_helpfull) {
      std::cout << HelpText(program, kUsage, FLAGS_helpfull);
    } else {
      gflags::HandleCommandLineHelpFlags();  // those for tools
      code = Run(words);
    }
    if (!std::cout.flush()) Fail("not all that was printed could be written to standard output");
  } catch (const std::exception& error) {
    std::cout << std::flush;
    std::cerr << "error: " << OnOneLine(error.what()) << std::endl;
    code = !words.empty() && words[0] == "diff" ? 2 : 1;
  }
  return code;
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) { return oneflow_like::Main(argc, argv); }
